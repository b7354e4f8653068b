package pvesim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// rootOnly refuses what only root himself may do, whose tokens may not.
func (c *call) rootOnly() error {
	if c.has("skiplock") && c.user != "root@pam" {
		return wrong("skiplock", "Only root may use this option.")
	}
	return nil
}

// allowNew is the condition of making a machine, which names nothing that is missing.
func (c *call) allowNew(id string) error {
	if pool := c.params["pool"]; pool != "" {
		if c.s.pools[pool] == nil && c.may("/vms/"+id, "VM.Allocate") {
			return refused("pool '%s' does not exist", pool)
		}
		if c.may("/pool/"+pool, "VM.Allocate") {
			return nil
		}
	}
	if !c.may("/vms/"+id, "VM.Allocate") {
		return refused("")
	}
	return nil
}

func allowCreate(c *call) error {
	if vmidCheck(c.params["vmid"]) != "" {
		return nil // the parameters are what is wrong
	}
	return c.allowNew(c.params["vmid"])
}

func allowClone(c *call) error {
	if err := c.need("/vms/"+c.params["vmid"], "VM.Clone"); err != nil {
		return err
	}
	if strings.HasPrefix(c.params["newid"], "HASH") {
		return refused("")
	}
	if vmidCheck(c.params["newid"]) != "" {
		return nil
	}
	return c.allowNew(c.params["newid"])
}

// onNet checks the bridge of a network card.
func (c *call) onNet(value string) error {
	p := pairs(value)
	if p["bridge"] == "" {
		return nil
	}
	path := "/sdn/zones/localnetwork/" + p["bridge"]
	if p["tag"] != "" {
		path += "/" + p["tag"]
	}
	return c.need(path, "SDN.Use")
}

// disks are the names of a configuration's drives, sorted.
func disks(config map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(config)) {
		if slices.Contains(drives(), k) {
			out = append(out, k)
		}
	}
	return out
}

func (c *call) create() (any, error) {
	id := c.number("vmid", 0)
	config := map[string]string{}
	for k := range c.values {
		if _, ok := configField(k); ok {
			config[k] = stored(k, c.params[k])
		}
	}
	if old := c.s.machines[id]; old != nil {
		return nil, failed("unable to create VM %d - VM %d already exists on node '%s'", id, id, old.node)
	}
	for _, k := range disks(config) {
		if name, _, ok := strings.Cut(config[k], ":"); ok {
			if _, err := c.s.usable(name); err != nil {
				return nil, err
			}
			if err := c.need("/storage/"+name, "Datastore.AllocateSpace"); err != nil {
				return nil, err
			}
		}
	}
	for k, v := range config {
		if strings.HasPrefix(k, "net") {
			if err := c.onNet(v); err != nil {
				return nil, err
			}
		}
	}
	m := &machine{id: id, node: c.node.Name, config: map[string]string{}, lock: "create"}
	c.s.machines[id] = m
	if p := c.s.pools[c.params["pool"]]; p != nil {
		p.members = append(p.members, strconv.Itoa(id))
	}
	start := c.has("start")
	return c.worker("qmcreate", strconv.Itoa(id), func(t *task) error {
		err := t.sleep(100 * time.Millisecond)
		for _, k := range disks(config) {
			if err == nil {
				config[k], err = c.s.newDisk(t, m, k, config[k])
			}
		}
		if err != nil {
			c.s.erase(m)
			return fmt.Errorf("unable to create VM %d - %w", id, err)
		}
		maps.Copy(m.config, config)
		m.config["smbios1"], m.config["vmgenid"], m.config["meta"] = "uuid="+newUUID(), newUUID(), fmt.Sprintf("creation-qemu=7.2.22,ctime=%d", c.s.now().Unix())
		if m.config["boot"] == "" {
			m.config["boot"] = " "
		}
		m.lock = ""
		if start {
			t.log("Execute autostart")
			c.s.spawn(m.node, "qmstart", strconv.Itoa(id), c.user, "", func(t *task) error { return c.s.boot(t, m.node, id, false) })
		}
		return nil
	}), nil
}

