package pvesim

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Backend really runs the machines of a cluster. Without one they are records alone: the
// simulator notes that they run, and answers for their guests.
//
//	qmclone ──► Clone     qmstart ──► Start     qmshutdown ──► Shutdown, then Running until it is not
//	qmdestroy ► Delete    qmstop ───► Stop      each request ► Running     agent/… ──► Agent
//
// Before each request about a machine the simulator asks whether it runs, so that a guest which
// ends itself is a stopped machine. Operations without a method here, such as snapshots, answer
// 501. Server's methods that do something by hand change records alone.
//
// No method is called with the cluster's lock. Errors are texts for a task's log.
type Backend interface {
	// Clone makes a machine whose disk is a copy of another machine's, or linked to it. A machine
	// made by hand has no disk: its name says which image is meant. If Clone fails, it leaves
	// nothing.
	Clone(ctx context.Context, to, from VM, full bool) error
	// Start makes a machine what it is to be from now on, and starts it.
	Start(ctx context.Context, vm VM) error
	// Shutdown asks the guest to end, and does not wait for that. Stop ends it at once; one that
	// has ended is no error.
	Shutdown(ctx context.Context, vm VM) error
	Stop(ctx context.Context, vm VM) error
	// Delete removes a machine that does not run, and its disk. One that isn't there is no error.
	Delete(ctx context.Context, vm VM) error
	// Running says whether it runs. One that isn't there does not.
	Running(ctx context.Context, vm VM) (bool, error)
	// Agent gives the guest's agent a command, such as guest-ping, and returns its answer.
	Agent(ctx context.Context, vm VM, command string, arguments map[string]any) (json.RawMessage, error)
}

// VM is what a machine's configuration comes to. It has the first disk and card alone.
type VM struct {
	ID   int
	Node string
	// UUID is the machine's own as long as it exists, on each node.
	UUID, Name string
	Cores      int
	Memory     int   // MiB
	Disk       int64 // bytes
	MAC        string
	// Seed are the files that its cloud-init drive has; nil: it has none.
	Seed map[string][]byte
}

// vm is the machine as it is after its next start.
func (s *Server) vm(m *machine) VM {
	config := map[string]string{}
	for k, v := range m.config {
		config[k] = v
	}
	m.merge(config)
	next := &machine{id: m.id, config: config}
	card, _, _ := strings.Cut(config["net0"], ",")
	_, mac, _ := strings.Cut(card, "=")
	vm := VM{ID: m.id, Node: m.node, UUID: pairs(config["smbios1"])["uuid"], Name: next.name(), Cores: next.cpus(), Memory: next.memory(), Disk: next.bootDisk(), MAC: strings.ToLower(mac)}
	if hasCloudInit(config) {
		vm.Seed = seed(config, vm)
	}
	return vm
}

func hasCloudInit(config map[string]string) bool {
	return slices.ContainsFunc(disks(config), func(k string) bool { return strings.Contains(config[k], "cloudinit") })
}

// seed is what Proxmox writes for cloud-init, in the form NoCloud; JSON is YAML. Not here are
// the password, as the simulator keeps none that works, and the upgrade of all packages.
func seed(config map[string]string, vm VM) map[string][]byte {
	user := map[string]any{"hostname": vm.Name, "manage_etc_hosts": true, "users": []string{"default"}, "chpasswd": map[string]any{"expire": false}}
	if name := strings.TrimSpace(config["ciuser"]); name != "" {
		user["user"] = name
	}
	if keys, err := url.PathUnescape(config["sshkeys"]); err == nil && keys != "" {
		user["ssh_authorized_keys"] = strings.Split(strings.TrimSpace(keys), "\n")
	}
	ip, subnets := pairs(config["ipconfig0"]), []any{}
	for _, of := range []struct{ address, gateway, dhcp, static string }{{"ip", "gw", "dhcp4", "static"}, {"ip6", "gw6", "dhcp6", "static6"}} {
		switch address := ip[of.address]; address {
		case "":
		case "dhcp":
			subnets = append(subnets, map[string]any{"type": of.dhcp})
		default:
			subnet := map[string]any{"type": of.static, "address": address}
			if gateway := ip[of.gateway]; gateway != "" {
				subnet["gateway"] = gateway
			}
			subnets = append(subnets, subnet)
		}
	}
	network := []any{map[string]any{"type": "physical", "name": "eth0", "mac_address": vm.MAC, "subnets": subnets}}
	if servers := strings.Fields(config["nameserver"]); len(servers) > 0 {
		network = append(network, map[string]any{"type": "nameserver", "address": servers, "search": strings.Fields(config["searchdomain"])})
	}
	text := func(v any) []byte {
		out, _ := json.Marshal(v) // of texts
		return out
	}
	return map[string][]byte{
		"user-data":      append([]byte("#cloud-config\n"), text(user)...),
		"meta-data":      text(map[string]any{"instance-id": vm.UUID}),
		"network-config": text(map[string]any{"version": 1, "config": network}),
	}
}

// unlocked gives mu up for as long as do runs.
func (s *Server) unlocked(do func() error) error {
	s.mu.Unlock()
	defer s.mu.Lock()
	return do()
}

// turn starts a machine or stops it at once, and notes that.
func (s *Server) turn(ctx context.Context, m *machine, on bool) error {
	if b := s.options.Backend; b != nil {
		do, vm := b.Stop, s.vm(m)
		if on {
			do = b.Start
		}
		// Nobody else may ask whether it runs until the new state is noted: an older answer would
		// overwrite that.
		defer m.turning.Unlock()
		if err := s.unlocked(func() error { m.turning.Lock(); return do(ctx, vm) }); err != nil {
			return err
		}
	}
	s.power(m, on)
	return nil
}

