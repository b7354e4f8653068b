// Package redfish is a BMC for tests: a Redfish service over HTTP in front of a libvirt daemon.
// Each domain is a computer system with a manager, a chassis, a virtual CD and a virtual USB
// stick, so that Ironic's driver redfish, or any other client, treats virtual machines as servers.
//
//	client ──HTTP──► Server ──Hypervisor──► libvirt daemon ──► QEMU
//	                   │
//	                   └─ downloads the images that are inserted, and keeps them until they are ejected
//
// What a client changes takes effect when a real server's firmware would apply it:
//
//	Boot.BootSourceOverrideTarget   at the next start; Once is used up by it, Continuous stays
//	Boot.BootSourceOverrideMode     at the next start
//	Bios/Settings                   at the next start
//	InsertMedia, EjectMedia         at once; a domain without a CD drive gets one at the next start
//
// A restart that the guest itself makes keeps the boot order of the start before it: QEMU does not
// end then. The names are those of DMTF's schemas, as far as sushy, the client of Ironic, and
// health checks read them; Description and Oem are left out.
//
// Faults are made on request: another password, answers of 500 or of HTML, slow ones, a power
// button that does nothing, a BMC that is away.
//
// [NewLab] has it all real: a libvirt daemon, QEMU, and a system that can be signed in to. What a
// real Ironic says of wrong BMCs is in [AllSaid], for those who read its errors.
//
// It must not know any pool.
package redfish
