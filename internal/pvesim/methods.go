package pvesim

import (
	"strings"
)

func at(path string) []string { return strings.Split(path, "/") }

var (
	vmconfigs = []string{"VM.Config.Disk", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Network", "VM.Config.HWType", "VM.Config.Options", "VM.Config.Cloudinit"}
	optional  = func(check func(string) string) field { return field{check: check} }
	required  = func(check func(string) string) field { return field{check: check, required: true} }
	upid      = map[string]field{}
)

func onNode(any ...string) func(*call) error {
	return func(c *call) error { return c.need("/nodes/"+c.params["node"], any...) }
}

func onStorage(any ...string) func(*call) error {
	return func(c *call) error { return c.need("/storage/"+c.params["storage"], any...) }
}

// methods are what the API has. Those that Proxmox has and this has not answer 501.
var methods []method

func init() { // in a function, because the methods refer to the table
	powered := map[string]field{"skiplock": optional(boolean), "timeout": optional(integer(0, most))}
	with := func(more map[string]field) map[string]field {
		out := map[string]field{}
		for k, v := range powered {
			out[k] = v
		}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	update := map[string]field{"*config": {}, "delete": optional(anything), "revert": optional(anything), "digest": optional(atMost(40)), "skiplock": optional(boolean), "force": optional(boolean)}
	background := map[string]field{"*config": {}, "delete": optional(anything), "revert": optional(anything), "digest": optional(atMost(40)), "skiplock": optional(boolean), "force": optional(boolean), "background_delay": optional(integer(1, 30))}
	audit := onMachine("VM.Audit")
	power := onMachine("VM.PowerMgmt")
	agentAudit := onMachine("VM.GuestAgent.Audit", "VM.GuestAgent.Unrestricted")
	const vm = "nodes/{node}/qemu/{vmid}"
	index := func(key string, all ...string) func(*call) (any, error) {
		return func(*call) (any, error) { return names(key, all...), nil }
	}
	methods = []method{
		{"GET", nil, nil, nil, index("subdir", "version", "cluster", "nodes", "storage", "access", "pools")},
		{"GET", at("version"), nil, nil, (*call).version},
		{"GET", at("access/permissions"), nil, map[string]field{"path": optional(anything), "userid": optional(anything)}, (*call).permissions},
		{"GET", at("cluster/status"), nil, nil, (*call).clusterStatus},
		{"GET", at("cluster/nextid"), nil, map[string]field{"vmid": optional(vmidCheck)}, (*call).nextID},
		{"GET", at("cluster/resources"), nil, map[string]field{"type": optional(oneOf("vm", "storage", "node", "sdn"))}, (*call).resources},
		{"GET", at("cluster/tasks"), nil, nil, (*call).clusterTasks},
		{"GET", at("nodes"), nil, nil, (*call).listNodes},
		{"GET", at("nodes/{node}/status"), onNode("Sys.Audit"), nil, (*call).nodeStatus},
		{"GET", at("nodes/{node}/version"), nil, nil, (*call).version},
		{"GET", at("nodes/{node}/network"), nil, map[string]field{"type": optional(anything)}, (*call).listBridges},
		{"GET", at("nodes/{node}/storage"), nil, map[string]field{"content": optional(anything), "enabled": optional(boolean), "storage": optional(anything), "target": optional(anything), "format": optional(boolean)}, (*call).listStorages},
		{"GET", at("nodes/{node}/storage/{storage}/status"), onStorage("Datastore.Audit", "Datastore.AllocateSpace"), nil, (*call).storageStatus},
		{"GET", at("nodes/{node}/storage/{storage}/content"), onStorage("Datastore.Audit", "Datastore.AllocateSpace"), map[string]field{"content": optional(anything), "vmid": optional(vmidCheck)}, (*call).storageContent},
		{"DELETE", at("nodes/{node}/storage/{storage}/content/{volume}"), onStorage("Datastore.Allocate", "Datastore.AllocateSpace"), map[string]field{"delay": optional(integer(1, 30))}, (*call).deleteVolume},
		{"GET", at("nodes/{node}/tasks"), nil, map[string]field{"errors": optional(boolean), "limit": optional(integer(0, most)), "start": optional(integer(0, most)), "since": optional(integer(0, most)), "until": optional(integer(0, most)), "source": optional(oneOf("archive", "active", "all")), "statusfilter": optional(anything), "typefilter": optional(anything), "userfilter": optional(anything), "vmid": optional(vmidCheck)}, (*call).listTasks},
		{"GET", at("nodes/{node}/tasks/{upid}"), nil, upid, index("name", "log", "status")},
		{"DELETE", at("nodes/{node}/tasks/{upid}"), nil, upid, (*call).stopTask},
		{"GET", at("nodes/{node}/tasks/{upid}/status"), nil, upid, (*call).taskStatus},
		{"GET", at("nodes/{node}/tasks/{upid}/log"), nil, map[string]field{"limit": optional(integer(0, most)), "start": optional(integer(0, most)), "download": optional(boolean)}, (*call).taskLog},
		{"GET", at("nodes/{node}/qemu"), nil, map[string]field{"full": optional(boolean)}, (*call).listMachines},
		{"POST", at("nodes/{node}/qemu"), allowCreate, map[string]field{"*config": {}, "vmid": required(vmidCheck), "pool": optional(anything), "start": optional(boolean), "storage": optional(anything), "force": optional(boolean), "unique": optional(boolean)}, (*call).create},
		{"DELETE", at(vm), onMachine("VM.Allocate"), map[string]field{"skiplock": optional(boolean), "purge": optional(boolean), "destroy-unreferenced-disks": optional(boolean)}, (*call).destroy},
		{"GET", at(vm + "/config"), audit, map[string]field{"current": optional(boolean), "snapshot": optional(configID)}, (*call).getConfig},
		{"PUT", at(vm + "/config"), onMachine(vmconfigs...), update, (*call).putConfig},
		{"POST", at(vm + "/config"), onMachine(vmconfigs...), background, (*call).postConfig},
		{"GET", at(vm + "/pending"), audit, nil, (*call).getPending},
		{"PUT", at(vm + "/resize"), onMachine("VM.Config.Disk"), map[string]field{"disk": required(oneOf(drives()...)), "size": required(sizeCheck), "digest": optional(atMost(40)), "skiplock": optional(boolean)}, (*call).resize},
		{"PUT", at(vm + "/unlink"), onMachine("VM.Config.Disk"), map[string]field{"idlist": required(anything), "force": optional(boolean)}, (*call).unlink},
		{"POST", at(vm + "/clone"), allowClone, map[string]field{"newid": required(vmidCheck), "name": optional(dnsName), "description": optional(anything), "pool": optional(anything), "snapname": optional(configID), "storage": optional(anything), "format": optional(oneOf("raw", "qcow2", "vmdk")), "full": optional(boolean), "target": optional(anything), "bwlimit": optional(integer(0, most))}, (*call).clone},
		{"POST", at(vm + "/template"), onMachine("VM.Allocate"), map[string]field{"disk": optional(oneOf(drives()...))}, (*call).template},
		{"POST", at(vm + "/move_disk"), onMachine("VM.Config.Disk"), map[string]field{"disk": required(anything), "storage": optional(anything), "delete": optional(boolean), "format": optional(anything), "digest": optional(atMost(40))}, (*call).moveDisk},
		{"POST", at(vm + "/migrate"), onMachine("VM.Migrate"), map[string]field{"target": required(anything), "online": optional(boolean), "force": optional(boolean), "with-local-disks": optional(boolean), "targetstorage": optional(anything), "bwlimit": optional(integer(0, most)), "migration_type": optional(oneOf("secure", "insecure")), "migration_network": optional(anything)}, (*call).migrate},
		{"GET", at(vm + "/status"), audit, nil, index("subdir", "current", "start", "stop", "reset", "shutdown", "suspend", "reboot")},
		{"GET", at(vm + "/status/current"), audit, nil, (*call).statusCurrent},
		{"POST", at(vm + "/status/start"), power, with(map[string]field{"force-cpu": optional(anything), "machine": optional(anything)}), (*call).start},
		{"POST", at(vm + "/status/stop"), power, with(map[string]field{"keepActive": optional(boolean), "overrule-shutdown": optional(boolean)}), (*call).stop},
		{"POST", at(vm + "/status/shutdown"), power, with(map[string]field{"keepActive": optional(boolean), "forceStop": optional(boolean)}), (*call).shutdown},
		{"POST", at(vm + "/status/reboot"), power, map[string]field{"timeout": optional(integer(0, most))}, (*call).reboot},
		{"POST", at(vm + "/status/reset"), power, map[string]field{"skiplock": optional(boolean)}, (*call).reset},
		{"POST", at(vm + "/status/suspend"), power, map[string]field{"skiplock": optional(boolean), "todisk": optional(boolean), "statestorage": optional(anything)}, (*call).suspend},
		{"POST", at(vm + "/status/resume"), power, map[string]field{"skiplock": optional(boolean), "nocheck": optional(boolean)}, (*call).resume},
		{"GET", at(vm + "/snapshot"), audit, nil, (*call).listSnapshots},
		{"POST", at(vm + "/snapshot"), onMachine("VM.Snapshot"), map[string]field{"snapname": required(configID), "description": optional(anything), "vmstate": optional(boolean)}, (*call).snapshot},
		{"GET", at(vm + "/snapshot/{snapname}/config"), onMachine("VM.Snapshot", "VM.Snapshot.Rollback", "VM.Audit"), nil, (*call).snapshotConfig},
		{"DELETE", at(vm + "/snapshot/{snapname}"), onMachine("VM.Snapshot"), map[string]field{"force": optional(boolean)}, (*call).deleteSnapshot},
		{"POST", at(vm + "/snapshot/{snapname}/rollback"), onMachine("VM.Snapshot", "VM.Snapshot.Rollback"), map[string]field{"start": optional(boolean)}, (*call).rollback},
		{"GET", at(vm + "/agent/network-get-interfaces"), agentAudit, nil, orGuest((*call).agentInterfaces, (*call).guestAnswers)},
		{"GET", at(vm + "/agent/get-host-name"), agentAudit, nil, orGuest((*call).agentHostName, (*call).guestAnswers)},
		{"GET", at(vm + "/agent/get-osinfo"), agentAudit, nil, orGuest((*call).agentUnknown, (*call).guestAnswers)},
		{"POST", at(vm + "/agent/ping"), agentAudit, nil, (*call).agentPing},
		{"POST", at(vm + "/agent/exec"), onMachine("VM.GuestAgent.Unrestricted"), map[string]field{"command": {check: anything, required: true, list: true}, "input-data": optional(atMost(65536))}, orGuest((*call).agentExec, (*call).guestExec)},
		{"GET", at(vm + "/agent/file-read"), onMachine("VM.GuestAgent.FileRead", "VM.GuestAgent.Unrestricted"), map[string]field{"file": required(anything)}, orGuest((*call).agentFileRead, (*call).guestFileRead)},
		{"GET", at(vm + "/agent/exec-status"), onMachine("VM.GuestAgent.Unrestricted"), map[string]field{"pid": required(integer(0, most))}, orGuest((*call).agentExecStatus, (*call).guestExecStatus)},
		{"GET", at("pools"), nil, map[string]field{"poolid": optional(anything), "type": optional(anything)}, (*call).listPools},
		{"GET", at("pools/{poolid}"), func(c *call) error {
			if c.s.pools[c.params["poolid"]] == nil {
				return nil
			}
			return c.need("/pool/"+c.params["poolid"], "Pool.Audit")
		}, map[string]field{"type": optional(anything)}, (*call).getPool},
	}
}
