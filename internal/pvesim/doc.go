// Package pvesim is a Proxmox VE cluster that exists in this process: its HTTP API over TLS, with
// nodes, storages, virtual machines, tasks, locks, privileges and tokens, and no hypervisor.
//
//	connection ── server.go ──► call ── api.go ──► method (machine, operations, storage, …)
//	                 │                                │
//	              fault.go                         task.go: a worker, its log, lock files
//	                                                  │
//	                                               backend.go: what really runs, if asked
//
// It answers as Proxmox VE 9.2 does, in status, reason phrase and body, and is held to recorded
// exchanges by TestRecorded, and to what answers of older versions look like by TestVersions. It
// has the traps of the real one: an error is 500 with a text; a machine that does not exist is 500
// or 403; starting it is 200 and a task that fails; the target of a clone is locked; nextid
// reserves nothing; /cluster/resources is ten seconds behind; each 401 takes three seconds.
//
// Time passes Options.Speed times as fast as on a clock. Methods of Server do by hand what the
// API has no call for: a node vanishes, another program takes a lock, a guest's agent starts late.
//
// Machines are records. With Options.Backend each is a virtual machine of a real hypervisor, with
// a guest that boots and an agent that answers; the tests of the Proxmox driver have one on
// libvirt and QEMU.
//
// Tests use it, and so does `trellis up --with pve-sim`, for people who have no Proxmox and want
// to see a class of machines come up. That is why it is no test kit, and imports no package
// testing. Nothing of it is made or read before Start.
//
// It must not know its clients.
package pvesim
