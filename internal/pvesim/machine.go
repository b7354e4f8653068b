package pvesim

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// machine is one virtual machine.
type machine struct {
	id        int
	node      string
	config    map[string]string // as its file has it
	pending   map[string]string // what applies at the next start; "" deletes
	snapshots map[string]*snapshot
	running   bool
	paused    bool
	pid       int
	started   time.Time
	lock      string
	guest     Guest
	commands  map[int]*guestCommand
	turning   sync.Mutex // held while the backend starts or stops it, or says whether it runs
}

// snapshot is one of a machine.
type snapshot struct {
	config map[string]string
	at     time.Time
	parent string
	text   string
	state  bool
}

// Guest is what runs in a machine.
type Guest struct {
	// NoAgent says that no agent runs there; AgentAfter how long after the start it does.
	NoAgent    bool
	AgentAfter time.Duration
	// Addresses are what the agent reports, with prefix lengths; none: the static one, or
	// 10.99.0.77/24. A MAC before it and a space says of which card, else it is net0's.
	Addresses []string
	// IgnoresACPI says that it does not react to a shutdown.
	IgnoresACPI bool
}

type guestCommand struct {
	status int
	out    string
	until  time.Time
}

func newUUID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func newMAC() string {
	b := make([]byte, 3)
	_, _ = rand.Read(b)
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", b[0], b[1], b[2])
}

// digest is the checksum of the machine's file.
func (m *machine) digest() string {
	h := sha1.New()
	for _, k := range slices.Sorted(maps.Keys(m.config)) {
		_, _ = fmt.Fprintf(h, "%s: %s\n", k, m.config[k])
	}
	for _, k := range slices.Sorted(maps.Keys(m.pending)) {
		_, _ = fmt.Fprintf(h, "[PENDING] %s: %s\n", k, m.pending[k])
	}
	for _, k := range slices.Sorted(maps.Keys(m.snapshots)) {
		_, _ = fmt.Fprintf(h, "[%s] %v\n", k, m.snapshots[k].config)
	}
	_, _ = fmt.Fprintf(h, "lock: %s\n", m.lock)
	return hex.EncodeToString(h.Sum(nil))
}

// typed is a value as answers have it.
func typed(key, value string) any {
	if _, ok := whole[key]; ok {
		if n, err := strconv.Atoi(value); err == nil {
			return n
		}
	}
	if key == "cipassword" {
		return "**********"
	}
	return value
}

// machine finds the one that the path names, on the node that it names.
func (c *call) machine(missing string) (*machine, error) {
	m := c.s.machines[c.vmid]
	if m == nil || m.node != c.node.Name {
		return nil, c.absent(missing)
	}
	return m, nil
}

const (
	noFile  = "Configuration file 'nodes/%[2]s/qemu-server/%[1]d.conf' does not exist"
	noFile2 = "unable to find configuration file for VM %[1]d on node '%[2]s'"
)

func (c *call) absent(how string) error { return failed(how, c.vmid, c.node.Name) }

func (m *machine) locked() error {
	if m.lock != "" {
		return failed("VM is locked (%s)", m.lock)
	}
	return nil
}

func (c *call) getConfig() (any, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	if name := c.params["snapshot"]; name != "" {
		sn := m.snapshots[name]
		if sn == nil {
			return nil, failed("snapshot '%s' does not exist", name)
		}
		out := sn.shown()
		out["digest"] = m.digest()
		if _, ok := out["cipassword"]; ok {
			out["cipassword"] = typed("cipassword", "")
		}
		return out, nil
	}
	config := maps.Clone(m.config)
	if !c.has("current") {
		m.merge(config)
	}
	out := map[string]any{"digest": m.digest()}
	for k, v := range config {
		out[k] = typed(k, v)
	}
	if m.lock != "" {
		out["lock"] = m.lock
	}
	return out, nil
}

// merge applies what is pending.
func (m *machine) merge(config map[string]string) {
	for k, v := range m.pending {
		if v == "" {
			delete(config, k)
		} else {
			config[k] = v
		}
	}
}

func (sn *snapshot) shown() map[string]any {
	out := map[string]any{"snaptime": sn.at.Unix()}
	for k, v := range sn.config {
		out[k] = typed(k, v)
		if k == "cipassword" {
			out[k] = v // as the real one does
		}
	}
	delete(out, "description")
	if sn.text != "" {
		out["description"] = sn.text
	}
	return out
}