// newDisk makes the disk that a value asks for, and returns the value that stays.
func (s *Server) newDisk(t waiter, m *machine, key, value string) (string, error) {
	if value == "none,media=cdrom" {
		return value, nil
	}
	p := pairs(value)
	name, what, _ := strings.Cut(p[""], ":")
	st := s.storage(name)
	if st == nil {
		return "", failed("storage '%s' does not exist", name)
	}
	format := p["format"]
	if format == "" || !st.files() {
		format = "raw"
	}
	done := func(v *volume, tail string) string {
		kept := v.id + tail
		t.log(fmt.Sprintf("%s: successfully created disk '%s'", key, kept))
		return kept
	}
	gib, sized := strconv.ParseFloat(what, 64)
	switch {
	case what == "cloudinit":
		format = "raw"
		if st.files() {
			format = "qcow2"
		}
		v, err := s.allocate(t, st, m.node, m.id, "cloudinit", format, 4<<20, nil)
		if err != nil {
			return "", err
		}
		return done(v, ",media=cdrom"), nil
	case p["import-from"] != "":
		from := s.owned(m.node, p["import-from"])
		if from == nil {
			fromName, path, _ := strings.Cut(p["import-from"], ":")
			return "", fmt.Errorf("failed to stat '%s/%s'", s.storage(fromName).Path, path)
		}
		t.log(fmt.Sprintf("create full clone of drive (%s)", from.id))
		v, err := s.copyTo(t, st, m, format, from.size)
		if err != nil {
			return "", err
		}
		return done(v, ",size="+sizeOf(v.size)), nil
	case sized == nil:
		v, err := s.allocate(t, st, m.node, m.id, "disk", format, int64(gib*(1<<30)), nil)
		if err != nil {
			return "", err
		}
		return done(v, ",size="+sizeOf(v.size)), nil
	}
	v := s.owned(m.node, p[""])
	if v == nil {
		return "", failed("unable to find volume '%s'", p[""])
	}
	return v.id + ",size=" + sizeOf(v.size), nil
}

// copyTo makes a full copy of a disk.
func (s *Server) copyTo(t waiter, st *Storage, m *machine, format string, size int64) (*volume, error) {
	v, err := s.allocate(t, st, m.node, m.id, "disk", format, size, nil)
	if err != nil {
		return nil, err
	}
	t.log(fmt.Sprintf("allocated target volume '%s'", v.id))
	t.log(fmt.Sprintf("transferred 0.0 B of %s (0.00%%)", humane(size)))
	for began := s.now(); s.now().Sub(began) < s.copyTakes; { // which may be changed meanwhile
		if err := t.sleep(min(s.copyTakes, 200*time.Millisecond)); err != nil {
			return nil, err
		}
	}
	for range 2 {
		t.log(fmt.Sprintf("transferred %[1]s of %[1]s (100.00%%)", humane(size)))
	}
	return v, nil
}

// CopyTakes is how long a full copy of a disk takes, one that is going on included.
func (s *Server) CopyTakes(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copyTakes = d
}

// erase takes a machine away with the disks that it refers to.
func (s *Server) erase(m *machine) {
	for _, config := range s.configs(m) {
		for k, d := range config {
			if slices.Contains(drives(), k) || strings.HasPrefix(k, "unused") {
				s.remove(m, pairs(d)[""])
			}
		}
	}
	delete(s.machines, m.id)
	delete(s.status, m.id)
	for _, p := range s.pools {
		p.members = slices.DeleteFunc(p.members, func(id string) bool { return id == strconv.Itoa(m.id) })
	}
}

func (s *Server) configs(m *machine) []map[string]string {
	all := []map[string]string{m.config}
	for _, sn := range m.snapshots {
		all = append(all, sn.config)
	}
	return all
}

// remove deletes a machine's volume and returns it.
func (s *Server) remove(m *machine, volid string) *volume {
	v := s.owned(m.node, volid)
	if v != nil && v.vmid == m.id {
		delete(s.volumes, s.storage(v.storage).key(m.node, volid))
		return v
	}
	return nil
}

