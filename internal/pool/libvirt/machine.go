package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/google/uuid"
	"libvirt.org/go/libvirtxml"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/provisioner"
)

const (
	// readyLimit is how long a started machine may take until it is ready.
	readyLimit = 15 * time.Minute
	// stopLimit is how long a machine may take to shut itself down before it is switched off.
	stopLimit = 90 * time.Second
	// askEvery is the pause between two questions about a machine that is waited for.
	askEvery = 500 * time.Millisecond
)

// machine is a domain that bears the mark.
type machine struct {
	host     *host
	dom      libvirt.Domain
	mark     mark
	document *libvirtxml.Domain // as it is defined, not as it runs
}

var (
	label     = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	imageName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_.+:@-]{0,200}$`)
)

// check refuses what no hypervisor should be asked for.
func check(spec pool.Spec) error {
	switch id, err := uuid.Parse(spec.ID); {
	case err != nil || id.String() != spec.ID || id == uuid.Nil:
		return fmt.Errorf("the machine's id %q is no UUID in lower-case letters", cut(spec.ID, 100))
	case !label.MatchString(spec.Name):
		return fmt.Errorf("the name %q is no DNS label: use up to 63 lower-case letters, digits and hyphens", cut(spec.Name, 100))
	case !imageName.MatchString(spec.Image):
		return fmt.Errorf("machine %s: the image %q is no volume's name", spec.Name, cut(spec.Image, 100))
	case spec.Cores < 1 || spec.Cores > 4096 || spec.Memory < 16 || spec.Memory > 64<<20 || spec.Disk < 0 || spec.Disk > 1<<20:
		return fmt.Errorf("machine %s: %d cores, %d MiB of memory and %d GiB of disk can't be", spec.Name, spec.Cores, spec.Memory, spec.Disk)
	case !slices.Contains([]string{"", "address", "agent", "none"}, spec.Init.Wait):
		return fmt.Errorf("machine %s: wait must be address, agent or none, and is %q", spec.Name, cut(spec.Init.Wait, 100))
	}
	return nil
}

// find looks for a machine on one host. ErrGone says that neither id nor name is there.
func (h *host) find(ctx context.Context, id, name string) (*machine, error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return nil, fmt.Errorf("the machine's id %q is no UUID", cut(id, 100))
	}
	dom, err := ask(ctx, h, "looking for machine "+id, func(l *libvirt.Libvirt) (libvirt.Domain, error) {
		return l.DomainLookupByUUID(libvirt.UUID(parsed))
	})
	if is(err, libvirt.ErrNoDomain) {
		return nil, h.foreign(ctx, id, name)
	}
	if err != nil {
		return nil, err
	}
	return h.read(ctx, dom, id)
}

// read reads a domain and its mark.
func (h *host) read(ctx context.Context, dom libvirt.Domain, id string) (*machine, error) {
	text, err := ask(ctx, h, "reading domain "+id, func(l *libvirt.Libvirt) (string, error) {
		return l.DomainGetXMLDesc(dom, libvirt.DomainXMLInactive)
	})
	if is(err, libvirt.ErrNoDomain) {
		return nil, fmt.Errorf("host %s: domain %s: %w", h.name, id, pool.ErrGone)
	}
	if err != nil {
		return nil, err
	}
	document, err := parseDomain(text)
	if err != nil {
		return nil, fmt.Errorf("host %s: domain %s: %w", h.name, id, err)
	}
	m, marked := markOf(document.Metadata)
	if !marked || m.ID != id || uuid.UUID(dom.UUID).String() != id {
		return nil, fmt.Errorf("host %s: domain %s has that UUID and bears another mark or none, so it stays as it is: %w", h.name, cut(document.Name, 100), pool.ErrForeign)
	}
	return &machine{h, dom, m, document}, nil
}

// foreign says why a machine with this id isn't there: another one has its name, or nothing is.
func (h *host) foreign(ctx context.Context, id, name string) error {
	if name != "" {
		_, err := ask(ctx, h, "looking for domain "+name, func(l *libvirt.Libvirt) (libvirt.Domain, error) {
			return l.DomainLookupByName(name)
		})
		if err == nil {
			return fmt.Errorf("host %s: domain %s is not machine %s: %w", h.name, name, id, errName)
		}
		if !is(err, libvirt.ErrNoDomain) {
			return err
		}
	}
	return fmt.Errorf("host %s: no domain is machine %s: %w", h.name, id, pool.ErrGone)
}

// errName is ErrForeign where only the name is taken, so that the machine itself is gone.
var errName = fmt.Errorf("%w (it has the same name)", pool.ErrForeign)

// setStage writes down how far the machine's making has come.
func (m *machine) setStage(ctx context.Context, s stage) error {
	changed := m.mark
	changed.Stage = s
	text, err := changed.xml()
	if err != nil {
		return err
	}
	err = m.host.do(ctx, "marking domain "+m.document.Name+" as "+string(s), func(l *libvirt.Libvirt) error {
		return l.DomainSetMetadata(m.dom, int32(libvirt.DomainMetadataElement), libvirt.OptString{text},
			libvirt.OptString{"tendril"}, libvirt.OptString{namespace}, libvirt.DomainAffectConfig)
	})
	if err == nil {
		m.mark = changed
	}
	return err
}

// state answers what the domain is doing.
func (m *machine) state(ctx context.Context) (libvirt.DomainState, error) {
	return ask(ctx, m.host, "asking for the state of "+m.document.Name, func(l *libvirt.Libvirt) (libvirt.DomainState, error) {
		state, _, err := l.DomainGetState(m.dom, 0)
		return libvirt.DomainState(state), err
	})
}

// active says whether a domain in this state has a process.
func active(state libvirt.DomainState) bool {
	return state != libvirt.DomainShutoff && state != libvirt.DomainCrashed && state != libvirt.DomainNostate
}

// show answers the machine as it is now. What can't be asked is left out.
func (m *machine) show(ctx context.Context) (pool.Found, error) {
	found := pool.Found{
		Mark: m.mark.ID, ExternalID: m.mark.ID, Name: cut(m.document.Name, provisioner.MaxName-8), Node: m.host.name,
		Status: provisioner.StatusUnknown, Ready: m.mark.Stage.ready(),
	}
	if m.document.VCPU != nil {
		found.Cores = int(m.document.VCPU.Value)
	}
	found.Memory = mebibytes(m.document.Memory)
	state, err := m.state(ctx)
	if err != nil {
		return found, err
	}
	switch {
	case state == libvirt.DomainCrashed:
		found.Status = provisioner.StatusFailed
	case !found.Ready:
		found.Status = provisioner.StatusCreating
	case active(state):
		found.Status = provisioner.StatusRunning
	default:
		found.Status = provisioner.StatusStopped
	}
	if in, err := m.host.storage(ctx, m.mark.Storage); err == nil {
		if volume, err := m.host.volume(ctx, in, m.mark.Disk); err == nil {
			if document, err := m.host.describeVolume(ctx, volume); err == nil {
				found.Disk = int(document.Capacity.Value >> 30)
			}
		}
	}
	found.Addresses = m.addresses(ctx, active(state))
	return found, nil
}

func mebibytes(memory *libvirtxml.DomainMemory) int {
	if memory == nil {
		return 0
	}
	switch memory.Unit {
	case "MiB":
		return int(memory.Value)
	case "GiB":
		return int(memory.Value) << 10
	}
	return int(memory.Value >> 10) // KiB, which is what libvirt writes
}

// Sources of addresses, as libvirt numbers them.
const (
	fromAgent = 1
	fromARP   = 2
)

// addresses answers those that the network's leases, the guest's agent or the host's ARP table
// know, and the static one. A machine that is switched off has its static one only.
func (m *machine) addresses(ctx context.Context, running bool) []netip.Addr {
	var found []netip.Addr
	add := func(text string) {
		address, err := netip.ParseAddr(text)
		if err == nil && !address.IsLoopback() && !address.IsLinkLocalUnicast() && !address.IsUnspecified() && !slices.Contains(found, address) && len(found) < 32 {
			found = append(found, address)
		}
	}
	if address, ok := m.mark.static(); ok {
		add(address.String())
	}
	if !running {
		return found
	}
	mac := macOf(m.mark.ID)
	for _, network := range m.networks() {
		leases, _ := m.host.leases(ctx, network, mac)
		for _, lease := range leases {
			add(lease.Ipaddr)
		}
	}
	if len(found) > 0 {
		return found
	}
	for _, source := range []uint32{fromAgent, fromARP} {
		interfaces, _ := ask(ctx, m.host, "asking for the addresses of "+m.document.Name, func(l *libvirt.Libvirt) ([]libvirt.DomainInterface, error) {
			return l.DomainInterfaceAddresses(m.dom, source, 0)
		})
		for _, each := range interfaces {
			// Not those of bridges and tunnels that the guest makes itself.
			if len(each.Hwaddr) == 1 && strings.EqualFold(each.Hwaddr[0], mac) {
				for _, address := range each.Addrs {
					add(address.Addr)
				}
			}
		}
		if len(found) > 0 {
			break
		}
	}
	return found
}

// networks answers the networks of libvirt's that the machine is in.
func (m *machine) networks() []string {
	var names []string
	if m.document.Devices != nil {
		for _, each := range m.document.Devices.Interfaces {
			if each.Source != nil && each.Source.Network != nil {
				names = append(names, each.Source.Network.Network)
			}
		}
	}
	return names
}

// leases answers those of one MAC address, or all with "".
func (h *host) leases(ctx context.Context, network, mac string) ([]libvirt.NetworkDhcpLease, error) {
	var only libvirt.OptString
	if mac != "" {
		only = libvirt.OptString{mac}
	}
	return ask(ctx, h, "asking for the leases of network "+network, func(l *libvirt.Libvirt) ([]libvirt.NetworkDhcpLease, error) {
		found, err := l.NetworkLookupByName(network)
		if err != nil {
			return nil, err
		}
		leases, _, err := l.NetworkGetDhcpLeases(found, only, 1, 0)
		return leases, err
	})
}

// Create implements [pool.Driver].
func (d *driver) Create(ctx context.Context, spec pool.Spec, progress pool.Progress) (pool.Found, error) {
	if err := check(spec); err != nil {
		return pool.Found{}, err
	}
	s, err := d.parseSettings(spec.Settings)
	if err != nil {
		return pool.Found{}, err
	}
	if spec.Init.Password != "" {
		progress.Secret(spec.Init.Password)
	}
	at, err := d.host(spec.Node)
	if err != nil {
		return pool.Found{}, err
	}
	progress.Step("define", "Defining the machine", 0)
	m, err := d.findForCreate(ctx, at, spec)
	if err != nil {
		return pool.Found{}, err
	}
	if m != nil {
		progress.Log("machine %s exists on host %s already (%s); it is taken up from there", spec.Name, m.host.name, m.mark.Stage)
		at = m.host
	}
	var p plan
	if m == nil || m.mark.Stage == stageDefined {
		if p, err = at.plan(ctx, spec, s, progress); err != nil {
			return d.last(ctx, m, err)
		}
		// Defined again where it was before: it may have been planned with another storage.
		if m != nil && m.mark.Disk != diskName(spec.ID, p.format) || m != nil && m.mark.Storage != p.Storage {
			if err := m.removeVolumes(ctx); err != nil {
				return d.last(ctx, m, err)
			}
		}
		text, err := define(spec, p)
		if err != nil {
			return d.last(ctx, m, err)
		}
		dom, err := ask(ctx, at, "defining domain "+spec.Name, func(l *libvirt.Libvirt) (libvirt.Domain, error) {
			return l.DomainDefineXMLFlags(text, 0)
		})
		if err != nil {
			if m == nil {
				// It may be there all the same, where the answer was lost.
				m, _ = at.find(context.WithoutCancel(ctx), spec.ID, spec.Name)
			}
			return d.last(ctx, m, err)
		}
		if m, err = at.read(ctx, dom, spec.ID); err != nil {
			return pool.Found{}, err
		}
	}
	progress.Step("define", "Defining the machine", 100)
	if m.mark.Stage == stageDefined {
		if err := at.makeVolumes(ctx, m, spec, p, progress); err != nil {
			return d.last(ctx, m, err)
		}
	}
	if m.mark.Stage == stageMade {
		if err := m.first(ctx, spec.Init.Wait, progress); err != nil {
			return d.last(ctx, m, err)
		}
	}
	return m.show(ctx)
}

// last answers what is known of a machine of which something failed.
func (d *driver) last(ctx context.Context, m *machine, err error) (pool.Found, error) {
	if m == nil {
		return pool.Found{}, err
	}
	// The context may be over, and this is the last that is known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	found, _ := m.show(ctx)
	if found.Status == provisioner.StatusCreating && ctx.Err() == nil && !errors.Is(err, context.Canceled) && !errors.Is(err, pool.ErrUnreachable) {
		found.Status = provisioner.StatusFailed
	}
	return found, err
}

// findForCreate looks for a machine on the host that it is for, and on the others as far as they
// answer: the database has one host per machine, so one that is down holds up nobody. Nil is that
// there is none.
func (d *driver) findForCreate(ctx context.Context, at *host, spec pool.Spec) (*machine, error) {
	others, cancel := context.WithTimeout(ctx, downFor)
	defer cancel()
	looked := make(chan *machine, len(d.hosts))
	for _, h := range d.hosts {
		if h != at {
			go func() {
				m, _ := h.find(others, spec.ID, "")
				looked <- m
			}()
		}
	}
	m, err := at.find(ctx, spec.ID, spec.Name)
	for range len(d.hosts) - 1 {
		if other := <-looked; other != nil && m == nil {
			m = other
		}
	}
	switch {
	case m != nil:
		return m, nil
	case errors.Is(err, pool.ErrForeign):
		return nil, fmt.Errorf("machine %s can't be made: %w. Rename it, or remove that domain", spec.Name, err)
	case errors.Is(err, pool.ErrGone):
		return nil, nil
	}
	return nil, err
}

// plan decides what depends on the host, and checks that the host has all that is asked for.
func (h *host) plan(ctx context.Context, spec pool.Spec, s settings, progress pool.Progress) (plan, error) {
	p := plan{settings: s, format: "qcow2"}
	in, err := h.storage(ctx, s.Storage)
	if err != nil {
		return p, err
	}
	from, err := h.image(ctx, spec.Image)
	if err != nil {
		return p, err
	}
	if !in.files() || !strings.HasPrefix(from.path, "/") {
		if !p.FullClone {
			progress.Log("host %s: storage pool %s makes no overlays, so the image is copied", h.name, s.Storage)
		}
		p.FullClone = true
	}
	if !in.files() {
		p.format = "raw"
	}
	if !strings.HasPrefix(s.Network, bridgePrefix) {
		if err := h.networkActive(ctx, s.Network); err != nil {
			return p, err
		}
	}
	p.virtType, err = h.virtType(ctx, s.VirtType)
	if p.virtType == "qemu" {
		progress.Log("host %s: processors are emulated, which is slow: %s", h.name, h.whyEmulated(s.VirtType))
	}
	return p, err
}

func (h *host) networkActive(ctx context.Context, name string) error {
	up, err := ask(ctx, h, "asking for network "+name, func(l *libvirt.Libvirt) (int32, error) {
		network, err := l.NetworkLookupByName(name)
		if err != nil {
			return 0, err
		}
		return l.NetworkIsActive(network)
	})
	switch {
	case is(err, libvirt.ErrNoNetwork):
		return fmt.Errorf("host %s has no network %q; define it there, or name another one, or bridge:NAME for a bridge of the host", h.name, name)
	case err != nil:
		return err
	case up == 0:
		return fmt.Errorf("host %s: network %q is not active; start it by virsh net-start %s", h.name, name, name)
	}
	return nil
}

// makeVolumes makes the disk and the seed, and writes down that they are whole.
func (h *host) makeVolumes(ctx context.Context, m *machine, spec pool.Spec, p plan, progress pool.Progress) error {
	step := "Making the disk"
	if p.FullClone {
		step = "Copying the image"
	}
	progress.Step("disk", step, 0)
	if err := h.makeDisk(ctx, spec, p, progress); err != nil {
		return err
	}
	progress.Step("disk", step, 100)
	progress.Step("seed", "Writing what the machine reads at its first start", 0)
	if err := h.makeSeed(ctx, spec, p); err != nil {
		return err
	}
	if err := m.setStage(ctx, stageMade); err != nil {
		return err
	}
	progress.Step("seed", "Writing what the machine reads at its first start", 100)
	return nil
}

// first starts a machine for the first time and waits until it is ready.
func (m *machine) first(ctx context.Context, until string, progress pool.Progress) error {
	progress.Step("start", "Starting the machine", 0)
	if err := m.start(ctx); err != nil {
		return err
	}
	progress.Step("start", "Starting the machine", 100)
	if until == "" {
		until = "address"
		if _, static := m.mark.static(); static {
			until = "none"
		}
	}
	if err := m.ready(ctx, until, progress); err != nil {
		return err
	}
	return m.setStage(ctx, stageReady)
}

// start starts a machine that does not run.
func (m *machine) start(ctx context.Context) error {
	state, err := m.state(ctx)
	if err != nil || active(state) {
		return err
	}
	err = m.host.do(ctx, "starting domain "+m.document.Name, func(l *libvirt.Libvirt) error {
		_, err := l.DomainCreateWithFlags(m.dom, 0)
		return err
	})
	if is(err, libvirt.ErrOperationInvalid) {
		if state, err := m.state(ctx); err == nil && active(state) {
			return nil // somebody else was faster
		}
	}
	if err != nil && !errors.Is(err, pool.ErrUnreachable) && ctx.Err() == nil {
		return fmt.Errorf("%w. The host's log is /var/log/libvirt/qemu/%s.log", err, m.document.Name)
	}
	return err
}

// ready waits until a started machine is what until says.
func (m *machine) ready(ctx context.Context, until string, progress pool.Progress) error {
	what := map[string]string{"address": "Waiting for an address", "agent": "Waiting for the guest agent"}[until]
	if what == "" {
		return nil
	}
	progress.Step("wait", what, 0)
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, readyLimit, fmt.Errorf("it was not ready within %s", readyLimit))
	defer cancel()
	for {
		state, err := m.state(ctx)
		if err != nil {
			return err
		}
		if !active(state) {
			return fmt.Errorf("host %s: machine %s stopped while it started; what it printed is in %s there", m.host.name, m.document.Name, consoleLog(m.mark.ID))
		}
		switch until {
		case "address":
			if len(m.addresses(ctx, true)) > 0 {
				progress.Step("wait", what, 100)
				return nil
			}
		case "agent":
			if m.agent(ctx, `{"execute":"guest-ping"}`, nil) == nil {
				progress.Step("wait", what, 100)
				return nil
			}
		}
		// How long it takes nobody knows: it nears the end without reaching it.
		progress.Step("wait", what, int(99*time.Since(began)/(time.Since(began)+30*time.Second)))
		if err := wait(ctx, askEvery); err != nil {
			return fmt.Errorf("host %s: %s, machine %s: %w; what it printed is in %s there", m.host.name, what, m.document.Name, err, consoleLog(m.mark.ID))
		}
	}
}

// Change implements [pool.Driver].
func (d *driver) Change(ctx context.Context, ref pool.Ref, spec pool.Spec, progress pool.Progress) (pool.Found, error) {
	if err := check(spec); err != nil {
		return pool.Found{}, err
	}
	if _, err := d.parseSettings(spec.Settings); err != nil {
		return pool.Found{}, err
	}
	m, err := d.find(ctx, ref)
	if err != nil {
		return pool.Found{}, err
	}
	if err := m.change(ctx, spec, progress); err != nil {
		return d.last(ctx, m, err)
	}
	if m, err = m.host.find(ctx, ref.ID, ""); err != nil {
		return pool.Found{}, err
	}
	return m.show(ctx)
}

// change sets other sizes. A disk grows while the machine runs; other cores or memory need
// a restart, which a machine that runs is given.
func (m *machine) change(ctx context.Context, spec pool.Spec, progress pool.Progress) error {
	state, err := m.state(ctx)
	if err != nil {
		return err
	}
	if spec.Disk > 0 {
		if err := m.grow(ctx, uint64(spec.Disk)<<30, active(state), progress); err != nil {
			return err
		}
	}
	switch {
	case m.mark.Stage == stageRestarting:
		progress.Log("going on with a restart that was interrupted")
	case m.document.VCPU != nil && int(m.document.VCPU.Value) == spec.Cores && mebibytes(m.document.Memory) == spec.Memory:
		return nil
	case active(state) && m.mark.Stage.ready():
		// After a crash the next run reads here that the machine ran. It is written before the
		// sizes: once those are set, nothing else tells that a restart is due.
		if err := m.setStage(ctx, stageRestarting); err != nil {
			return err
		}
	}
	if err := m.resize(ctx, spec, progress); err != nil {
		return err
	}
	if !active(state) && m.mark.Stage != stageRestarting {
		return nil
	}
	progress.Log("machine %s is restarted, as other cores or memory need that", m.document.Name)
	if err := m.stop(ctx, progress); err != nil {
		return err
	}
	if err := m.start(ctx); err != nil || m.mark.Stage != stageRestarting {
		return err
	}
	return m.setStage(ctx, stageReady)
}

// resize sets the cores and the memory that the machine has from its next start on.
func (m *machine) resize(ctx context.Context, spec pool.Spec, progress pool.Progress) error {
	progress.Step("change", "Setting cores and memory", 0)
	err := m.host.do(ctx, "setting the cores and memory of "+m.document.Name, func(l *libvirt.Libvirt) error {
		// The most first where it rises, the present first where it falls.
		cores := []uint32{uint32(libvirt.DomainVCPUMaximum), 0}
		if m.document.VCPU != nil && int(m.document.VCPU.Value) > spec.Cores {
			slices.Reverse(cores)
		}
		for _, flag := range cores {
			if err := l.DomainSetVcpusFlags(m.dom, uint32(spec.Cores), flag|uint32(libvirt.DomainVCPUConfig)); err != nil {
				return err
			}
		}
		memory := []uint32{uint32(libvirt.DomainMemMaximum), 0}
		if mebibytes(m.document.Memory) > spec.Memory {
			slices.Reverse(memory)
		}
		for _, flag := range memory {
			if err := l.DomainSetMemoryFlags(m.dom, uint64(spec.Memory)<<10, flag|uint32(libvirt.DomainMemConfig)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	progress.Step("change", "Setting cores and memory", 100)
	return nil
}

// grow makes the disk larger. It is never made smaller.
func (m *machine) grow(ctx context.Context, wanted uint64, running bool, progress pool.Progress) error {
	in, err := m.host.storage(ctx, m.mark.Storage)
	if err != nil {
		return err
	}
	volume, err := m.host.volume(ctx, in, m.mark.Disk)
	if err != nil {
		return fmt.Errorf("host %s: disk %s of machine %s: %w", m.host.name, m.mark.Disk, m.document.Name, err)
	}
	document, err := m.host.describeVolume(ctx, volume)
	if err != nil {
		return err
	}
	if document.Capacity.Value == wanted {
		return nil
	}
	if document.Capacity.Value > wanted {
		return fmt.Errorf("machine %s: its disk has %d GiB and can't be made smaller; replace the machine, or ask for that size", m.document.Name, document.Capacity.Value>>30)
	}
	progress.Step("grow", "Growing the disk", 0)
	if !running {
		err = m.host.growVolume(ctx, volume, wanted)
	} else {
		err = m.host.do(ctx, "growing the disk of "+m.document.Name, func(l *libvirt.Libvirt) error {
			return l.DomainBlockResize(m.dom, "vda", wanted, libvirt.DomainBlockResizeBytes)
		})
		if err == nil {
			// libvirt takes the new size of a running machine's file from the file.
			_ = m.host.refresh(ctx, in)
		}
	}
	if err == nil {
		progress.Step("grow", "Growing the disk", 100)
	}
	return err
}

// Power implements [pool.Driver].
func (d *driver) Power(ctx context.Context, ref pool.Ref, action provisioner.PowerAction, progress pool.Progress) (pool.Found, error) {
	m, err := d.find(ctx, ref)
	if err != nil {
		return pool.Found{}, err
	}
	switch action {
	case provisioner.PowerStart:
		err = m.start(ctx)
	case provisioner.PowerStop:
		err = m.stop(ctx, progress)
	case provisioner.PowerRestart:
		if err = m.stop(ctx, progress); err == nil {
			err = m.start(ctx)
		}
	default:
		return pool.Found{}, fmt.Errorf("machine %s: %q is none of start, stop and restart", m.document.Name, cut(string(action), 100))
	}
	if err != nil {
		return d.last(ctx, m, err)
	}
	return m.show(ctx)
}

// stop asks a machine to shut down, and switches it off where it does not in time.
func (m *machine) stop(ctx context.Context, progress pool.Progress) error {
	state, err := m.state(ctx)
	if err != nil || !active(state) {
		return err
	}
	progress.Step("stop", "Stopping the machine", 0)
	err = m.host.do(ctx, "asking "+m.document.Name+" to shut down", func(l *libvirt.Libvirt) error {
		return l.DomainShutdownFlags(m.dom, libvirt.DomainShutdownDefault)
	})
	if errors.Is(err, pool.ErrUnreachable) || ctx.Err() != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < stopLimit; {
		state, err := m.state(ctx)
		if err != nil {
			return err
		}
		if !active(state) {
			progress.Step("stop", "Stopping the machine", 100)
			return nil
		}
		progress.Step("stop", "Stopping the machine", int(99*time.Since(began)/stopLimit))
		if err := wait(ctx, askEvery); err != nil {
			return fmt.Errorf("host %s: stopping machine %s: %w", m.host.name, m.document.Name, err)
		}
	}
	progress.Log("machine %s did not shut itself down within %s, and is switched off", m.document.Name, stopLimit)
	if err := m.off(ctx); err != nil {
		return err
	}
	progress.Step("stop", "Stopping the machine", 100)
	return nil
}

// off switches a machine off.
func (m *machine) off(ctx context.Context) error {
	err := m.host.do(ctx, "switching off "+m.document.Name, func(l *libvirt.Libvirt) error {
		return l.DomainDestroyFlags(m.dom, 0)
	})
	if is(err, libvirt.ErrOperationInvalid, libvirt.ErrNoDomain) {
		return nil // it was off
	}
	return err
}

// Destroy implements [pool.Driver].
func (d *driver) Destroy(ctx context.Context, ref pool.Ref, progress pool.Progress) error {
	m, err := d.find(ctx, ref)
	switch {
	case errors.Is(err, errName):
		progress.Log("%v; it stays", err)
		return d.leftovers(ctx, ref.ID)
	case errors.Is(err, pool.ErrGone):
		return d.leftovers(ctx, ref.ID)
	case err != nil:
		return err
	}
	progress.Step("destroy", "Removing the machine", 0)
	if err := m.off(ctx); err != nil {
		return err
	}
	progress.Step("destroy", "Removing the machine", 30)
	// The volumes first: as long as the domain is there, what is left is found by it.
	if err := m.removeVolumes(ctx); err != nil {
		return err
	}
	progress.Step("destroy", "Removing the machine", 70)
	err = m.host.do(ctx, "removing domain "+m.document.Name, func(l *libvirt.Libvirt) error {
		return l.DomainUndefineFlags(m.dom, libvirt.DomainUndefineManagedSave|libvirt.DomainUndefineSnapshotsMetadata|
			libvirt.DomainUndefineNvram|libvirt.DomainUndefineCheckpointsMetadata)
	})
	if err != nil && !is(err, libvirt.ErrNoDomain) {
		return err
	}
	progress.Step("destroy", "Removing the machine", 100)
	return nil
}

// removeVolumes removes a machine's disk and seed.
func (m *machine) removeVolumes(ctx context.Context) error {
	// The mark stands in a document that others may write: only names with the id are taken.
	if !slices.Contains([]string{diskName(m.mark.ID, "qcow2"), diskName(m.mark.ID, "raw")}, m.mark.Disk) {
		return fmt.Errorf("host %s: the mark of machine %s names the disk %q, which is not its own, so it stays; remove machine and disk by hand", m.host.name, m.document.Name, cut(m.mark.Disk, 100))
	}
	return m.host.removeVolumes(ctx, m.mark.Storage, m.mark.ID)
}

func (h *host) removeVolumes(ctx context.Context, storage, id string) error {
	in, err := h.storage(ctx, storage)
	if errors.Is(err, errNoStorage) {
		return nil // and with it its volumes
	}
	if err != nil {
		return err
	}
	for _, name := range []string{diskName(id, "qcow2"), diskName(id, "raw"), seedName(id)} {
		if err := h.removeVolume(ctx, in, name); err != nil {
			return err
		}
	}
	return nil
}

// leftovers removes the volumes of a machine whose domain somebody removed by hand.
func (d *driver) leftovers(ctx context.Context, id string) error {
	storages := d.config.Storages
	if len(storages) == 0 {
		storages = []string{"default"}
	}
	return d.each(func(h *host) error {
		for _, storage := range storages {
			if err := h.removeVolumes(ctx, storage, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// Settings implements [pool.Driver].
func (d *driver) Settings(raw json.RawMessage) error {
	_, err := d.parseSettings(raw)
	return err
}