// observe notes whether a machine really runs.
func (s *Server) observe(ctx context.Context, m *machine) error {
	vm, runs := s.vm(m), false
	defer m.turning.Unlock()
	err := s.unlocked(func() (err error) {
		m.turning.Lock()
		runs, err = s.options.Backend.Running(ctx, vm)
		return err
	})
	if err != nil {
		return failed("VM %d: asking whether it runs: %s", m.id, err.Error())
	}
	if runs != m.running {
		s.power(m, runs)
	}
	return nil
}

// shutGuest asks the guest of a machine that really runs to end, and waits so long.
func (s *Server) shutGuest(t *task, m *machine, within time.Duration, force bool) error {
	vm := s.vm(m)
	if err := s.unlocked(func() error { return s.options.Backend.Shutdown(t.ctx, vm) }); err != nil {
		return err
	}
	for end := s.now().Add(within); s.now().Before(end); {
		if err := s.observe(t.ctx, m); err != nil || !m.running {
			return err
		}
		if err := t.sleep(500 * time.Millisecond); err != nil {
			return err
		}
	}
	if !force {
		return fmt.Errorf("VM quit/powerdown failed - got timeout")
	}
	t.log("VM still running - terminating now with SIGTERM")
	return s.turn(t.ctx, m, false)
}

// recordsAlone are operations that a Backend has no method for, and lists the requests that show
// all machines, each by the last part of its path.
var (
	recordsAlone = []string{"qemu", "snapshot", "rollback", "migrate", "move_disk", "reset", "suspend", "resume"}
	lists        = []string{"qemu", "resources"}
)

// backed refuses what the backend has no method for, and notes which machines run before a
// request reads that.
func (c *call) backed(m *method) error {
	if c.s.options.Backend == nil {
		return nil
	}
	last := ""
	if len(m.path) > 0 {
		last = m.path[len(m.path)-1]
	}
	if m.verb == http.MethodPost && slices.Contains(recordsAlone, last) {
		return &apiError{status: 501, text: fmt.Sprintf("'%s /%s' is not implemented for machines that really run", m.verb, strings.Join(c.path, "/"))}
	}
	var shown []*machine
	for id, one := range c.s.machines {
		if one.config["template"] != "1" && (id == c.vmid || c.vmid == 0 && slices.Contains(lists, last)) {
			shown = append(shown, one)
		}
	}
	for _, one := range shown {
		if err := c.s.observe(c.s.context, one); err != nil {
			return err
		}
	}
	return nil
}

// guest has the agent of a machine that really runs do something, and reads its answer.
func (c *call) guest(m *machine, command string, arguments map[string]any, into any) error {
	vm := c.s.vm(m)
	var said json.RawMessage
	err := c.s.unlocked(func() (err error) {
		said, err = c.s.options.Backend.Agent(c.s.context, vm, command, arguments)
		return err
	})
	if err == nil && into != nil {
		err = json.Unmarshal(said, into)
	}
	if err != nil {
		return failed("Agent error: %s", err.Error())
	}
	return nil
}

// orGuest has the guest itself answer in place of the simulator, where there is one.
func orGuest(simulated, guest func(*call) (any, error)) func(*call) (any, error) {
	return func(c *call) (any, error) {
		if c.s.options.Backend == nil {
			return simulated(c)
		}
		return guest(c)
	}
}

// guestAnswers passes on what the agent says to a command that Proxmox calls as it does.
func (c *call) guestAnswers() (any, error) {
	m, err := c.agent()
	if err != nil {
		return nil, err
	}
	var said json.RawMessage
	err = c.guest(m, "guest-"+c.path[len(c.path)-1], nil, &said)
	return map[string]any{"result": said}, err
}

func (c *call) guestExec() (any, error) {
	m, err := c.agent()
	if err != nil {
		return nil, err
	}
	command := c.lists["command"]
	arguments := map[string]any{"path": command[0], "arg": command[1:], "capture-output": true}
	if input := c.params["input-data"]; input != "" {
		arguments["input-data"] = []byte(input)
	}
	var said json.RawMessage
	err = c.guest(m, "guest-exec", arguments, &said)
	return said, err
}

func (c *call) guestExecStatus() (any, error) {
	m, err := c.agent()
	if err != nil {
		return nil, err
	}
	said := map[string]any{}
	if err := c.guest(m, "guest-exec-status", map[string]any{"pid": c.number("pid", 0)}, &said); err != nil {
		return nil, err
	}
	for k, v := range said { // as Proxmox has it: 1 for true, and texts as they are
		switch v := v.(type) {
		case bool:
			said[k] = flag(v)
		case string:
			text, err := base64.StdEncoding.DecodeString(v)
			if err != nil {
				return nil, failed("Agent error: %s", err.Error())
			}
			said[k] = string(text)
		}
	}
	return said, nil
}

// mostRead is how much of a file Proxmox reads.
const mostRead = 16 << 20

func (c *call) guestFileRead() (any, error) {
	m, err := c.agent()
	if err != nil {
		return nil, err
	}
	var handle int
	if err := c.guest(m, "guest-file-open", map[string]any{"path": c.params["file"], "mode": "rb"}, &handle); err != nil {
		return nil, err
	}
	var read struct {
		Content []byte `json:"buf-b64"`
	}
	err = c.guest(m, "guest-file-read", map[string]any{"handle": handle, "count": mostRead}, &read)
	if closed := c.guest(m, "guest-file-close", map[string]any{"handle": handle}, nil); err == nil {
		err = closed
	}
	return map[string]any{"content": string(read.Content)}, err
}
