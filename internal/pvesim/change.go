package pvesim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// change is what a request asks of a configuration.
type change struct {
	set    map[string]string
	remove []string
	revert []string
}

// asked reads and checks a change, up to what depends on the machine.
func (c *call) asked() (change, error) {
	ch := change{set: map[string]string{}}
	if err := c.rootOnly(); err != nil {
		return ch, err
	}
	given := false
	for k := range c.values {
		if _, ok := configField(k); ok {
			ch.set[k], given = c.params[k], true
		}
	}
	split := func(v string) []string {
		return slices.DeleteFunc(separator.Split(v, -1), func(s string) bool { return s == "" })
	}
	ch.remove, ch.revert = split(c.params["delete"]), split(c.params["revert"])
	if !given && len(ch.remove) == 0 && len(ch.revert) == 0 {
		return ch, failed("no options specified")
	}
	for _, k := range ch.remove {
		if _, ok := configField(k); !ok {
			return ch, wrong("delete", "unknown option '%s'", k)
		}
		if _, both := ch.set[k]; both {
			return ch, wrong("delete", "you can't use '-%s' and -delete %s' at the same time", k, k)
		}
	}
	for _, k := range []string{"args", "lock"} {
		if _, set := ch.set[k]; (set || slices.Contains(ch.remove, k)) && c.user != "root@pam" {
			return ch, failed("only root can set '%s' config", k)
		}
	}
	for k, v := range ch.set {
		if err := c.mayChange(k, v); err != nil {
			return ch, err
		}
	}
	for _, k := range ch.remove {
		if err := c.mayChange(k, ""); err != nil {
			return ch, err
		}
	}
	if keys := ch.set["sshkeys"]; keys != "" && !sshKeys(keys) {
		return ch, failed("SSH public key validation error")
	}
	return ch, nil
}

// mayChange checks the privilege that one key needs.
func (c *call) mayChange(k, v string) error {
	vm := "/vms/" + c.params["vmid"]
	switch {
	case k == "memory" || k == "balloon" || k == "shares":
		return c.need(vm, "VM.Config.Memory")
	case slices.Contains([]string{"cores", "sockets", "cpu", "vcpus", "cpulimit", "cpuunits", "numa"}, k):
		return c.need(vm, "VM.Config.CPU")
	case strings.HasPrefix(k, "ci") || strings.HasPrefix(k, "ipconfig") || k == "sshkeys" || k == "nameserver" || k == "searchdomain":
		return c.need(vm, "VM.Config.Cloudinit", "VM.Config.Network")
	case strings.HasPrefix(k, "net"):
		if err := c.need(vm, "VM.Config.Network"); err != nil {
			return err
		}
		return c.onNet(v)
	case slices.Contains([]string{"bios", "machine", "scsihw", "vga", "args"}, k):
		return c.need(vm, "VM.Config.HWType")
	case slices.Contains(drives(), k):
		if name, _, ok := strings.Cut(v, ":"); ok {
			if _, err := c.s.usable(name); err != nil {
				return err
			}
			if err := c.need("/storage/"+name, "Datastore.AllocateSpace"); err != nil {
				return err
			}
		}
		if strings.Contains(v, "media=cdrom") {
			return c.need(vm, "VM.Config.CDROM")
		}
		return c.need(vm, "VM.Config.Disk")
	}
	return c.need(vm, "VM.Config.Options")
}

// apply carries a change out; the lock file is held.
func (c *call) apply(w waiter, m *machine, ch change) error {
	if d, ok := c.params["digest"]; ok && d != m.digest() {
		return failed("checksum mismatch (file change by other user?)")
	}
	if !c.has("skiplock") {
		if err := m.locked(); err != nil {
			return err
		}
	}
	for _, k := range ch.revert {
		delete(m.pending, k)
	}
	for _, k := range ch.remove {
		if k == "lock" {
			m.lock = ""
			continue
		}
		c.s.detach(m, k, false)
	}
	for k, v := range ch.set {
		switch {
		case k == "lock":
			m.lock = v
		case slices.Contains(drives(), k):
			kept, err := c.s.newDisk(w, m, k, v)
			if err != nil {
				return err
			}
			for name, old := range m.config {
				if strings.HasPrefix(name, "unused") && old == pairs(kept)[""] {
					delete(m.config, name)
				}
			}
			if boot := m.config["boot"]; m.config[k] != kept && strings.Contains(kept, "media=cdrom") && !strings.Contains(boot, k) {
				m.config["boot"] = strings.TrimSpace(boot) + ";" + k
			}
			m.config[k] = kept
		default:
			m.set(k, stored(k, v))
		}
	}
	return nil
}

