package process

import (
	"context"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// ReapOrphans reaps processes that fell to this one, a Subreaper, and end while it
// goes on, until ctx ends: else each of them keeps its pid as a zombie, and a
// template that starts many runs out of those. Children for which ours is true are
// left to the code that waits for them.
func ReapOrphans(ctx context.Context, ours func(Info) bool) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		var again <-chan time.Time
		if reapFirst(ours) {
			again = time.After(soon)
		}
		select {
		case <-ctx.Done():
			return
		case <-again:
			if reapFirst(ours) {
				reapListed(ours)
			}
		case <-ended:
		}
	}
}

// soon is how long somebody who waits for a child of theirs may take.
const soon = 5 * time.Millisecond

// reapFirst reaps those that have ended, up to the first that is left to the code that waits
// for it, and reports whether there is one.
//
// It asks the kernel for zombies instead of listing children. Each look into
// /proc/PID/task costs the kernel twice: now, and when the process ends, for it then
// walks what was looked at, 5 ms of processor time for each run.
func reapFirst(ours func(Info) bool) (behind bool) {
	for {
		pid := zombie()
		if pid == 0 {
			return false
		}
		child, err := read(pid)
		switch {
		case err != nil: // somebody else was first
		case ours(child) || !child.Zombie:
			return true
		default:
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // ECHILD: somebody else was first
		}
	}
}

// reapListed reaps those that have ended, also behind one that nobody waits for yet. One
// that the list lacks for an instant is found at the next end of a child, or by
// KillDescendants.
func reapListed(ours func(Info) bool) {
	self := os.Getpid()
	children, err := childrenOf(self)
	if err != nil {
		return // a kernel without that list
	}
	for _, pid := range children {
		child, err := read(pid)
		if err == nil && child.Zombie && child.Parent == self && !ours(child) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // ECHILD: somebody else was first
		}
	}
}

// InOwnSession is for ReapOrphans in a process that leads a session and starts
// children in it, each in this process's group or as the leader of its own: it is
// true for those, and false for almost all that such a child has started. What it
// cannot tell apart stays a zombie until KillDescendants.
func InOwnSession() func(Info) bool {
	session, _ := unix.Getsid(0) // never fails for oneself
	group := unix.Getpgrp()
	return func(i Info) bool { return i.Session == session && (i.Group == group || i.Group == i.PID) }
}