func (c *call) destroy() (any, error) {
	if err := c.rootOnly(); err != nil {
		return nil, err
	}
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	if m.config["protection"] == "1" {
		return nil, failed("can't remove VM %d - protection mode enabled", m.id)
	}
	if m.running {
		return nil, failed("VM %d is running - destroy failed", m.id)
	}
	purge, unreferenced := c.has("purge"), c.has("destroy-unreferenced-disks")
	return c.worker("qmdestroy", strconv.Itoa(m.id), func(t *task) error {
		release, err := c.s.lockFile(t, m.id, false, lockWithin)
		if err != nil {
			return err
		}
		defer release()
		if c.s.machines[m.id] != m {
			return c.absent(noFile)
		}
		if err := m.locked(); err != nil {
			return err
		}
		if m.running {
			return failed("VM %d is running - destroy failed", m.id)
		}
		for _, k := range disks(m.config) {
			for _, v := range c.s.volumes {
				if volid := pairs(m.config[k])[""]; v.base != "" && v.base == volid {
					if err := t.sleep(2 * time.Second); err != nil {
						return err
					}
					return fmt.Errorf("base volume '%s' is still in use by linked cloned", volid)
				}
			}
		}
		if err := t.sleep(100 * time.Millisecond); err != nil {
			return err
		}
		if b := c.s.options.Backend; b != nil {
			vm := c.s.vm(m)
			if err := c.s.unlocked(func() error { return b.Delete(t.ctx, vm) }); err != nil {
				return err
			}
		}
		for _, k := range disks(m.config) {
			volid := pairs(m.config[k])[""]
			name, file, _ := strings.Cut(volid, ":")
			switch st, v := c.s.storage(name), c.s.remove(m, volid); {
			case st == nil:
			case v == nil && st.files():
				t.log(fmt.Sprintf("disk image '%s/images/%s' does not exist", st.Path, file))
			case v != nil && st.Type == "lvm":
				t.log(fmt.Sprintf("  Logical volume \"%s\" successfully removed.", file))
			}
		}
		c.s.erase(m)
		if unreferenced {
			maps.DeleteFunc(c.s.volumes, func(key string, v *volume) bool {
				return v.vmid == m.id && v.content == "" && (strings.HasPrefix(key, m.node+" ") || strings.HasPrefix(key, " "))
			})
		}
		if purge {
			t.log(fmt.Sprintf("purging VM %d from related configurations..", m.id))
		}
		return nil
	}), nil
}

