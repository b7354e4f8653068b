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
package isolation
