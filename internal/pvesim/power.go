package pvesim

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// boot starts a machine, in a task.
func (s *Server) boot(t *task, node string, id int, skiplock bool) error {
	m := s.machines[id]
	if m == nil || m.node != node {
		return fmt.Errorf(noFile, id, node) //nolint:staticcheck // as the server words it
	}
	release, err := s.lockFile(t, id, false, lockWithin)
	if err != nil {
		return err
	}
	defer release()
	n := s.node(node)
	config := map[string]string{}
	for k, v := range m.config {
		config[k] = v
	}
	m.merge(config)
	planned := &machine{config: config}
	switch {
	case s.machines[id] != m:
		return fmt.Errorf(noFile, id, node) //nolint:staticcheck // as the server words it
	case m.config["template"] == "1":
		return fmt.Errorf("you can't start a vm if it's a template")
	case m.lock != "" && !skiplock:
		return m.locked()
	case m.running:
		return fmt.Errorf("VM %d already running", id)
	case n.NoKVM && config["kvm"] != "0":
		return failed("KVM virtualisation configured, but not available. Either disable in VM configuration or enable in BIOS.")
	}
	for _, volid := range pairs(config["cicustom"]) {
		if volid != "" && s.owned(node, volid) == nil {
			return fmt.Errorf("volume '%s' does not exist", volid)
		}
	}
	if s.options.Backend != nil && config["cicustom"] != "" {
		return fmt.Errorf("cicustom is not implemented for machines that really run")
	}
	if hasCloudInit(config) {
		t.log("generating cloud-init ISO")
	}
	if planned.cpus() > n.Cores {
		return fmt.Errorf("MAX %d vcpus allowed per VM on this node", n.Cores)
	}
	for k, v := range config {
		bridge := pairs(v)["bridge"]
		if strings.HasPrefix(k, "net") && bridge != "" && !slices.Contains(n.bridges(), bridge) {
			return fmt.Errorf("bridge '%s' does not exist", bridge)
		}
	}
	for _, k := range disks(config) {
		volid := pairs(config[k])[""]
		if strings.Contains(volid, ":") && s.owned(node, volid) == nil {
			return fmt.Errorf("volume '%s' does not exist", volid)
		}
	}
	if int64(planned.memory()) > 1<<20 {
		t.log("kvm: Address space limit 0xffffffffff < 0x4fbffffffff phys-bits too low (40)")
		return fmt.Errorf("start failed: QEMU exited with code 1")
	}
	used := int64(planned.memory()) << 20
	for _, other := range s.machines {
		if other.running && other.node == node {
			used += int64(other.memory()) << 20
		}
	}
	if used > n.Memory {
		t.log("kvm: cannot set up guest memory 'pc.ram': Cannot allocate memory")
		return fmt.Errorf("start failed: QEMU exited with code 1")
	}
	if err := t.sleep(1500 * time.Millisecond); err != nil {
		return err
	}
	return s.turn(t.ctx, m, true)
}

func (c *call) start() (any, error) {
	if err := c.rootOnly(); err != nil {
		return nil, err
	}
	node, id, skip := c.node.Name, c.vmid, c.has("skiplock")
	return c.worker("qmstart", strconv.Itoa(id), func(t *task) error { return c.s.boot(t, node, id, skip) }), nil
}

func (c *call) stop() (any, error) {
	if err := c.rootOnly(); err != nil {
		return nil, err
	}
	overrule, skip := c.has("overrule-shutdown"), c.has("skiplock")
	return c.worker("qmstop", strconv.Itoa(c.vmid), func(t *task) error {
		m, err := c.machine(noFile2)
		if err != nil {
			return err
		}
		if overrule {
			var ended []string
			for _, other := range c.s.tasks {
				if other.kind == "qmshutdown" && other.id == t.id && other.node == t.node && other.ended.IsZero() {
					ended = append(ended, other.upid)
					other.stop()
				}
			}
			if len(ended) > 0 {
				t.log("overruled qmshutdown tasks: " + strings.Join(ended, ", "))
				for slices.ContainsFunc(c.s.tasks, func(o *task) bool { return slices.Contains(ended, o.upid) && o.ended.IsZero() }) {
					if err := t.sleep(20 * time.Millisecond); err != nil {
						return err
					}
				}
			}
		}
		if !m.running {
			return nil
		}
		release, err := c.s.lockFile(t, m.id, false, lockWithin)
		if err != nil {
			return err
		}
		defer release()
		if !m.running {
			return nil
		}
		if m.lock != "" && !skip {
			return m.locked()
		}
		if err := t.sleep(time.Second); err != nil {
			return err
		}
		return c.s.turn(t.ctx, m, false)
	}), nil
}