// detach takes a key away; a disk becomes unused, or is removed for good.
func (s *Server) detach(m *machine, k string, force bool) {
	volid := pairs(m.config[k])[""]
	if !slices.Contains(drives(), k) || volid == "" {
		if force && strings.HasPrefix(k, "unused") {
			s.remove(m, m.config[k])
		}
		m.set(k, "")
		return
	}
	delete(m.config, k)
	if force || strings.Contains(volid, "cloudinit") {
		s.remove(m, volid)
	} else {
		for n := 0; ; n++ {
			if name := "unused" + strconv.Itoa(n); m.config[name] == "" {
				m.config[name] = volid
				break
			}
		}
	}
	order := slices.DeleteFunc(strings.Split(strings.TrimPrefix(m.config["boot"], "order="), ";"), func(d string) bool { return d == k || d == " " || d == "" })
	m.config["boot"] = " "
	if len(order) > 0 {
		m.config["boot"] = "order=" + strings.Join(order, ";")
	}
}

// ready is what PUT and POST check at once: the machine, its lock, the digest.
func (c *call) ready() (*machine, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	if d, ok := c.params["digest"]; ok && d != m.digest() {
		return nil, failed("checksum mismatch (file change by other user?)")
	}
	if c.has("skiplock") {
		return m, nil
	}
	return m, m.locked()
}

func (c *call) putConfig() (any, error) {
	ch, err := c.asked()
	if err != nil {
		return nil, err
	}
	m, err := c.ready()
	if err != nil {
		return nil, err
	}
	release, err := c.s.lockFile(c, m.id, false, lockWithin)
	if err != nil {
		return nil, failed("%s", err.Error())
	}
	defer release()
	if c.s.machines[m.id] != m {
		return nil, c.absent(noFile)
	}
	return nil, c.apply(c, m, ch)
}

func (c *call) postConfig() (any, error) {
	ch, err := c.asked()
	if err != nil {
		return nil, err
	}
	m, err := c.ready()
	if err != nil {
		return nil, err
	}
	upid := c.worker("qmconfig", strconv.Itoa(m.id), func(t *task) error {
		release, err := c.s.lockFile(t, m.id, false, lockWithin)
		if err != nil {
			return err
		}
		defer release()
		for k, v := range ch.set {
			if k == "cipassword" {
				v = "<hidden>"
			}
			t.log(fmt.Sprintf("update VM %d: -%s %s", m.id, k, v))
		}
		return c.apply(t, m, ch)
	})
	if c.params["background_delay"] != "" {
		return nil, c.sleep(100 * time.Millisecond)
	}
	return upid, nil
}

func (c *call) unlink() (any, error) {
	m, err := c.ready()
	if err != nil {
		return nil, err
	}
	for _, k := range separator.Split(c.params["idlist"], -1) {
		if m.config["protection"] == "1" {
			return nil, failed("can't remove drive '%s' - protection mode enabled", k)
		}
		c.s.detach(m, k, c.has("force"))
	}
	return nil, nil
}

func (c *call) resize() (any, error) {
	if err := c.rootOnly(); err != nil {
		return nil, err
	}
	disk, size, digest := c.params["disk"], c.params["size"], c.params["digest"]
	return c.worker("resize", c.params["vmid"], func(t *task) error {
		m, err := c.machine(noFile)
		if err != nil {
			return err
		}
		release, err := c.s.lockFile(t, m.id, false, lockWithin)
		if err != nil {
			return err
		}
		defer release()
		if digest != "" && digest != m.digest() {
			return failed("checksum mismatch (file change by other user?)")
		}
		if err := m.locked(); err != nil {
			return err
		}
		value, ok := m.config[disk]
		v := c.s.owned(m.node, pairs(value)[""])
		switch {
		case !ok:
			return fmt.Errorf("disk '%s' does not exist", disk)
		case strings.Contains(value, "media=cdrom"):
			return fmt.Errorf("you can't resize a cdrom")
		case v == nil:
			return fmt.Errorf("volume '%s' does not exist", pairs(value)[""])
		}
		if c.s.options.Backend != nil && m.running {
			return fmt.Errorf("growing the disk of a machine that really runs is not implemented")
		}
		st := c.s.storage(v.storage)
		want := bytesOf(strings.TrimPrefix(size, "+"))
		if strings.HasPrefix(size, "+") {
			want += v.size
		}
		file := v.id[strings.LastIndexAny(v.id, ":/")+1:]
		path := fmt.Sprintf("%s/images/%d/%s", st.Path, m.id, file)
		resize := fmt.Sprintf("command '/usr/bin/qemu-img resize '--preallocation=metadata' -f %s %s %d' failed: exit code 1", v.format, path, want)
		switch {
		case want < v.size:
			return fmt.Errorf("shrinking disks is not supported")
		case want == v.size:
			return nil
		case strings.HasPrefix(file, "base-"):
			t.log(fmt.Sprintf("qemu-img: Could not open '%[1]s': Could not open '%[1]s': Operation not permitted", path))
			return fmt.Errorf("%s", resize)
		case want > 1<<50:
			t.log("qemu-img: Failed to grow the L1 table: File too large")
			return fmt.Errorf("%s", resize)
		case st.Full || want > st.Size:
			t.log("qemu-img: Failed to resize: No space left on device")
			return fmt.Errorf("%s", resize)
		}
		if err := t.sleep(100 * time.Millisecond); err != nil {
			return err
		}
		v.size = want
		parts := strings.Split(value, ",")
		for i := range parts {
			if strings.HasPrefix(parts[i], "size=") {
				parts[i] = "size=" + sizeOf(want)
			}
		}
		m.config[disk] = strings.Join(parts, ",")
		if v.format == "qcow2" && !m.running {
			t.log("Image resized.")
		}
		return nil
	}), nil
}

