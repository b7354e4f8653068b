package libvirt

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
)

const (
	// maxHosts bounds the hypervisors of one pool.
	maxHosts = 500
	// maxDomains bounds how many domains of a host are asked for their mark.
	maxDomains = 5000
	// maxImages and maxStorages bound what List says of a host.
	maxImages, maxStorages = 1000, 100
	// sampleTime is between the two readings of which the first List makes the use of the
	// processors; later ones compare with the List before.
	sampleTime = 200 * time.Millisecond
)

// driver is a pool of hypervisors.
type driver struct {
	config pool.Config
	hosts  []*host
}

// Open makes the driver of a pool. It connects to nothing yet.
func Open(config pool.Config) (pool.Driver, error) {
	d := &driver{config: config}
	list := config.Hosts
	if len(list) == 0 && config.URL != "" {
		list = []pool.Host{{Name: config.Name, URL: config.URL}}
	}
	switch {
	case len(list) == 0:
		return nil, fmt.Errorf("pool %s: no host; name each hypervisor and its URL", config.Name)
	case len(list) > maxHosts:
		return nil, fmt.Errorf("pool %s: %d hosts, and at most %d are possible", config.Name, len(list), maxHosts)
	case (config.CertFile == "") != (config.KeyFile == ""):
		return nil, fmt.Errorf("pool %s: a client's certificate and its key go together", config.Name)
	case !slices.Contains([]string{"", "kvm", "qemu"}, config.VirtType):
		return nil, fmt.Errorf("pool %s: virt_type must be kvm or qemu, and is %q", config.Name, config.VirtType)
	}
	for _, each := range list {
		if len(config.Nodes) > 0 && !slices.Contains(config.Nodes, each.Name) {
			continue
		}
		if slices.ContainsFunc(d.hosts, func(h *host) bool { return h.name == each.Name }) {
			return nil, fmt.Errorf("pool %s: two hosts are called %s", config.Name, each.Name)
		}
		h, err := newHost(&d.config, each.Name, each.URL)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w", config.Name, err)
		}
		d.hosts = append(d.hosts, h)
	}
	if len(d.hosts) == 0 {
		return nil, fmt.Errorf("pool %s: none of its hosts is among its nodes", config.Name)
	}
	return d, nil
}

// Close implements [pool.Driver].
func (d *driver) Close() error {
	for _, h := range d.hosts {
		h.close()
	}
	return nil
}

// host answers the one of that name; "" is the only one.
func (d *driver) host(name string) (*host, error) {
	var names []string
	for _, h := range d.hosts {
		if h.name == name || name == "" && len(d.hosts) == 1 {
			return h, nil
		}
		names = append(names, h.name)
	}
	return nil, fmt.Errorf("pool %s has no host %q%s", d.config.Name, cut(name, 100), provision.DidYouMean(name, names))
}

