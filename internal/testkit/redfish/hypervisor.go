package redfish

import (
	"context"
	"errors"

	"libvirt.org/go/libvirtxml"
)

// ErrNoDomain says that there is no domain of that UUID.
var ErrNoDomain = errors.New("no such domain")

// Hypervisor is what a service switches: a libvirt daemon, or what a test puts in its place. Its
// methods can be called at the same time.
type Hypervisor interface {
	// Domains answers the UUIDs of all.
	Domains(ctx context.Context) ([]string, error)
	// Domain answers one, or [ErrNoDomain].
	Domain(ctx context.Context, id string) (Domain, error)
	// Define changes how a domain starts next.
	Define(ctx context.Context, document *libvirtxml.Domain) error
	// Start starts a domain: as it is defined or, for this once, as a document says.
	Start(ctx context.Context, id string, once *libvirtxml.Domain) error
	// Stop ends it at once, as pulling the plug does.
	Stop(ctx context.Context, id string) error
	// Shutdown asks its guest to shut down, by ACPI.
	Shutdown(ctx context.Context, id string) error
	// Interrupt sends its processors an NMI.
	Interrupt(ctx context.Context, id string) error
	// Change changes a disk of a domain that runs, and nothing of how it starts next.
	Change(ctx context.Context, id string, how Change, disk *libvirtxml.DomainDisk) error
	// Capacity is the size of a disk, by its target, in bytes.
	Capacity(ctx context.Context, id, target string) (uint64, error)
	// Close ends the connection.
	Close() error
}

// Change is what is done with a disk.
type Change int

// All changes.
const (
	Attach Change = iota
	Detach
	Exchange // the medium in a drive that is there
)

// Domain is a machine.
type Domain struct {
	ID, Name string
	Power    Power
	// Document is how it starts next, and Running how it runs; nil where it doesn't.
	Document, Running *libvirtxml.Domain
}

// Power is one of Redfish's power states.
type Power string

// All power states.
const (
	On          Power = "On"
	Off         Power = "Off"
	PoweringOff Power = "PoweringOff"
)