func (c *call) listSnapshots() (any, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	now := map[string]any{"name": "current", "description": "You are here!", "running": flag(m.running), "digest": m.digest()}
	if p := m.config["parent"]; p != "" {
		now["parent"] = p
	}
	out := []map[string]any{now}
	for name, sn := range m.snapshots {
		one := map[string]any{"name": name, "description": sn.text, "snaptime": sn.at.Unix(), "vmstate": flag(sn.state)}
		if sn.parent != "" {
			one["parent"] = sn.parent
		}
		out = append(out, one)
	}
	return out, nil
}

func (c *call) snapshotConfig() (any, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	sn := m.snapshots[c.params["snapname"]]
	if sn == nil {
		return nil, failed("snapshot '%s' does not exist", c.params["snapname"])
	}
	return sn.shown(), nil
}

func (c *call) snapshot() (any, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	name, text, state := c.params["snapname"], c.params["description"], c.has("vmstate")
	if name == "current" {
		return nil, failed("unable to use snapshot name 'current' (reserved name)")
	}
	return c.worker("qmsnapshot", strconv.Itoa(m.id), func(t *task) error {
		release, err := c.s.lockFile(t, m.id, false, lockWithin)
		if err != nil {
			return err
		}
		defer release()
		switch {
		case m.config["template"] == "1":
			return fmt.Errorf("you can't take a snapshot if it's a template")
		case m.lock != "":
			return m.locked()
		case m.snapshots[name] != nil:
			return fmt.Errorf("snapshot name '%s' already used", name)
		}
		var log []string
		for _, k := range disks(m.config) {
			v := c.s.owned(m.node, pairs(m.config[k])[""])
			if v == nil || strings.Contains(m.config[k], "media=cdrom") {
				continue
			}
			if !c.s.storage(v.storage).snapshots(v.format) {
				return fmt.Errorf("snapshot feature is not available")
			}
			log = append(log, fmt.Sprintf("snapshotting 'drive-%s' (%s)", k, v.id))
			if m.running {
				log = append(log, "internal qemu snapshot")
			}
		}
		if m.running {
			t.log("skipping guest filesystem freeze - disabled in VM options")
		}
		m.lock = "snapshot"
		err = t.sleep(100 * time.Millisecond)
		m.lock = ""
		if err != nil {
			return err
		}
		t.lines = append(t.lines, log...)
		sn := &snapshot{config: map[string]string{}, at: c.s.now(), parent: m.config["parent"], text: text, state: state && m.running}
		for k, v := range m.config {
			sn.config[k] = v
		}
		delete(sn.config, "description")
		if m.snapshots == nil {
			m.snapshots = map[string]*snapshot{}
		}
		m.snapshots[name] = sn
		m.config["parent"] = name
		return nil
	}), nil
}

// onSnapshot begins a task that has the machine's lock and its snapshot.
func (c *call) onSnapshot(kind string, m *machine, name string, do func(*task, *snapshot) error) string {
	return c.worker(kind, strconv.Itoa(m.id), func(t *task) error {
		release, err := c.s.lockFile(t, m.id, false, lockWithin)
		if err != nil {
			return err
		}
		defer release()
		sn := m.snapshots[name]
		if sn == nil {
			return fmt.Errorf("snapshot '%s' does not exist", name)
		}
		if err := m.locked(); err != nil {
			return err
		}
		if err := t.sleep(100 * time.Millisecond); err != nil {
			return err
		}
		return do(t, sn)
	})
}

func (c *call) deleteSnapshot() (any, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	name := c.params["snapname"]
	return c.onSnapshot("qmdelsnapshot", m, name, func(_ *task, sn *snapshot) error {
		delete(m.snapshots, name)
		for _, config := range c.s.configs(m) {
			if config["parent"] == name {
				config["parent"] = sn.parent
				if sn.parent == "" {
					delete(config, "parent")
				}
			}
		}
		return nil
	}), nil
}

func (c *call) rollback() (any, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	name, start := c.params["snapname"], c.has("start")
	return c.onSnapshot("qmrollback", m, name, func(t *task, sn *snapshot) error {
		c.s.power(m, false)
		text := m.config["description"]
		m.config = map[string]string{"parent": name, "vmgenid": newUUID()}
		for k, v := range sn.config {
			if k != "parent" && k != "vmgenid" {
				m.config[k] = v
			}
		}
		if text != "" {
			m.config["description"] = text
		}
		for _, k := range disks(m.config) {
			if v := c.s.owned(m.node, pairs(m.config[k])[""]); v != nil && !strings.Contains(m.config[k], "media=cdrom") {
				v.size = bytesOf(pairs(m.config[k])["size"])
			}
		}
		if start {
			c.s.spawn(m.node, "qmstart", strconv.Itoa(m.id), c.user, "", func(t *task) error { return c.s.boot(t, m.node, m.id, false) })
		}
		return nil
	}), nil
}
