// Package libvirt is the driver of pools of kind libvirt: one or several hypervisors, each with
// a libvirt daemon, each a node.
//
//	driver ── a host for each hypervisor: one connection, made when it is needed
//	  ├─ machine   find by the mark; create, change, power, destroy
//	  ├─ volume    the disk (an overlay of an image, or a copy) and the seed
//	  ├─ seed      what cloud-init reads at the first start, as a disk labelled cidata
//	  └─ agent     QEMU's guest agent: addresses, commands
//
// A machine is a domain whose UUID is the machine's id and whose metadata has an element of
// this package's namespace with the same id. Both must agree: a domain that somebody cloned has
// the element with another UUID, and is not ours. The volumes have the id in their names.
//
//	(nothing) ──define──► defined ──disks──► made ──start, wait──► ready
//	ready, running ──Change──► restarting ──sizes, stop, start──► ready
//
// The domain comes first, so that all that follows is found by it, and its stage is in the
// metadata: Create and Change begin where the one before them ended, after a crash at any
// moment.
//
// A hypervisor may be hostile: wire bounds what is read before anything is decoded, and each
// request has a time limit. A host that fails answers with its error at once for some seconds,
// so that it delays nobody who asks the others.
//
// The package must not know runs, plans or the protocol of provisioners.
package libvirt