func (c *call) clone() (any, error) {
	s := c.s
	newid := c.number("newid", 0)
	if target := c.params["target"]; target != "" && s.node(target) == nil {
		return nil, failed("no such cluster node '%s'", target)
	}
	var to *Storage
	if name := c.params["storage"]; name != "" && (c.has("full")) {
		st, err := s.usable(name)
		if err != nil {
			return nil, err
		}
		to = st
	}
	m, err := c.machine(noFile2)
	if err != nil {
		return nil, err
	}
	if err := m.locked(); err != nil {
		return nil, err
	}
	config := maps.Clone(m.config)
	if name := c.params["snapname"]; name != "" {
		sn := m.snapshots[name]
		if sn == nil {
			return nil, failed("snapshot '%s' does not exist", name)
		}
		config = maps.Clone(sn.config)
	}
	full := c.has("full") || c.params["full"] == "" && m.config["template"] != "1"
	if !full {
		for _, k := range []string{"storage", "format"} {
			if c.params[k] != "" {
				return nil, failed("parameter '%s' not allowed for linked clones", k)
			}
		}
	}
	if s.machines[newid] != nil {
		return nil, failed("unable to create VM %d: config file already exists", newid)
	}
	node := m.node
	if target := c.params["target"]; target != "" {
		node = target
	}
	for _, k := range disks(config) {
		volid := pairs(config[k])[""]
		v := s.owned(m.node, volid)
		if v == nil {
			continue
		}
		st := s.storage(v.storage)
		if node != m.node && !st.Shared {
			return nil, failed("can't clone VM to node '%s' (VM uses local storage)", node)
		}
		cdrom := strings.Contains(config[k], "media=cdrom")
		if !full && !cdrom && (m.config["template"] != "1" || !st.snapshots(v.format)) {
			return nil, failed("Linked clone feature is not supported for '%s' (%s)", volid, k)
		}
		name := st.Name
		if to != nil {
			name = to.Name
		}
		if err := c.need("/storage/"+name, "Datastore.AllocateSpace"); err != nil {
			return nil, err
		}
	}
	for _, k := range slices.Sorted(maps.Keys(config)) {
		if strings.HasPrefix(k, "net") {
			if err := c.onNet(config[k]); err != nil {
				return nil, err
			}
		}
	}
	fresh := maps.Clone(config)
	for k, v := range config {
		if strings.HasPrefix(k, "net") {
			first, rest, _ := strings.Cut(v, ",")
			model, _, _ := strings.Cut(first, "=")
			fresh[k] = model + "=" + newMAC() + "," + rest
		}
		if slices.Contains(drives(), k) && s.owned(m.node, pairs(v)[""]) != nil || strings.HasPrefix(k, "unused") {
			delete(fresh, k)
		}
	}
	delete(fresh, "template")
	delete(fresh, "parent")
	fresh["smbios1"], fresh["vmgenid"] = "uuid="+newUUID(), newUUID()
	if name := c.params["name"]; name != "" {
		fresh["name"] = name
	} else if config["name"] != "" {
		fresh["name"] = "Copy-of-VM-" + config["name"]
	} else {
		fresh["name"] = fmt.Sprintf("Copy-of-VM-%d", m.id)
	}
	if text, ok := c.params["description"]; ok {
		fresh["description"] = stored("description", text)
	}
	pool, wantFormat := c.params["pool"], c.params["format"]
	return c.worker("qmclone", strconv.Itoa(m.id), func(t *task) error {
		release, err := s.lockFile(t, newid, false, time.Second)
		if err != nil {
			return err
		}
		defer release()
		if s.machines[newid] != nil {
			return failed("unable to create VM %d: config file already exists", newid)
		}
		clone := &machine{id: newid, node: node, config: fresh, lock: "clone", guest: m.guest}
		s.machines[newid] = clone
		if p := s.pools[pool]; p != nil {
			p.members = append(p.members, strconv.Itoa(newid))
		}
		fails := func(err error) error {
			s.erase(clone)
			for key, v := range s.volumes {
				if v.vmid == newid && !v.at.Before(t.began) {
					delete(s.volumes, key)
				}
			}
			return fmt.Errorf("clone failed: %w", err)
		}
		releaseSource, err := s.lockFile(t, m.id, true, lockWithin)
		if err != nil {
			return fails(err)
		}
		defer releaseSource()
		t.log(fmt.Sprintf("creating a clone of VM %d with ID %d", m.id, newid))
		for _, k := range disks(config) {
			from := s.owned(m.node, pairs(config[k])[""])
			if from == nil {
				continue
			}
			value, err := s.cloneDisk(t, clone, config, k, from, to, wantFormat, full)
			if err != nil {
				if t.ctx.Err() != nil {
					path := func(st *Storage, id int, kind string) string {
						return fmt.Sprintf("%s/images/%d/%s-%d-disk-0.%s", st.Path, id, kind, id, from.format)
					}
					st := s.storage(from.storage)
					err = fmt.Errorf("copy failed: command '/usr/bin/qemu-img convert -p -n -f %s -O %s %s zeroinit:%s' failed: %w", from.format, from.format, path(st, m.id, "base"), path(st, newid, "vm"), errInterrupted)
				}
				return fails(err)
			}
			fresh[k] = value
		}
		if b := s.options.Backend; b != nil {
			to, from := s.vm(clone), s.vm(m)
			if err := s.unlocked(func() error { return b.Clone(t.ctx, to, from, full) }); err != nil {
				return fails(err)
			}
		}
		clone.lock = ""
		return nil
	}), nil
}

// cloneDisk copies one disk of a machine to another, and returns its new value.
func (s *Server) cloneDisk(t *task, to *machine, config map[string]string, key string, from *volume, onto *Storage, format string, full bool) (string, error) {
	st := s.storage(from.storage)
	if onto != nil {
		st = onto
	}
	if format == "" {
		format = from.format
	}
	if onto != nil && format == "raw" && st.files() && !s.storage(from.storage).files() {
		format = "qcow2"
	}
	_, rest, _ := strings.Cut(config[key], ",")
	cdrom := strings.Contains(config[key], "media=cdrom")
	switch {
	case cdrom:
		t.log(fmt.Sprintf("create full clone of drive %s (%s)", key, from.id))
		v, err := s.allocate(t, st, to.node, to.id, "cloudinit", format, from.size, nil)
		if err != nil {
			return "", err
		}
		t.log(fmt.Sprintf("allocated target volume '%s'", v.id))
		return v.id + ",media=cdrom,size=" + sizeOf(v.size), t.sleep(50 * time.Millisecond)
	case full:
		t.log(fmt.Sprintf("create full clone of drive %s (%s)", key, from.id))
		v, err := s.copyTo(t, st, to, format, from.size)
		if err != nil {
			return "", err
		}
		return v.id + "," + rest, nil
	}
	t.log(fmt.Sprintf("create linked clone of drive %s (%s)", key, from.id))
	v, err := s.allocate(t, st, to.node, to.id, "disk", format, from.size, from)
	if err != nil {
		return "", err
	}
	return v.id + "," + rest, t.sleep(50 * time.Millisecond)
}

