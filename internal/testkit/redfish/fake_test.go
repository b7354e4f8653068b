package redfish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"libvirt.org/go/libvirtxml"
)

// The domains of a fake: one as Blank of the hypervisors' kit makes it, and one without a CD drive.
const (
	blankID = "11111111-1111-4111-8111-111111111111"
	bareID  = "22222222-2222-4222-8222-222222222222"
)

const blankDocument = `<domain type='qemu'><name>bm1</name><uuid>` + blankID + `</uuid><memory unit='KiB'>1048576</memory><vcpu>2</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type><boot dev='hd'/><boot dev='network'/></os>
<devices>
<disk type='file' device='disk'><source file='/disk.qcow2'/><target dev='vda' bus='virtio'/></disk>
<disk type='file' device='cdrom'><target dev='sda' bus='sata'/><readonly/></disk>
<interface type='network'><mac address='52:54:00:12:34:56'/><source network='default'/><model type='virtio'/></interface>
</devices></domain>`

const bareDocument = `<domain type='qemu'><name>bm2</name><uuid>` + bareID + `</uuid><memory unit='GiB'>2</memory>
<os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type></os><devices/></domain>`

// fake is a hypervisor that remembers what it is asked for.
type fake struct {
	mu      sync.Mutex
	domains map[string]*Domain
	calls   []string
	fail    error // what all that changes something answers
	// acpi is false for guests that do not shut down when they are asked to.
	acpi bool
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{domains: map[string]*Domain{}, acpi: true}
	for _, text := range []string{blankDocument, bareDocument} {
		var document libvirtxml.Domain
		if err := document.Unmarshal(text); err != nil {
			t.Fatal(err)
		}
		f.domains[document.UUID] = &Domain{ID: document.UUID, Name: document.Name, Power: Off, Document: &document}
	}
	return f
}

// copied is a document that its owner may change.
func copied(document *libvirtxml.Domain) *libvirtxml.Domain {
	if document == nil {
		return nil
	}
	text, err := document.Marshal()
	if err != nil {
		panic(err)
	}
	var made libvirtxml.Domain
	if err := made.Unmarshal(text); err != nil {
		panic(err)
	}
	return &made
}

// note remembers a call of a domain.
func (f *fake) note(id, format string, args ...any) (*Domain, error) {
	d := f.domains[id]
	if d == nil {
		return nil, fmt.Errorf("domain %s: %w", id, ErrNoDomain)
	}
	f.calls = append(f.calls, d.Name+": "+fmt.Sprintf(format, args...))
	return d, f.fail
}

// did answers the calls since it was asked last.
func (f *fake) did() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.calls = nil }()
	return slices.Clone(f.calls)
}

// set changes something of a domain.
func (f *fake) set(id string, change func(*Domain)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f.domains[id])
}

func (f *fake) power(id string) Power {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.domains[id].Power
}

func (f *fake) Domains(ctx context.Context) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return []string{bareID, blankID}, ctx.Err()
}

func (f *fake) Domain(ctx context.Context, id string) (Domain, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.domains[id]
	if d == nil {
		return Domain{}, ErrNoDomain
	}
	shown := *d
	shown.Document, shown.Running = copied(d.Document), copied(d.Running)
	return shown, ctx.Err()
}

func (f *fake) Define(_ context.Context, document *libvirtxml.Domain) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.note(document.UUID, "define")
	if err == nil {
		d.Document = copied(document)
	}
	return err
}

func (f *fake) Start(_ context.Context, id string, once *libvirtxml.Domain) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	how := "as defined"
	if once != nil {
		how = "once from" + order(once)
	}
	d, err := f.note(id, "start %s", how)
	switch {
	case err != nil:
		return err
	case d.Power != Off:
		return errors.New("domain is already running")
	}
	d.Power, d.Running = On, copied(d.Document)
	if once != nil {
		d.Running = copied(once)
	}
	return nil
}

// order is in which order a document's devices start.
func order(document *libvirtxml.Domain) (text string) {
	for place := uint(1); ; place++ {
		found := ""
		for _, disk := range document.Devices.Disks {
			if disk.Boot != nil && disk.Boot.Order == place {
				found = disk.Target.Dev
			}
		}
		for _, each := range document.Devices.Interfaces {
			if each.Boot != nil && each.Boot.Order == place {
				found = "net"
			}
		}
		if found == "" {
			return text
		}
		text += " " + found
	}
}

func (f *fake) Stop(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.note(id, "stop")
	if err == nil {
		d.Power, d.Running = Off, nil
	}
	return err
}

func (f *fake) Shutdown(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.note(id, "shut down")
	if err == nil && f.acpi {
		d.Power, d.Running = Off, nil
	}
	return err
}

func (f *fake) Interrupt(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.note(id, "interrupt")
	return err
}

func (f *fake) Change(_ context.Context, id string, how Change, disk *libvirtxml.DomainDisk) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	verb := map[Change]string{Attach: "attach", Detach: "detach", Exchange: "exchange"}[how]
	if disk.Source == nil {
		verb += " nothing at"
	}
	d, err := f.note(id, "%s %s", verb, disk.Target.Dev)
	if err != nil {
		return err
	}
	same := func(each libvirtxml.DomainDisk) bool { return each.Target.Dev == disk.Target.Dev }
	switch at := slices.IndexFunc(d.Running.Devices.Disks, same); how {
	case Attach:
		d.Running.Devices.Disks = append(d.Running.Devices.Disks, *disk)
	case Detach:
		d.Running.Devices.Disks = slices.DeleteFunc(d.Running.Devices.Disks, same)
	case Exchange:
		d.Running.Devices.Disks[at] = *disk
	}
	return nil
}

func (f *fake) Capacity(context.Context, string, string) (uint64, error) { return 10 << 30, nil }

func (f *fake) Close() error { return nil }