// turnOff asks the guest to end, and waits so long.
func (c *call) turnOff(t *task, m *machine, within time.Duration, force bool) error {
	if c.s.options.Backend != nil {
		return c.s.shutGuest(t, m, within, force)
	}
	if m.agentOn() && !c.s.agentRuns(m) {
		if err := t.sleep(3 * time.Second); err != nil {
			return err
		}
		t.log(fmt.Sprintf("QEMU Guest Agent is not running - VM %d qga command 'guest-ping' failed - got timeout", m.id))
	}
	if m.guest.IgnoresACPI {
		if err := t.sleep(within); err != nil {
			return err
		}
		if !force {
			return fmt.Errorf("VM quit/powerdown failed - got timeout")
		}
		t.log("VM still running - terminating now with SIGTERM")
	}
	if err := t.sleep(time.Second); err != nil {
		return err
	}
	c.s.power(m, false)
	return nil
}

func (c *call) shutdown() (any, error) {
	if err := c.rootOnly(); err != nil {
		return nil, err
	}
	within, force := time.Duration(c.number("timeout", 180))*time.Second, c.has("forceStop")
	return c.worker("qmshutdown", strconv.Itoa(c.vmid), func(t *task) error {
		m, err := c.machine(noFile2)
		if err != nil {
			return err
		}
		if !m.running {
			return nil
		}
		release, err := c.s.lockFile(t, m.id, false, lockWithin)
		if err != nil {
			return err
		}
		defer release()
		if !m.running {
			return nil
		}
		if err := m.locked(); err != nil {
			return err
		}
		return c.turnOff(t, m, within, force)
	}), nil
}

func (c *call) reboot() (any, error) {
	m, err := c.machine(noFile2)
	if err != nil {
		return nil, err
	}
	if !m.running {
		return nil, failed("VM %d not running", m.id)
	}
	within := time.Duration(c.number("timeout", 180)) * time.Second
	return c.worker("qmreboot", strconv.Itoa(m.id), func(t *task) error {
		release, err := c.s.lockFile(t, m.id, false, lockWithin)
		if err != nil {
			return err
		}
		defer release()
		if err := c.turnOff(t, m, within, false); err != nil {
			return err
		}
		c.s.spawn(m.node, "qmstart", strconv.Itoa(m.id), c.user, "", func(t *task) error { return c.s.boot(t, m.node, m.id, false) })
		return nil
	}), nil
}

// quick is a task of a running machine that only changes its state.
func (c *call) quick(kind string, do func(m *machine)) (any, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	if !m.running {
		return nil, failed("VM %d not running", m.id)
	}
	return c.worker(kind, strconv.Itoa(m.id), func(t *task) error {
		if err := m.locked(); err != nil {
			return err
		}
		do(m)
		return nil
	}), nil
}

func (c *call) reset() (any, error) { return c.quick("qmreset", func(*machine) {}) }
func (c *call) suspend() (any, error) {
	return c.quick("qmpause", func(m *machine) { m.paused = true })
}
func (c *call) resume() (any, error) {
	return c.quick("qmresume", func(m *machine) { m.paused = false })
}

func (s *Server) agentRuns(m *machine) bool {
	return m.running && !m.guest.NoAgent && !s.now().Before(m.started.Add(m.guest.AgentAfter))
}

// agent is the machine, if its guest's agent answers.
func (c *call) agent() (*machine, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	switch {
	case !m.agentOn():
		return nil, failed("No QEMU guest agent configured")
	case !m.running:
		return nil, failed("VM %d is not running", m.id)
	case c.s.options.Backend != nil:
		if c.guest(m, "guest-ping", nil, nil) != nil {
			return nil, failed("QEMU guest agent is not running")
		}
	case !c.s.agentRuns(m):
		if err := c.sleep(3 * time.Second); err != nil {
			return nil, err
		}
		return nil, failed("QEMU guest agent is not running")
	}
	return m, nil
}

