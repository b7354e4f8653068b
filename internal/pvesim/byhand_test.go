package pvesim

import (
	"fmt"
	"maps"
	"runtime"
	"time"
)

// until waits for a value of a machine's configuration.
func (s *Server) until(id int, key, value string) {
	for s.Config(id)[key] != value {
		runtime.Gosched()
	}
}

// exists waits for a machine.
func (s *Server) exists(id int) {
	for s.Config(id) == nil {
		runtime.Gosched()
	}
}

// stopped stops a machine by a task, whose request was not recorded.
func (s *Server) stopped(id int) {
	s.Run(id, false)
	s.mu.Lock()
	t := s.spawn("pve1", "qmstop", fmt.Sprint(id), "root@pam!full", "", func(*task) error { return nil })
	s.mu.Unlock()
	s.Wait(t.upid)
}

// locked runs with the server's lock.
func (s *Server) locked(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// small is a machine's configuration as those that were made by hand had it.
func small(id int, more map[string]string) map[string]string {
	out := map[string]string{
		"memory": "64", "kvm": "0", "scsihw": "virtio-scsi-pci", "ostype": "l26", "boot": "order=scsi0", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
		"scsi0": fmt.Sprintf("disks:%[1]d/vm-%[1]d-disk-0.qcow2,size=64M", id),
	}
	maps.Copy(out, more)
	return out
}

// byHand is what was done on the node before an exchange, by no call that was recorded.
var byHand = map[string]func(s *Server){
	"full=0 clone of a VM that is no template":                     func(s *Server) { s.until(8007, "running", "true") },
	"change config of a template":                                  func(s *Server) { s.stopped(8007) },
	"full clone, slow: task started":                               func(s *Server) { s.CopyTakes(time.Hour) },
	"config of the target":                                         func(s *Server) { s.until(130, "ide2", "disks:130/vm-130-cloudinit.qcow2,media=cdrom,size=4M") },
	"second full clone of the same template while one runs: first": func(s *Server) { s.CopyTakes(6 * time.Second) },
	"the clone task itself":                                        func(s *Server) { s.CopyTakes(6 * time.Second) },
	"slow clone to be stopped":                                     func(s *Server) { s.CopyTakes(time.Hour) },
	"stop the task": func(s *Server) {
		for copying := false; !copying; {
			s.locked(func() { copying = s.owned("pve1", "disks:134/vm-134-disk-0.qcow2") != nil })
		}
	},
	"GET config":                          func(s *Server) { s.CopyTakes(300 * time.Millisecond) },
	"PUT cores 1.5":                       func(s *Server) { s.Edit(101, map[string]string{"cores": ""}) },
	"status/current stopped":              func(s *Server) { s.Guest(101, Guest{NoAgent: true}) },
	"cluster/resources with a running VM": func(s *Server) { s.Skip(25 * time.Hour) },
	"no agent configured":                 func(s *Server) { s.Edit(112, map[string]string{"agent": "0"}) },
	"network-get-interfaces, agent running (answer of a stand-in guest)": func(s *Server) {
		s.Guest(103, Guest{Addresses: []string{"bc:24:11:00:00:01 10.99.0.77/24", "bc:24:11:00:00:01 fe80::be24:11ff:fe00:1/64"}})
	},
	"reboot (guest obeys ACPI)":      func(s *Server) { s.Edit(101, map[string]string{"agent": ""}); s.Run(101, true) },
	"shutdown by ACPI (guest obeys)": func(s *Server) { s.until(101, "running", "true") },
	// The clean-up of the power-off before holds the lock file.
	"shutdown forceStop":                      func(s *Server) { s.Run(101, true); s.Hold(101, 100*time.Second) },
	"stop with timeout and overrule-shutdown": func(s *Server) { s.Hold(101, 2*time.Second) },
	"snapshot of running VM":                  func(s *Server) { s.until(101, "running", "true") },
	"delete s1":                               func(s *Server) { s.stopped(101) },
	"lock: clone: GET config":                 func(s *Server) { s.Lock(101, "clone") },
	"lock: backup: GET config":                func(s *Server) { s.Lock(101, "backup") },
	"lock: backup, running: stop":             func(s *Server) { s.Run(101, true) },
	"cluster/resources after":                 func(s *Server) { s.Lock(101, ""); s.Run(101, false); s.Skip(25 * time.Hour) },
	"permissions of root":                     func(s *Server) { s.locked(func() { s.pools["lab"].members = []string{"8005"} }) },
	"limited: resources":                      func(s *Server) { s.Skip(25 * time.Hour) },
	"cloner: PUT memory with VM.Config.Options only": func(s *Server) {
		s.locked(func() { s.detach(s.machines[101], "scsi1", true) })
	},
	"two clones to newid 170 at once: 1":        func(s *Server) { s.exists(170) },
	"two linked clones to newid 171 at once: 2": func(s *Server) { s.exists(171) },
	"running":              func(s *Server) { s.Run(101, true) },
	"protection=1":         func(s *Server) { s.Run(101, false); s.Edit(101, map[string]string{"protection": "1"}) },
	"stopped linked clone": func(s *Server) { s.Edit(101, map[string]string{"protection": ""}) },
	"template without clones": func(s *Server) {
		for _, id := range s.IDs() {
			if id != 9000 {
				s.Remove(id)
			}
		}
	},
	"cluster/resources 11 s later":       func(s *Server) { s.Skip(25 * time.Hour) },
	"cluster/resources 11 s after start": func(s *Server) { s.Skip(25 * time.Hour) },
	"start with a bridge that is missing": func(s *Server) {
		s.Machine("pve1", 601, small(601, map[string]string{"agent": "1", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr77"}))
	},
	"start with a disk that is missing": func(s *Server) {
		s.Edit(601, map[string]string{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0"})
		s.locked(func() { delete(s.volumes, "pve1 disks:601/vm-601-disk-0.qcow2") })
	},
	"cicustom with a missing snippet: PUT": func(s *Server) {
		s.Machine("pve1", 602, small(602, map[string]string{"agent": "1", "ide2": "disks:602/vm-602-cloudinit.qcow2,media=cdrom,size=4M"}))
	},
	"memory larger than the host": func(s *Server) { s.Edit(602, map[string]string{"cicustom": ""}) },
	"shutdown, the guest ignores ACPI, timeout=3": func(s *Server) {
		s.Machine("pve1", 607, small(607, map[string]string{"scsi0": "disks:607/vm-607-disk-0.qcow2,size=1G"}))
		s.Guest(607, Guest{IgnoresACPI: true})
		s.Run(607, true)
	},
	"PUT ide2 without the key": func(s *Server) { s.Edit(602, map[string]string{"ide2": ""}) },
	"linked clone to VMID 604 with a stale disk there": func(s *Server) {
		s.Template(602)
		s.Volume("pve1", "disks:604/vm-604-disk-0.qcow2", "", "qcow2", 67108864, 604)
	},
	"status of a tiny storage": func(s *Server) {
		s.Storage(Storage{Name: "tiny", Type: "dir", Path: "/srv/tiny", Content: "images", Size: 204800})
	},
	"status of a disabled storage": func(s *Server) {
		s.Storage(Storage{Name: "tiny", Type: "dir", Path: "/srv/tiny", Content: "images", Size: 204800, Disabled: true})
	},
	"shutdown, the guest ignores ACPI, timeout=40: started": func(s *Server) {
		s.Speed(8) // requests must fit between the waits, on a busy machine too
		s.Machine("pve1", 608, small(608, nil))
		s.Guest(608, Guest{IgnoresACPI: true})
		s.Run(608, true)
	},
	"reboot, the guest ignores ACPI, timeout=40: started": func(s *Server) { s.Run(608, true) },
}

// authorization are headers that the recording names only by their exchange's title.
var authorization = map[string]string{
	"Bearer instead of PVEAPIToken":          "Bearer secret",
	"PVEAPIToken with a space":               "PVEAPIToken root@pam!full=secret",
	"token secret with wrong case of scheme": "pveapitoken=root@pam!full=secret",
	"token without secret":                   "PVEAPIToken=root@pam!full",
}

// differs are exchanges whose answers differ, and why.
var differs = map[string]string{
	"task log while running": "the recorded copy had not begun yet, which is a matter of milliseconds",
	"runner: resources":      "pvestatd's round came after the resize here and before it there",
	"cloner: resources":      "pvestatd's round came after the resize here and before it there",
	"gzip accepted":          "the simulator compresses nothing",
	"cluster tasks":          "which tasks are the last 25 depends on those that were not recorded",
	"get members":            "of a pool that was made by a method that the simulator does not have",
}

// absent are the methods that the simulator leaves out: the driver does not call them.
var absent = []string{
	"tickets", "another run of the races", "GET /access/domains", "GET /access/users", "PUT /access/password", "POST /pools", "PUT /pools", "GET /storage", "POST /storage",
	"GET /nodes/pve1", "GET /nodes/pve1/qemu/101/cloudinit", "PUT /nodes/pve1/qemu/101/cloudinit", "GET /nodes/pve1/qemu/101/agent", "GET /nodes/pve1/qemu/101/migrate",
	"GET /nodes/pve1/qemu/777", "POST /nodes/pve1/qemu/101/vncproxy",
	"DELETE /access/users/ci@pve/token/new1",
	"DELETE /pools?poolid=p2",
	"DELETE /pools?poolid=p2%2Fsub",
	"GET /access/users/ci@pve/token",
	"GET /api2/extjs/nodes/pve1/qemu/777/config",
	"GET /api2/extjs/version",
	"GET /api2/html/version",
	"GET /nodes/pve1/qemu/101/cloudinit/dump?type=meta",
	"GET /nodes/pve1/qemu/101/cloudinit/dump?type=network",
	"GET /nodes/pve1/qemu/101/cloudinit/dump?type=user",
	"GET /nodes/pve1/qemu/101/migrate?target=pve2",
	"POST /access/users/ci@pve/token/new1",
	"POST /api2/extjs/nodes/pve1/qemu/9000/clone",
	"PUT /storage/tiny",

	// Recorded without an answer.
	"GET /version", "PUT /nodes/pve1/qemu/101/config",
}
