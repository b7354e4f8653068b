package pvesim

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Storage is where disks are.
type Storage struct {
	Name string
	// Type is as Proxmox calls it: dir, nfs, lvm, lvmthin, zfspool, rbd.
	Type    string
	Path    string
	Content string
	// Size is in bytes; Used is what is not the machines'.
	Size, Used int64
	Shared     bool
	Disabled   bool
	// Full says that there is no room.
	Full bool
}

// volume is one disk, or a file of another kind.
type volume struct {
	id, storage string
	size        int64
	vmid        int
	format      string
	base        string // volume id of what it is a linked clone of
	at          time.Time
	content     string // "": images
	stored      int64  // bytes of a file to import, where they are not its size
}

// files reports whether volumes are files, which have formats.
func (st *Storage) files() bool {
	return st.Type == "dir" || st.Type == "nfs" || st.Type == "cifs" || st.Type == "cephfs" || st.Type == "btrfs"
}

func (st *Storage) snapshots(format string) bool {
	return st.files() && format == "qcow2" || st.Type == "lvmthin" || st.Type == "zfspool" || st.Type == "rbd"
}

// key is where a volume of it is kept.
func (st *Storage) key(node, volid string) string {
	if st.Shared {
		node = ""
	}
	return node + " " + volid
}

func (st *Storage) holds(content string) bool {
	return strings.Contains(","+st.Content+",", ","+content+",")
}

func (s *Server) storage(name string) *Storage {
	for _, st := range s.storages {
		if st.Name == name {
			return st
		}
	}
	return nil
}

// Storage adds a storage, or replaces the one of that name.
func (s *Server) Storage(st Storage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.storage(st.Name); old != nil {
		*old = st
		return
	}
	s.storages = append(s.storages, &st)
}

// Volume adds a volume that is no machine's, such as an image to import.
func (s *Server) Volume(node, volid, content, format string, size int64, vmid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, _, _ := strings.Cut(volid, ":")
	s.volumes[s.storage(name).key(node, volid)] = &volume{id: volid, storage: name, size: size, content: content, format: format, vmid: vmid, at: s.now()}
}

func formatOf(st *Storage, volid string) string {
	if !st.files() {
		return "raw"
	}
	for _, f := range []string{"qcow2", "vmdk"} {
		if strings.HasSuffix(volid, "."+f) {
			return f
		}
	}
	return "raw"
}

// usable finds a storage that a request names for images.
func (s *Server) usable(name string) (*Storage, error) {
	st := s.storage(name)
	switch {
	case st == nil:
		return nil, failed("storage '%s' does not exist", name)
	case st.Disabled:
		return nil, failed("storage '%s' is disabled", name)
	case !st.holds("images"):
		return nil, wrong("storage", "storage '%s' does not support vm images", name)
	}
	return st, nil
}

// allocate makes a volume and says so in a log. base is of a linked clone.
func (s *Server) allocate(w waiter, st *Storage, node string, vmid int, what, format string, size int64, base *volume) (*volume, error) {
	name := fmt.Sprintf("vm-%d-%s", vmid, what)
	if what == "disk" {
		for n := 0; ; n++ {
			name = fmt.Sprintf("vm-%d-disk-%d", vmid, n)
			if !s.taken(st, node, name) {
				break
			}
		}
	}
	v := &volume{storage: st.Name, size: size, vmid: vmid, format: format, at: s.now()}
	switch {
	case st.files():
		v.id = fmt.Sprintf("%s:%d/%s.%s", st.Name, vmid, name, format)
		path := fmt.Sprintf("%s/images/%d/%s.%s", st.Path, vmid, name, format)
		switch {
		case base != nil:
			_, inner, _ := strings.Cut(base.id, ":")
			v.id = fmt.Sprintf("%s:%s/%d/%s.%s", st.Name, inner, vmid, name, format)
			w.log(fmt.Sprintf("clone %s: images, %s.%s, %d to %s.%s (base=../%s)", inner, name, format, vmid, name, format, inner))
			w.log(fmt.Sprintf("Formatting '%s', fmt=qcow2 cluster_size=131072 extended_l2=on preallocation=metadata compression_type=zlib size=%d backing_file=../%s backing_fmt=qcow2 lazy_refcounts=off refcount_bits=16", path, size, inner))
		case format == "qcow2":
			w.log(fmt.Sprintf("Formatting '%s', fmt=qcow2 cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib size=%d lazy_refcounts=off refcount_bits=16", path, size))
		default:
			w.log(fmt.Sprintf("Formatting '%s', fmt=raw size=%d preallocation=off", path, size))
		}
		if (st.Full || size > st.Size) && format != "raw" && base == nil {
			return nil, fmt.Errorf("unable to create image: qemu-img: %s: Could not resize image: Allocating clusters failed: No space left on device", path)
		}
	default:
		v.id, v.format = st.Name+":"+name, "raw"
		if base != nil {
			_, inner, _ := strings.Cut(base.id, ":")
			v.id = st.Name + ":" + inner + "/" + name
		}
		if st.Full {
			return nil, fmt.Errorf("lvcreate '%s' error:   Volume group \"%s\" has insufficient free space", name, st.Name)
		}
		w.log(fmt.Sprintf("  Logical volume \"%s\" created.", name))
	}
	if base != nil {
		v.base = base.id
	}
	s.volumes[st.key(node, v.id)] = v
	return v, nil
}