func (c *call) agentPing() (any, error) {
	_, err := c.agent()
	return map[string]any{"result": map[string]any{}}, err
}

func (c *call) agentHostName() (any, error) {
	_, err := c.agent()
	return map[string]any{"result": map[string]any{"host-name": "guest"}}, err
}

func (c *call) agentUnknown() (any, error) {
	_, err := c.agent()
	name := c.path[len(c.path)-1]
	return map[string]any{"result": map[string]any{"error": map[string]any{"class": "CommandNotFound", "desc": "The command guest-" + name + " has not been found"}}}, err
}

func (c *call) agentInterfaces() (any, error) {
	m, err := c.agent()
	if err != nil {
		return nil, err
	}
	address := func(p netip.Prefix) map[string]any {
		kind := "ipv4"
		if p.Addr().Is6() {
			kind = "ipv6"
		}
		return map[string]any{"ip-address": p.Addr().String(), "ip-address-type": kind, "prefix": p.Bits()}
	}
	nic := func(name, mac string, all ...netip.Prefix) map[string]any {
		list := []any{}
		for _, p := range all {
			list = append(list, address(p))
		}
		return map[string]any{"name": name, "hardware-address": mac, "ip-addresses": list}
	}
	first, _, _ := strings.Cut(m.config["net0"], ",")
	_, own, _ := strings.Cut(first, "=")
	own = strings.ToLower(own)
	out := []any{nic("lo", "00:00:00:00:00:00", netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("::1/128"))}
	reported := m.guest.Addresses
	if reported == nil {
		reported = []string{"10.99.0.77/24"}
		if ip := pairs(m.config["ipconfig0"])["ip"]; ip != "" && ip != "dhcp" {
			reported = []string{ip}
		}
		reported = append(reported, "fe80::be24:11ff:fe00:1/64")
	}
	macs, cards := []string{}, map[string][]netip.Prefix{}
	for _, r := range reported {
		mac, prefix, ok := strings.Cut(r, " ")
		if !ok {
			mac, prefix = own, r
		}
		if p, err := netip.ParsePrefix(prefix); err == nil {
			if cards[mac] == nil {
				macs = append(macs, mac)
			}
			cards[mac] = append(cards[mac], p)
		}
	}
	for i, mac := range macs {
		out = append(out, nic("eth"+strconv.Itoa(i), mac, cards[mac]...))
	}
	return map[string]any{"result": out}, nil
}

func (c *call) agentExec() (any, error) {
	m, err := c.agent()
	if err != nil {
		return nil, err
	}
	g := &guestCommand{until: c.s.now().Add(500 * time.Millisecond)}
	if c.s.Commands != nil {
		g.status, g.out = c.s.Commands(m.id, c.lists["command"])
	}
	if m.commands == nil {
		m.commands = map[int]*guestCommand{}
	}
	c.s.nextPID++
	m.commands[c.s.nextPID] = g
	return map[string]any{"pid": c.s.nextPID}, nil
}

func (c *call) agentFileRead() (any, error) {
	m, err := c.agent()
	if err != nil {
		return nil, err
	}
	file := c.params["file"]
	if c.s.Files != nil {
		if content, has := c.s.Files(m.id, file); has {
			return map[string]any{"content": content}, nil
		}
	}
	return nil, failed("Agent error: failed to open file '%s' (mode: 'rb'): No such file or directory", file)
}

func (c *call) agentExecStatus() (any, error) {
	m, err := c.agent()
	if err != nil {
		return nil, err
	}
	pid := c.number("pid", 0)
	g := m.commands[pid]
	if g == nil {
		return nil, failed("Agent error: PID %d does not exist", pid)
	}
	if c.s.now().Before(g.until) {
		return map[string]any{"exited": 0}, nil
	}
	return map[string]any{"exited": 1, "exitcode": g.status, "out-data": g.out}, nil
}
