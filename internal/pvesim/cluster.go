package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Node is one host.
type Node struct {
	Name  string
	Cores int
	// Memory is in bytes; UsedMemory and Load (0 to 1) are what is measured.
	Memory, UsedMemory int64
	Load               float64
	Offline            bool
	// Bridges are those that exist; none: vmbr0.
	Bridges []string
	// NoKVM says that it can't run machines that want KVM.
	NoKVM bool
}

// resourcePool is one of PVE's pools.
type resourcePool struct {
	comment string
	members []string
}

func (p *resourcePool) has(id string) bool { return slices.Contains(p.members, id) }

func (s *Server) node(name string) *Node {
	for _, n := range s.nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Node changes a host.
func (s *Server) Node(name string, change func(*Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.node(name))
}

// Pool makes a resource pool.
func (s *Server) Pool(name, comment string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools[name] = &resourcePool{comment: comment}
}

func (c *call) version() (any, error) {
	release := c.s.options.Version
	if at := strings.LastIndex(release, "."); at > strings.Index(release, ".") {
		release = release[:at]
	}
	return map[string]any{"version": c.s.options.Version, "release": release, "repoid": "14a22df35955d97d"}, nil
}

func (c *call) listNodes() (any, error) {
	out := []map[string]any{}
	for _, n := range c.s.nodes {
		one := map[string]any{"id": "node/" + n.Name, "node": n.Name, "type": "node", "status": "online", "level": "", "ssl_fingerprint": c.s.Fingerprint()}
		if n.Offline {
			one["status"] = "offline"
		}
		if c.may("/nodes/"+n.Name, "Sys.Audit") && !n.Offline {
			maps.Copy(one, map[string]any{"cpu": n.Load, "maxcpu": n.Cores, "mem": n.UsedMemory, "maxmem": n.Memory, "disk": 11423744, "maxdisk": 12884901888, "uptime": int(c.s.now().Sub(c.s.began).Seconds()) + 4346})
		}
		out = append(out, one)
	}
	return out, nil
}

func (c *call) nodeStatus() (any, error) {
	n := c.node
	return map[string]any{
		"cpu": n.Load, "wait": 0, "idle": 0, "uptime": int(c.s.now().Sub(c.s.began).Seconds()) + 4346, "loadavg": []string{"0.84", "2.11", "9.38"},
		"memory":     map[string]any{"total": n.Memory, "used": n.UsedMemory, "free": n.Memory - n.UsedMemory, "available": n.Memory - n.UsedMemory},
		"rootfs":     map[string]any{"total": 12884901888, "used": 13410304, "avail": 12871491584, "free": 12871491584},
		"swap":       map[string]any{"total": 0, "used": 0, "free": 0},
		"cpuinfo":    map[string]any{"cpus": n.Cores, "cores": n.Cores, "sockets": 1, "model": "simulated", "vendor": "none", "mhz": "2000.000", "family": "0", "flags": "", "hvm": "", "user_hz": 100},
		"ksm":        map[string]any{"shared": 0},
		"boot-info":  map[string]any{"mode": "legacy-bios"},
		"pveversion": "pve-manager/" + c.s.options.Version + "/14a22df35955d97d",
		"kversion":   "Linux simulated", "current-kernel": map[string]any{"machine": "x86_64", "release": "simulated", "sysname": "Linux", "version": "#1"},
	}, nil
}

func (c *call) clusterStatus() (any, error) {
	out := []map[string]any{}
	if len(c.s.nodes) > 1 {
		out = append(out, map[string]any{"id": "cluster", "type": "cluster", "name": "lab", "nodes": len(c.s.nodes), "quorate": flag(!c.s.noQuorum), "version": 3})
	}
	for i, n := range c.s.nodes {
		id := 0
		if len(c.s.nodes) > 1 {
			id = i + 1
		}
		out = append(out, map[string]any{"id": "node/" + n.Name, "type": "node", "name": n.Name, "ip": fmt.Sprintf("10.99.0.%d", i+1), "level": "", "local": flag(i == 0), "nodeid": id, "online": flag(!n.Offline)})
	}
	return out, nil
}

func (c *call) nextID() (any, error) {
	if want := c.params["vmid"]; want != "" {
		id, _ := strconv.Atoi(want)
		if c.s.machines[id] != nil {
			return nil, wrong("vmid", "VM %d already exists", id)
		}
		return want, nil
	}
	for id := 100; ; id++ {
		if c.s.machines[id] == nil {
			return strconv.Itoa(id), nil
		}
	}
}

// resources is the cluster as pvestatd saw it in its last round, but for what was made or
// removed since.
func (c *call) resources() (any, error) {
	s := c.s
	if s.now().Sub(s.statusAt) >= s.options.Round {
		s.statusAt = s.now()
		s.status = map[int]map[string]any{}
		for id, m := range s.machines {
			if n := s.node(m.node); n == nil || n.Offline {
				continue
			}
			s.status[id] = s.resource(m)
		}
	}
	out := []map[string]any{}
	kind := c.params["type"]
	if kind == "" || kind == "vm" {
		for id, m := range s.machines {
			if !c.may("/vms/"+strconv.Itoa(id), "VM.Audit") {
				continue
			}
			one := maps.Clone(s.status[id])
			if one == nil || one["node"] != m.node {
				one = map[string]any{"id": fmt.Sprintf("qemu/%d", id), "type": "qemu", "node": m.node, "vmid": id, "status": "unknown"}
			}
			for name, p := range s.pools {
				if p.has(strconv.Itoa(id)) && c.may("/pool/"+name, "Pool.Audit") {
					one["pool"] = name
				}
			}
			out = append(out, one)
		}
	}
	if kind == "" || kind == "node" {
		for _, n := range s.nodes {
			one := map[string]any{"id": "node/" + n.Name, "type": "node", "node": n.Name, "status": "online", "level": "", "cgroup-mode": 2}
			if n.Offline {
				one["status"] = "offline"
			} else if c.may("/nodes/"+n.Name, "Sys.Audit") {
				maps.Copy(one, map[string]any{"cpu": n.Load, "maxcpu": n.Cores, "mem": n.UsedMemory, "maxmem": n.Memory, "disk": 11423744, "maxdisk": 12884901888, "uptime": 4346})
			}
			out = append(out, one)
		}
	}
	if kind == "" || kind == "storage" {
		for _, n := range s.nodes {
			for _, st := range s.storages {
				if c.may("/storage/"+st.Name, "Datastore.Audit") {
					out = append(out, map[string]any{"id": "storage/" + n.Name + "/" + st.Name, "type": "storage", "node": n.Name, "storage": st.Name, "plugintype": st.Type, "content": st.Content, "shared": flag(st.Shared), "status": "available", "disk": st.Used, "maxdisk": st.Size})
				}
			}
		}
	}
	if kind == "" {
		for name := range s.pools {
			out = append(out, map[string]any{"id": "/pool/" + name, "type": "pool", "pool": name})
		}
	}
	if kind == "" || kind == "sdn" {
		for _, n := range s.nodes {
			out = append(out, map[string]any{"id": "network/" + n.Name + "/zone/localnetwork", "type": "network", "node": n.Name, "status": "ok", "network": "localnetwork", "network-type": "zone"})
		}
	}
	return out, nil
}

func (s *Server) resource(m *machine) map[string]any {
	one := s.current(m, true, false)
	for k := range one {
		if strings.HasPrefix(k, "pressure") || k == "pid" || k == "lock" {
			delete(one, k)
		}
	}
	one["maxcpu"] = one["cpus"]
	delete(one, "cpus")
	maps.Copy(one, map[string]any{"id": fmt.Sprintf("qemu/%d", m.id), "type": "qemu", "node": m.node, "template": flag(m.config["template"] == "1"), "diskread": 0, "diskwrite": 0})
	return one
}

func (c *call) listPools() (any, error) {
	if name := c.params["poolid"]; name != "" {
		p := c.s.pools[name]
		if p == nil {
			return nil, failed("pool '%s' does not exist", name)
		}
		return []any{c.shownPool(name, p, true)}, nil
	}
	out := []any{}
	for name, p := range c.s.pools {
		if c.may("/pool/"+name, "Pool.Audit", "Pool.Allocate") {
			out = append(out, c.shownPool(name, p, false))
		}
	}
	return out, nil
}

func (c *call) getPool() (any, error) {
	p := c.s.pools[c.params["poolid"]]
	if p == nil {
		return nil, failed("pool '%s' does not exist", c.params["poolid"])
	}
	one := c.shownPool(c.params["poolid"], p, true)
	return one, nil
}

func (c *call) shownPool(name string, p *resourcePool, members bool) map[string]any {
	out := map[string]any{"poolid": name}
	if p.comment != "" {
		out["comment"] = p.comment
	}
	if members {
		all := []any{}
		for _, id := range p.members {
			n, _ := strconv.Atoi(id)
			if m := c.s.machines[n]; m != nil {
				one := c.s.resource(m)
				delete(one, "tags")
				all = append(all, one)
			}
		}
		out["members"] = all
	}
	return out
}

func (c *call) listBridges() (any, error) {
	out := []map[string]any{}
	for _, b := range c.node.bridges() {
		if c.may("/sdn/zones/localnetwork/"+b, "SDN.Audit", "SDN.Use", "SDN.Allocate") {
			out = append(out, map[string]any{"iface": b, "type": "bridge", "active": 1, "autostart": 1, "method": "static", "method6": "manual", "priority": 3, "bridge_ports": "", "bridge_fd": "0", "bridge_stp": "off", "address": "10.99.0.1", "netmask": "24", "cidr": "10.99.0.1/24", "families": []string{"inet"}})
		}
	}
	return out, nil
}

func (n *Node) bridges() []string {
	if n.Bridges == nil {
		return []string{"vmbr0"}
	}
	return n.Bridges
}
