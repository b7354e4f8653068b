// Package isolation keeps what runs for one workspace from what runs for
// another, where the agent was started as root: which unprivileged uids it has,
// how a process gets one, how directories change hands between them, and what a
// uid may have left on the machine when the next one gets it.
//
// A Block is one uid for the caches and up to 64 for runs; each is the gid of
// the same number as well. Nothing here runs as root on data that others have
// made: it looks at owners and names, and never at content.
//
// It needs Linux. It knows nothing of queues, jobs, engines or templates.
//
// # Why it is done this way
//
// A child starts as root and drops to the run's uid and the caches' uid before it
// reads its job; the kernel lets it change between these two without a
// capability. A child with CAP_SETUID would be root in all but name, and a helper
// process for the caches would need a protocol and the same code twice. The
// caches' uid is given up before the first plan, for good.
//
// Init runs as the run's uid: a module's source may be an absolute path, and with
// the caches' uid a template could read every private repository in the mirrors.
// For the same reason packages and checkouts are copied, not moved: a moved file
// still belongs to its maker.
//
// There is no mount namespace: it needs a capability that containers rarely have.
package isolation