func (c *call) template() (any, error) {
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	switch {
	case m.lock != "":
		return nil, m.locked()
	case len(m.snapshots) > 0:
		return nil, failed("unable to create template, because VM contains snapshots")
	case m.config["template"] == "1":
		return nil, failed("you can't convert a template to a template")
	case m.running:
		return nil, failed("you can't convert a VM to template if VM is running")
	}
	return c.worker("qmtemplate", strconv.Itoa(m.id), func(t *task) error {
		if err := t.sleep(100 * time.Millisecond); err != nil {
			return err
		}
		c.s.makeTemplate(m)
		return nil
	}), nil
}

// makeTemplate has a machine's disks become bases, where the storage can.
func (s *Server) makeTemplate(m *machine) {
	m.config["template"] = "1"
	for _, k := range disks(m.config) {
		volid := pairs(m.config[k])[""]
		v := s.owned(m.node, volid)
		if v == nil || strings.Contains(m.config[k], "media=cdrom") || !s.storage(v.storage).snapshots(v.format) {
			continue
		}
		st := s.storage(v.storage)
		delete(s.volumes, st.key(m.node, volid))
		v.id = strings.Replace(volid, fmt.Sprintf("vm-%d-disk", m.id), fmt.Sprintf("base-%d-disk", m.id), 1)
		s.volumes[st.key(m.node, v.id)] = v
		m.config[k] = strings.Replace(m.config[k], volid, v.id, 1)
	}
}

// Template makes a machine a template, by hand.
func (s *Server) Template(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.makeTemplate(s.machines[id])
}

func (c *call) migrate() (any, error) {
	target := c.params["target"]
	if c.s.node(target) == nil {
		return nil, failed("no such cluster node '%s'", target)
	}
	if target == c.node.Name {
		return nil, wrong("target", "target is local node.")
	}
	m, err := c.machine(noFile)
	if err != nil {
		return nil, err
	}
	if err := m.locked(); err != nil {
		return nil, err
	}
	if m.running && !c.has("online") {
		return nil, failed("can't migrate running VM without --online")
	}
	local := c.has("with-local-disks")
	return c.worker("qmigrate", strconv.Itoa(m.id), func(t *task) error {
		release, err := c.s.lockFile(t, m.id, false, lockWithin)
		if err != nil {
			return err
		}
		defer release()
		t.log(fmt.Sprintf("starting migration of VM %d to node '%s'", m.id, target))
		var move []*volume
		for _, k := range disks(m.config) {
			v := c.s.owned(m.node, pairs(m.config[k])[""])
			if v == nil || c.s.storage(v.storage).Shared {
				continue
			}
			if m.running && !local {
				return failed("Problem found while scanning volumes - can't live migrate attached local disks without with-local-disks option")
			}
			move = append(move, v)
		}
		m.lock = "migrate"
		err = t.sleep(time.Second)
		m.lock = ""
		if err != nil {
			return err
		}
		for _, v := range move {
			st := c.s.storage(v.storage)
			delete(c.s.volumes, st.key(m.node, v.id))
			c.s.volumes[st.key(target, v.id)] = v
		}
		m.node = target
		t.log("migration finished successfully (duration 00:00:01)")
		return nil
	}), nil
}

func (c *call) moveDisk() (any, error) {
	m, err := c.ready()
	if err != nil {
		return nil, err
	}
	key := c.params["disk"]
	to, err := c.s.usable(c.params["storage"])
	if err != nil {
		return nil, err
	}
	from := c.s.owned(m.node, pairs(m.config[key])[""])
	switch {
	case from == nil:
		return nil, failed("disk '%s' does not exist", key)
	case to.Name == from.storage:
		return nil, failed("you can't move to the same storage with same format")
	}
	remove := c.has("delete")
	return c.worker("qmmove", strconv.Itoa(m.id), func(t *task) error {
		t.log(fmt.Sprintf("copying volume '%s' from current storage '%s' to target storage '%s'", from.id, from.storage, to.Name))
		t.log(fmt.Sprintf("create full clone of drive %s (%s)", key, from.id))
		v, err := c.s.copyTo(t, to, m, from.format, from.size)
		if err != nil {
			return err
		}
		m.config[key] = strings.Replace(m.config[key], from.id, v.id, 1)
		if remove {
			t.log(fmt.Sprintf("removing source volume '%s' after successful copy", from.id))
			c.s.remove(m, from.id)
		}
		return nil
	}), nil
}
