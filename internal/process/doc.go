// Package process is what Tendril's two long-lived programs ask of the kernel
// about processes: not to be dumped or read by others of the same uid, to
// inherit the orphans of their children, to see all their descendants and to
// end every one of them, also those that an earlier start has left.
//
// It needs Linux and its /proc. It knows nothing of what the processes are:
// not of engines, provisions or spools.
package process
