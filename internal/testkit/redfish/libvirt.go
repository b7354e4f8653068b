package redfish

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
	"github.com/google/uuid"
	"libvirt.org/go/libvirtxml"
)

// connectTimeout bounds how long a daemon may take to accept a connection.
const connectTimeout = 15 * time.Second

// daemon is a libvirt daemon. It connects when it is asked first, and again when the
// connection was lost: the daemons of tests are killed.
type daemon struct {
	socket string

	mu     sync.Mutex
	conn   *libvirt.Libvirt
	closed bool
}

// Libvirt answers the daemon at a URL such as unix:///run/libvirt/libvirt-sock. It connects
// to nothing yet.
func Libvirt(address string) (Hypervisor, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "unix" || u.Path == "" {
		return nil, fmt.Errorf("the libvirt daemon's URL %q is not unix:///path/libvirt-sock", address)
	}
	return &daemon{socket: u.Path}, nil
}

// connected answers the connection, and makes one if there is none.
func (d *daemon) connected() (*libvirt.Libvirt, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return nil, errors.New("the connection to libvirt is closed")
	case d.conn != nil && d.conn.IsConnected():
		return d.conn, nil
	}
	conn := libvirt.NewWithDialer(dialers.NewLocal(dialers.WithSocket(d.socket), dialers.WithLocalTimeout(connectTimeout)))
	if err := conn.ConnectToURI(libvirt.QEMUSystem); err != nil {
		return nil, fmt.Errorf("no connection to libvirt at %s: %w", d.socket, err)
	}
	d.conn = conn
	return conn, nil
}

// Close implements [Hypervisor].
func (d *daemon) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.conn == nil || !d.conn.IsConnected() {
		return nil
	}
	return d.conn.Disconnect()
}

// with does something with a domain.
func (d *daemon) with(ctx context.Context, id, what string, do func(*libvirt.Libvirt, libvirt.Domain) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	parsed, err := uuid.Parse(id)
	if err != nil {
		return fmt.Errorf("domain %q: %w", id, ErrNoDomain)
	}
	l, err := d.connected()
	if err != nil {
		return err
	}
	domain, err := l.DomainLookupByUUID(libvirt.UUID(parsed))
	if err == nil {
		err = do(l, domain)
	}
	if said := (libvirt.Error{}); errors.As(err, &said) && said.Code == uint32(libvirt.ErrNoDomain) {
		return fmt.Errorf("domain %s: %w", id, ErrNoDomain)
	}
	if err != nil {
		return fmt.Errorf("domain %s: %s: %w", id, what, err)
	}
	return nil
}

// Domains implements [Hypervisor].
func (d *daemon) Domains(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l, err := d.connected()
	if err != nil {
		return nil, err
	}
	domains, _, err := l.ConnectListAllDomains(1, 0)
	if err != nil {
		return nil, fmt.Errorf("listing the domains: %w", err)
	}
	ids := make([]string, len(domains))
	for i, each := range domains {
		ids[i] = uuid.UUID(each.UUID).String()
	}
	return ids, nil
}

// Domain implements [Hypervisor].
func (d *daemon) Domain(ctx context.Context, id string) (Domain, error) {
	found := Domain{ID: id}
	err := d.with(ctx, id, "reading it", func(l *libvirt.Libvirt, domain libvirt.Domain) error {
		state, _, err := l.DomainGetState(domain, 0)
		if err != nil {
			return err
		}
		switch libvirt.DomainState(state) {
		case libvirt.DomainShutdown:
			found.Power = PoweringOff
		case libvirt.DomainShutoff, libvirt.DomainCrashed, libvirt.DomainNostate:
			found.Power = Off
		default:
			found.Power = On
		}
		read := func(flags libvirt.DomainXMLFlags) (*libvirtxml.Domain, error) {
			text, err := l.DomainGetXMLDesc(domain, flags|libvirt.DomainXMLSecure)
			if err != nil {
				return nil, err
			}
			var document libvirtxml.Domain
			return &document, document.Unmarshal(text)
		}
		if found.Document, err = read(libvirt.DomainXMLInactive); err != nil {
			return err
		}
		if found.Power != Off {
			found.Running, err = read(0)
		}
		found.Name = found.Document.Name
		return err
	})
	return found, err
}

// Define implements [Hypervisor].
func (d *daemon) Define(ctx context.Context, document *libvirtxml.Domain) error {
	return d.with(ctx, document.UUID, "defining it", func(l *libvirt.Libvirt, _ libvirt.Domain) error {
		text, err := document.Marshal()
		if err != nil {
			return err
		}
		_, err = l.DomainDefineXMLFlags(text, 0)
		return err
	})
}

// Start implements [Hypervisor]. A domain that is defined keeps its definition when it is
// started by another document.
func (d *daemon) Start(ctx context.Context, id string, once *libvirtxml.Domain) error {
	return d.with(ctx, id, "starting it", func(l *libvirt.Libvirt, domain libvirt.Domain) error {
		if once == nil {
			return l.DomainCreate(domain)
		}
		text, err := once.Marshal()
		if err != nil {
			return err
		}
		_, err = l.DomainCreateXML(text, 0)
		return err
	})
}

// Stop implements [Hypervisor].
func (d *daemon) Stop(ctx context.Context, id string) error {
	return d.with(ctx, id, "stopping it", func(l *libvirt.Libvirt, domain libvirt.Domain) error {
		return l.DomainDestroy(domain)
	})
}

// Shutdown implements [Hypervisor].
func (d *daemon) Shutdown(ctx context.Context, id string) error {
	return d.with(ctx, id, "shutting it down", func(l *libvirt.Libvirt, domain libvirt.Domain) error {
		return l.DomainShutdownFlags(domain, libvirt.DomainShutdownAcpiPowerBtn)
	})
}

// Interrupt implements [Hypervisor].
func (d *daemon) Interrupt(ctx context.Context, id string) error {
	return d.with(ctx, id, "sending it an NMI", func(l *libvirt.Libvirt, domain libvirt.Domain) error {
		return l.DomainInjectNmi(domain, 0)
	})
}

// Change implements [Hypervisor].
func (d *daemon) Change(ctx context.Context, id string, how Change, disk *libvirtxml.DomainDisk) error {
	text, err := disk.Marshal()
	if err != nil {
		return err
	}
	return d.with(ctx, id, "changing its disk "+disk.Target.Dev, func(l *libvirt.Libvirt, domain libvirt.Domain) error {
		switch how {
		case Attach:
			return l.DomainAttachDeviceFlags(domain, text, uint32(libvirt.DomainDeviceModifyLive))
		case Detach:
			return l.DomainDetachDeviceFlags(domain, text, uint32(libvirt.DomainDeviceModifyLive))
		}
		return l.DomainUpdateDeviceFlags(domain, text, libvirt.DomainDeviceModifyLive|libvirt.DomainDeviceModifyForce)
	})
}

// Capacity implements [Hypervisor].
func (d *daemon) Capacity(ctx context.Context, id, target string) (size uint64, err error) {
	err = d.with(ctx, id, "reading the size of "+target, func(l *libvirt.Libvirt, domain libvirt.Domain) error {
		_, size, _, err = l.DomainGetBlockInfo(domain, target, 0)
		return err
	})
	return size, err
}