// taken reports whether a volume of that name lies on the storage already.
func (s *Server) taken(st *Storage, node, name string) bool {
	for key, v := range s.volumes {
		plain := v.id[strings.LastIndexAny(v.id, ":/")+1:]
		plain, _, _ = strings.Cut(plain, ".")
		if v.storage == st.Name && key == st.key(node, v.id) && plain == name {
			return true
		}
	}
	return false
}

// owned finds a volume by its id.
func (s *Server) owned(node, volid string) *volume {
	name, _, _ := strings.Cut(volid, ":")
	st := s.storage(name)
	if st == nil {
		return nil
	}
	return s.volumes[st.key(node, volid)]
}

func bytesOf(size string) int64 {
	unit := int64(1)
	switch {
	case strings.HasSuffix(size, "K"):
		unit = 1 << 10
	case strings.HasSuffix(size, "M"):
		unit = 1 << 20
	case strings.HasSuffix(size, "G"):
		unit = 1 << 30
	case strings.HasSuffix(size, "T"):
		unit = 1 << 40
	}
	f, _ := strconv.ParseFloat(strings.TrimRight(size, "KMGT"), 64)
	return int64(f * float64(unit))
}

// sizeOf writes a size as configurations do.
func sizeOf(n int64) string {
	switch {
	case n%(1<<40) == 0 && n > 0:
		return strconv.FormatInt(n>>40, 10) + "T"
	case n%(1<<30) == 0:
		return strconv.FormatInt(n>>30, 10) + "G"
	case n%(1<<20) == 0:
		return strconv.FormatInt(n>>20, 10) + "M"
	case n%(1<<10) == 0:
		return strconv.FormatInt(n>>10, 10) + "K"
	}
	return strconv.FormatInt(n, 10)
}

// humane writes a size as qemu-img's progress does.
func humane(n int64) string {
	for _, u := range []struct {
		name string
		n    int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.n {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.n), u.name)
		}
	}
	return fmt.Sprintf("%d.0 B", n)
}

func (c *call) shownStorage(st *Storage) map[string]any {
	used := st.Used
	for key, v := range c.s.volumes {
		if v.storage == st.Name && key == st.key(c.node.Name, v.id) && v.base == "" {
			used += v.size
		}
	}
	out := map[string]any{"type": st.Type, "content": st.Content, "shared": flag(st.Shared), "enabled": flag(!st.Disabled), "active": flag(!st.Disabled), "total": 0, "used": 0, "avail": 0}
	if !st.Disabled {
		out["total"], out["used"], out["avail"] = st.Size, used, st.Size-used
		if st.Full {
			out["avail"], out["used"] = 0, st.Size
		}
	}
	return out
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c *call) listStorages() (any, error) {
	out := []map[string]any{}
	for _, st := range c.s.storages {
		if !c.may("/storage/"+st.Name, "Datastore.Audit", "Datastore.AllocateSpace") || c.has("enabled") && st.Disabled || c.params["content"] != "" && !st.holds(c.params["content"]) {
			continue
		}
		one := c.shownStorage(st)
		one["storage"] = st.Name
		if total, ok := one["total"].(int64); ok {
			one["used_fraction"] = math.Round(float64(one["used"].(int64))/float64(total)*1e12) / 1e12
		}
		out = append(out, one)
	}
	return out, nil
}

func (c *call) storageStatus() (any, error) {
	st := c.s.storage(c.params["storage"])
	if st == nil {
		return nil, wrong("storage", "No such storage.")
	}
	return c.shownStorage(st), nil
}

func (c *call) storageContent() (any, error) {
	st := c.s.storage(c.params["storage"])
	if st == nil {
		return nil, failed("storage '%s' does not exist", c.params["storage"])
	}
	out := []map[string]any{}
	for key, v := range c.s.volumes {
		kind := v.content
		if kind == "" {
			kind = "images"
		}
		if v.storage != st.Name || key != st.key(c.node.Name, v.id) || c.params["content"] != "" && c.params["content"] != kind || c.params["vmid"] != "" && c.params["vmid"] != strconv.Itoa(v.vmid) {
			continue
		}
		one := map[string]any{"volid": v.id, "format": v.format, "size": v.size, "ctime": v.at.Unix(), "content": kind}
		if v.stored != 0 {
			one["size"] = v.stored
		}
		if kind == "images" {
			one["vmid"], one["used"], one["parent"] = v.vmid, v.size/200, nil
			if v.base != "" {
				_, inner, _ := strings.Cut(v.base, ":")
				one["parent"] = "../" + inner
			}
		}
		out = append(out, one)
	}
	return out, nil
}

func (c *call) deleteVolume() (any, error) {
	volid := c.params["volume"]
	st := c.s.storage(c.params["storage"])
	if st == nil {
		return nil, failed("storage '%s' does not exist", c.params["storage"])
	}
	_, inner, _ := strings.Cut(volid, ":")
	owner, _, _ := strings.Cut(inner, "/")
	return c.worker("imgdel", owner+"@"+st.Name, func(t *task) error {
		if err := t.sleep(100 * time.Millisecond); err != nil {
			return err
		}
		for _, v := range c.s.volumes {
			if v.base == volid {
				return fmt.Errorf("base volume '%s' is still in use by linked clones", strings.TrimPrefix(volid, st.Name+":"))
			}
		}
		if key := st.key(c.node.Name, volid); c.s.volumes[key] != nil {
			delete(c.s.volumes, key)
		} else if st.files() {
			t.log(fmt.Sprintf("disk image '%s/images/%s' does not exist", st.Path, inner))
		}
		t.log(fmt.Sprintf("Removed volume '%s'", volid))
		return nil
	}), nil
}