func (c *call) getPending() (any, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	out := []map[string]any{{"key": "digest", "value": m.digest()}}
	if m.lock != "" {
		out = append(out, map[string]any{"key": "lock", "value": m.lock})
	}
	for k, v := range m.config {
		one := map[string]any{"key": k, "value": typed(k, v)}
		if p, ok := m.pending[k]; ok && p == "" {
			one["delete"] = 1
		} else if ok {
			one["pending"] = typed(k, p)
		}
		out = append(out, one)
	}
	for k, v := range m.pending {
		if _, ok := m.config[k]; !ok && v != "" {
			out = append(out, map[string]any{"key": k, "pending": typed(k, v)})
		}
	}
	return out, nil
}

// name is what lists call it.
func (m *machine) name() string {
	if n := m.config["name"]; n != "" {
		return n
	}
	return "VM " + strconv.Itoa(m.id)
}

func (m *machine) memory() int {
	if n, err := strconv.Atoi(strings.TrimPrefix(m.config["memory"], "current=")); err == nil {
		return n
	}
	return 512
}

func (m *machine) cpus() int {
	n := 1
	for _, k := range []string{"cores", "sockets"} {
		if v, err := strconv.Atoi(m.config[k]); err == nil {
			n *= v
		}
	}
	return n
}

// bootDisk is the size of the first disk of its boot order.
func (m *machine) bootDisk() int64 {
	for _, name := range strings.Split(strings.TrimPrefix(m.config["boot"], "order="), ";") {
		if d := m.config[name]; d != "" && !strings.Contains(d, "media=cdrom") && !strings.HasPrefix(name, "net") {
			return bytesOf(pairs(d)["size"])
		}
	}
	return 0
}

func (m *machine) agentOn() bool {
	a := pairs(m.config["agent"])
	return a[""] == "1" || a["enabled"] == "1"
}

// current is a machine as status/current shows it (full), or a list.
func (s *Server) current(m *machine, list, full bool) map[string]any {
	out := map[string]any{"vmid": m.id, "name": m.name(), "status": "stopped", "cpus": m.cpus(), "maxmem": int64(m.memory()) << 20, "maxdisk": m.bootDisk(),
		"disk": 0, "mem": 0, "memhost": 0, "netin": 0, "netout": 0, "uptime": 0, "cpu": 0}
	if m.config["template"] == "1" {
		out["template"] = 1
	}
	if t := m.config["tags"]; t != "" {
		out["tags"] = t
	}
	if m.lock != "" {
		out["lock"] = m.lock
	}
	if full {
		out["qmpstatus"] = "stopped"
	}
	if m.running {
		out["status"], out["pid"], out["uptime"] = "running", m.pid, int(s.now().Sub(m.started).Seconds())
		out["netin"] = 110
		for _, kind := range []string{"cpusome", "cpufull", "iosome", "iofull", "memorysome", "memoryfull"} {
			out["pressure"+kind] = 0
		}
		if full {
			out["qmpstatus"] = "running"
			if m.paused {
				out["qmpstatus"] = "paused"
			}
			nics := map[string]any{}
			for k := range m.config {
				if n, ok := strings.CutPrefix(k, "net"); ok {
					nics[fmt.Sprintf("tap%di%s", m.id, n)] = map[string]any{"netin": 110, "netout": 0}
				}
			}
			out["nics"] = nics
		}
	}
	if !list {
		out["ha"] = map[string]any{"managed": 0}
		if m.agentOn() {
			out["agent"] = 1
		}
	}
	return out
}

func (c *call) statusCurrent() (any, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	return c.s.current(m, false, true), nil
}

func (c *call) listMachines() (any, error) {
	all := []map[string]any{}
	for id, m := range c.s.machines {
		if m.node == c.node.Name && c.may("/vms/"+strconv.Itoa(id), "VM.Audit") {
			all = append(all, c.s.current(m, true, c.has("full")))
		}
	}
	return all, nil
}

// set writes what a request changes, or keeps it pending where the machine runs.
func (m *machine) set(key, value string) {
	hot := !slices.Contains([]string{"cores", "sockets", "memory", "cpu", "kvm", "agent", "bios", "machine", "ostype", "scsihw", "balloon", "numa", "vcpus", "vga"}, key)
	if m.running && !hot {
		if m.config[key] == value {
			delete(m.pending, key)
			return
		}
		if m.pending == nil {
			m.pending = map[string]string{}
		}
		m.pending[key] = value
		return
	}
	if value == "" {
		delete(m.config, key)
	} else {
		m.config[key] = value
	}
}