// each does something on all hosts at the same time.
func (d *driver) each(do func(*host) error) error {
	errs := make([]error, len(d.hosts))
	var all sync.WaitGroup
	for i, h := range d.hosts {
		all.Go(func() { errs[i] = do(h) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// Look implements [pool.Driver].
func (d *driver) Look(ctx context.Context, ref pool.Ref) (pool.Found, error) {
	m, err := d.find(ctx, ref)
	if err != nil {
		return pool.Found{}, err
	}
	return m.show(ctx)
}

// find looks for a machine where it was last and, where it isn't there, on all hosts. It is
// gone only if all of them said so.
func (d *driver) find(ctx context.Context, ref pool.Ref) (*machine, error) {
	if last, err := d.host(ref.Node); err == nil {
		if m, err := last.find(ctx, ref.ID, ref.Name); err == nil {
			return m, nil
		}
	}
	var mu sync.Mutex
	var found *machine
	var foreign, named, other, gone error
	_ = d.each(func(h *host) error {
		m, err := h.find(ctx, ref.ID, ref.Name)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			found = m
		case errors.Is(err, errName):
			named = err
		case errors.Is(err, pool.ErrForeign):
			foreign = err
		case errors.Is(err, pool.ErrGone):
			gone = err
		default:
			other = errors.Join(other, err)
		}
		return nil
	})
	switch {
	case found != nil:
		return found, nil
	case foreign != nil:
		return nil, foreign
	case other != nil:
		return nil, other
	case named != nil:
		return nil, named
	}
	return nil, gone
}

// List implements [pool.Driver]. A host that does not answer is not online, and holds up none
// of the others.
func (d *driver) List(ctx context.Context) (pool.Inventory, error) {
	var inventory pool.Inventory
	var mu sync.Mutex
	used := map[netip.Addr]bool{}
	nodes := make([]pool.Node, len(d.hosts))
	var failed int
	var all sync.WaitGroup
	var first error
	for i, h := range d.hosts {
		all.Go(func() {
			node, addresses, err := h.list(ctx)
			mu.Lock()
			defer mu.Unlock()
			nodes[i] = node
			for _, address := range addresses {
				used[address] = true
			}
			if err != nil {
				failed++
				first = err
			}
		})
	}
	all.Wait()
	inventory.Nodes = nodes
	inventory.Addresses = slices.SortedFunc(maps.Keys(used), netip.Addr.Compare)
	if failed == len(d.hosts) {
		return inventory, fmt.Errorf("pool %s: no host answers: %w", d.config.Name, first)
	}
	return inventory, ctx.Err()
}

// list answers a host as a node, and the addresses in use there.
func (h *host) list(ctx context.Context) (pool.Node, []netip.Addr, error) {
	node := pool.Node{Name: h.name}
	info, err := ask(ctx, h, "asking for its size", func(l *libvirt.Libvirt) (pool.Node, error) {
		_, memory, cpus, _, _, _, _, _, err := l.NodeGetInfo()
		return pool.Node{Cores: int(cpus), Memory: int(memory >> 10)}, err
	})
	if err != nil {
		return node, nil, err
	}
	node.Cores, node.Memory = info.Cores, info.Memory
	if node.MemoryUsed, err = h.memoryUsed(ctx); err != nil {
		return node, nil, err
	}
	if node.CoresUsed, err = h.coresUsed(ctx); err != nil {
		return node, nil, err
	}
	if node.Storages, err = h.storages(ctx); err != nil {
		return node, nil, err
	}
	if node.Images, err = h.images(ctx); err != nil && !errors.Is(err, errNoStorage) {
		return node, nil, err
	}
	addresses, err := h.addressesInUse(ctx)
	if err != nil {
		return node, nil, err
	}
	node.Online = true
	return node, addresses, nil
}

func share(part, all float64) float64 {
	if all <= 0 {
		return 0
	}
	return min(1, max(0, part/all))
}

func (h *host) memoryUsed(ctx context.Context) (float64, error) {
	stats, err := ask(ctx, h, "asking for its memory", func(l *libvirt.Libvirt) (map[string]uint64, error) {
		_, n, err := l.NodeGetMemoryStats(0, -1, 0)
		if err != nil {
			return nil, err
		}
		stats, _, err := l.NodeGetMemoryStats(min(n, 64), -1, 0)
		values := map[string]uint64{}
		for _, each := range stats {
			values[each.Field] = each.Value
		}
		return values, err
	})
	total := float64(stats["total"])
	return share(total-float64(stats["free"])-float64(stats["buffers"])-float64(stats["cached"]), total), err
}

// coresUsed is the share of the processors' time since the call before.
func (h *host) coresUsed(ctx context.Context) (float64, error) {
	read := func() (map[string]uint64, error) {
		return ask(ctx, h, "asking for its processors", func(l *libvirt.Libvirt) (map[string]uint64, error) {
			_, n, err := l.NodeGetCPUStats(-1, 0, 0)
			if err != nil {
				return nil, err
			}
			stats, _, err := l.NodeGetCPUStats(-1, min(n, 64), 0)
			values := map[string]uint64{}
			for _, each := range stats {
				values[each.Field] = each.Value
			}
			return values, err
		})
	}
	now, err := read()
	if err != nil {
		return 0, err
	}
	h.mu.Lock()
	before := h.cpu
	h.mu.Unlock()
	if before == nil {
		before = now
		if err := wait(ctx, sampleTime); err != nil {
			return 0, err
		}
		if now, err = read(); err != nil {
			return 0, err
		}
	}
	var busy, all float64
	for field, value := range now {
		took := float64(value) - float64(before[field])
		all += took
		if field != "idle" && field != "iowait" {
			busy += took
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cpu = now
	if all > 0 { // else the two were too near
		h.cpuUse = share(busy, all)
	}
	return h.cpuUse, nil
}

func (h *host) storages(ctx context.Context) ([]pool.Storage, error) {
	pools, err := ask(ctx, h, "listing its storage pools", func(l *libvirt.Libvirt) ([]libvirt.StoragePool, error) {
		pools, _, err := l.ConnectListAllStoragePools(1, libvirt.ConnectListStoragePoolsActive)
		return pools, err
	})
	if err != nil {
		return nil, err
	}
	var storages []pool.Storage
	for _, each := range pools {
		if len(h.config.Storages) > 0 && !slices.Contains(h.config.Storages, each.Name) || len(storages) == maxStorages || !resourceName.MatchString(each.Name) {
			continue
		}
		in, err := h.storage(ctx, each.Name)
		if err != nil {
			continue // it was removed meanwhile
		}
		_, size, _, free, err := h.space(ctx, in)
		if err != nil {
			continue
		}
		storages = append(storages, pool.Storage{
			Name: each.Name, Free: int(free >> 30), Size: int(size >> 30), Linked: in.files(),
			Shared: slices.Contains([]string{"netfs", "gluster", "rbd", "iscsi", "iscsi-direct"}, in.kind),
		})
	}
	slices.SortFunc(storages, func(a, b pool.Storage) int { return strings.Compare(a.Name, b.Name) })
	return storages, nil
}

// space answers a storage pool's state and bytes.
func (h *host) space(ctx context.Context, in storage) (state uint8, size, used, free uint64, err error) {
	numbers, err := ask(ctx, h, "asking for the space of storage pool "+in.Name, func(l *libvirt.Libvirt) ([4]uint64, error) {
		state, size, used, free, err := l.StoragePoolGetInfo(in.StoragePool)
		return [4]uint64{uint64(state), size, used, free}, err
	})
	return uint8(numbers[0]), numbers[1], numbers[2], numbers[3], err
}

// images answers the volumes that machines can be made from.
func (h *host) images(ctx context.Context) ([]pool.Image, error) {
	in, err := h.imageStorage(ctx)
	if err != nil {
		return nil, err
	}
	_ = h.refresh(ctx, in) // it fails while a volume is made, and what is known serves
	volumes, err := ask(ctx, h, "listing storage pool "+in.Name, func(l *libvirt.Libvirt) ([]libvirt.StorageVol, error) {
		volumes, _, err := l.StoragePoolListAllVolumes(in.StoragePool, 1, 0)
		return volumes, err
	})
	if err != nil {
		return nil, err
	}
	var images []pool.Image
	for _, volume := range volumes {
		name := volume.Name
		if strings.HasPrefix(name, volumePrefix) || !imageName.MatchString(name) || strings.HasSuffix(name, ".iso") || len(images) == maxImages {
			continue
		}
		images = append(images, pool.Image{Name: name, ID: cut(volume.Key, maxText)})
	}
	slices.SortFunc(images, func(a, b pool.Image) int { return strings.Compare(a.Name, b.Name) })
	return images, nil
}

// addressesInUse answers what the networks have leased or reserved, and what machines were given.
func (h *host) addressesInUse(ctx context.Context) ([]netip.Addr, error) {
	var found []netip.Addr
	add := func(text string) {
		if address, err := netip.ParseAddr(text); err == nil && len(found) < maxItems {
			found = append(found, address)
		}
	}
	networks, err := ask(ctx, h, "listing its networks", func(l *libvirt.Libvirt) ([]libvirt.Network, error) {
		networks, _, err := l.ConnectListAllNetworks(1, libvirt.ConnectListNetworksActive)
		return networks, err
	})
	if err != nil {
		return nil, err
	}
	for _, network := range networks[:min(len(networks), maxStorages)] {
		leases, err := h.leases(ctx, network.Name, "")
		if err != nil && !is(err, libvirt.ErrOperationInvalid) && !errors.As(err, new(libvirt.Error)) {
			return nil, err
		}
		for _, lease := range leases {
			add(lease.Ipaddr)
		}
		text, err := ask(ctx, h, "reading network "+network.Name, func(l *libvirt.Libvirt) (string, error) {
			return l.NetworkGetXMLDesc(network, 0)
		})
		var document libvirtxml.Network
		if err != nil || len(text) > maxDocument || xml.Unmarshal([]byte(text), &document) != nil {
			continue
		}
		for _, ip := range document.IPs {
			add(ip.Address)
			if ip.DHCP != nil {
				for _, reserved := range ip.DHCP.Hosts {
					add(reserved.IP)
				}
			}
		}
	}
	domains, err := ask(ctx, h, "listing its domains", func(l *libvirt.Libvirt) ([]libvirt.Domain, error) {
		domains, _, err := l.ConnectListAllDomains(1, 0)
		return domains, err
	})
	if err != nil {
		return nil, err
	}
	for _, dom := range domains[:min(len(domains), maxDomains)] {
		text, err := ask(ctx, h, "reading a mark", func(l *libvirt.Libvirt) (string, error) {
			return l.DomainGetMetadata(dom, int32(libvirt.DomainMetadataElement), libvirt.OptString{namespace}, libvirt.DomainAffectConfig)
		})
		var given struct { // libvirt answers the element without its namespace
			Address string `xml:"address,attr"`
		}
		if err == nil && len(text) <= maxDocument && xml.Unmarshal([]byte(text), &given) == nil {
			if address, ok := (mark{Address: given.Address}).static(); ok {
				found = append(found, address)
			}
		}
	}
	return found, nil
}

// virtType answers kvm or qemu: as the template says, else the pool, else what the host can.
func (h *host) virtType(ctx context.Context, wanted string) (string, error) {
	if wanted == "" {
		wanted = h.config.VirtType
	}
	if wanted != "" {
		return wanted, nil
	}
	h.mu.Lock()
	known := h.virt
	h.mu.Unlock()
	if known != "" {
		return known, nil
	}
	_, err := ask(ctx, h, "asking whether it has KVM", func(l *libvirt.Libvirt) (string, error) {
		return l.ConnectGetDomainCapabilities(nil, libvirt.OptString{"x86_64"}, nil, libvirt.OptString{"kvm"}, 0)
	})
	found := "kvm"
	if errors.As(err, new(libvirt.Error)) {
		found = "qemu"
	} else if err != nil {
		return "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.virt = found
	return found, nil
}

func (h *host) whyEmulated(wanted string) string {
	switch {
	case wanted == "qemu":
		return "the template says so (virt_type)"
	case h.config.VirtType == "qemu":
		return "the pool's configuration says so (virt_type)"
	}
	return "the host has no usable KVM; switch virtualization on in its firmware, and load the module kvm_intel or kvm_amd"
}

// Check implements [pool.Driver].
func (d *driver) Check(ctx context.Context) []pool.Finding {
	findings := make([][]pool.Finding, len(d.hosts))
	var all sync.WaitGroup
	for i, h := range d.hosts {
		all.Go(func() { findings[i] = h.check(ctx) })
	}
	all.Wait()
	return slices.Concat(findings...)
}

// check says what is to be known of one host. A host that can't be reached is one line.
func (h *host) check(ctx context.Context) []pool.Finding {
	var findings []pool.Finding
	// found is what was found, where there is no error.
	say := func(what string, err error, warning bool, found string, args ...any) bool {
		finding := pool.Finding{What: h.name + ": " + what, Detail: fmt.Sprintf(found, args...)}
		if err != nil {
			finding.Problem, finding.Warning, finding.Detail = err.Error(), warning, ""
		}
		findings = append(findings, finding)
		return err == nil
	}
	version, err := ask(ctx, h, "asking for its version", func(l *libvirt.Libvirt) (uint64, error) {
		return l.ConnectGetLibVersion()
	})
	if !say("reach", err, false, "%s, libvirt %s", h.url, versionText(version)) {
		return findings
	}
	if h.address.Scheme == "tcp" {
		findings = append(findings, pool.Finding{
			What: h.name + ": connection", Problem: "tcp:// is neither encrypted nor authenticated", Warning: true,
			Detail: "use tls:// outside of a network that only you have",
		})
	}
	virt, err := h.virtType(ctx, "")
	if virt == "qemu" {
		findings = append(findings, pool.Finding{What: h.name + ": kvm", Problem: "processors are emulated, which is slow", Warning: true, Detail: h.whyEmulated("")})
	} else {
		say("kvm", err, false, "the processors virtualize")
	}
	storages := h.config.Storages
	if len(storages) == 0 {
		storages = []string{"default"}
	}
	for _, name := range storages {
		in, err := h.storage(ctx, name)
		var state uint8
		var size, free uint64
		if err == nil {
			state, size, _, free, err = h.space(ctx, in)
		}
		if err == nil && state != uint8(libvirt.StoragePoolRunning) {
			err = fmt.Errorf("it is not active; start it by virsh pool-start %s", name)
		}
		if say("storage "+name, err, false, "%s, %d of %d GiB are free, linked clones: %t", in.kind, free>>30, size>>30, in.files()) {
			say("storage "+name+" is writable", h.tryVolume(ctx, in), false, "a volume was made and removed")
		}
	}
	networks := h.config.Networks
	if len(networks) == 0 {
		networks = []string{"default"}
	}
	for _, name := range networks {
		if !strings.HasPrefix(name, bridgePrefix) {
			say("network "+name, h.networkActive(ctx, name), false, "active")
		}
	}
	images, err := h.images(ctx)
	if err == nil && len(images) == 0 {
		err = errors.New("there is no image; upload a cloud image (qcow2) there by virsh vol-upload")
	}
	var texts []string
	for _, each := range images[:min(len(images), 20)] {
		found, err := h.image(ctx, each.Name)
		if err != nil {
			texts = append(texts, each.Name+" (no disk image)")
			continue
		}
		texts = append(texts, fmt.Sprintf("%s (%s, %d MiB)", each.Name, found.format, found.capacity>>20))
	}
	if more := len(images) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	say("images", err, false, "%s", strings.Join(texts, ", "))
	return findings
}

// tryVolume makes a volume and removes it.
func (h *host) tryVolume(ctx context.Context, in storage) error {
	name := volumePrefix + "check-" + randomName()
	text, err := xml.Marshal(libvirtxml.StorageVolume{
		Name: name, Capacity: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: 1 << 20},
		Target: &libvirtxml.StorageVolumeTarget{Format: &libvirtxml.StorageVolumeTargetFormat{Type: "raw"}},
	})
	if err != nil {
		return err
	}
	if _, err := ask(ctx, h, "making volume "+name, func(l *libvirt.Libvirt) (libvirt.StorageVol, error) {
		return l.StorageVolCreateXML(in.StoragePool, string(text), 0)
	}); err != nil {
		return err
	}
	return h.removeVolume(context.WithoutCancel(ctx), in, name)
}