// stored is a value as Proxmox keeps it.
func stored(key, value string) string {
	switch {
	case key == "tags":
		tags := separator.Split(strings.ToLower(strings.TrimSpace(value)), -1)
		slices.Sort(tags)
		return strings.Trim(strings.Join(slices.Compact(tags), ";"), ";")
	case key == "description":
		return strings.TrimSuffix(value, "\n")
	case key == "cipassword" && value != "":
		sum := sha1.Sum([]byte(value))
		return "$5$" + hex.EncodeToString(sum[:4]) + "$" + hex.EncodeToString(sum[4:])
	case key == "ciuser" && value == "":
		return " "
	case strings.HasPrefix(key, "net"):
		first, rest, more := strings.Cut(value, ",")
		if model, mac, _ := strings.Cut(first, "="); mac == "" {
			first = model + "=" + newMAC()
		}
		if more {
			parts := strings.Split(rest, ",")
			slices.Sort(parts)
			first += "," + strings.Join(parts, ",")
		}
		return first
	}
	return value
}

// sshKeys reports whether decoded keys look like such.
func sshKeys(value string) bool {
	text, err := url.PathUnescape(value)
	if err != nil {
		return false
	}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 || !strings.HasPrefix(f[0], "ssh-") && !strings.HasPrefix(f[0], "ecdsa-") && !strings.HasPrefix(f[0], "sk-") {
			return false
		}
	}
	return true
}

// Machine makes a machine by hand. Its configuration is as its file has it; disks named there
// exist afterwards.
func (s *Server) Machine(node string, id int, config map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &machine{id: id, node: node, config: map[string]string{
		"smbios1": "uuid=" + newUUID(), "vmgenid": newUUID(), "meta": fmt.Sprintf("creation-qemu=7.2.22,ctime=%d", s.now().Unix()), "boot": " ",
	}}
	for k, v := range config {
		m.config[k] = stored(k, v)
	}
	for k, v := range m.config {
		if volid := pairs(v)[""]; slices.Contains(drives(), k) && strings.Contains(volid, ":") {
			name, _, _ := strings.Cut(volid, ":")
			if st := s.storage(name); st != nil {
				s.volumes[st.key(node, volid)] = &volume{id: volid, storage: name, size: max(bytesOf(pairs(v)["size"]), 4<<20), vmid: id, format: formatOf(st, volid), at: s.now()}
			}
		}
	}
	s.machines[id] = m
}

// Edit changes a machine by hand, as an administrator does on its node.
func (s *Server) Edit(id int, config map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machines[id]
	for k, v := range config {
		if v == "" {
			delete(m.config, k)
		} else {
			m.config[k] = v
		}
	}
}

// Lock sets or, with "", takes away a machine's lock, as another program does.
func (s *Server) Lock(id int, lock string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machines[id].lock = lock
}

// Hold keeps a machine's lock file for so long from now, as another program does.
func (s *Server) Hold(id int, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[id] = -1
	s.holds++
	mine := s.holds
	s.work.Go(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wait(s.context, d)
		if s.holds == mine {
			s.held[id] = 0
		}
	})
}

// Run starts or stops a machine by hand, at once.
func (s *Server) Run(id int, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.power(s.machines[id], on)
}

// Guest says what runs in a machine, and in those that are cloned from it from now on.
func (s *Server) Guest(id int, g Guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machines[id].guest = g
}

// Remove takes a machine away by hand, with its disks.
func (s *Server) Remove(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.machines[id]; m != nil {
		s.erase(m)
	}
}

// Config is a machine's configuration as its file has it, with its lock and node; nil where
// there is none.
func (s *Server) Config(id int) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.machines[id]
	if m == nil {
		return nil
	}
	out := maps.Clone(m.config)
	maps.Copy(out, map[string]string{"lock": m.lock, "node": m.node, "running": strconv.FormatBool(m.running)})
	return out
}

// IDs are the machines that exist.
func (s *Server) IDs() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.machines))
}

// Digest is of all machines that keep chooses, their snapshots and volumes.
func (s *Server) Digest(keep func(id int) bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := sha1.New()
	for _, id := range slices.Sorted(maps.Keys(s.machines)) {
		if m := s.machines[id]; keep(id) {
			_, _ = fmt.Fprintln(h, id, m.node, m.running, m.paused, m.digest())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.volumes)) {
		if v := s.volumes[key]; keep(v.vmid) {
			_, _ = fmt.Fprintln(h, key, v.size)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// power changes whether a machine runs.
func (s *Server) power(m *machine, on bool) {
	m.running, m.paused = on, false
	if on {
		s.nextPID++
		m.pid, m.started = s.nextPID, s.now()
	}
	m.merge(m.config) // what was pending applies when it is off
	m.pending = nil
}
