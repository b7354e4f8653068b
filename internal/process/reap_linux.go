package process

import (
	"context"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// ReapOrphans reaps processes that fell to this one, a Subreaper, and end while it
// goes on, until ctx ends: else each of them keeps its pid as a zombie, and a
// template that starts many runs out of those. Children for which ours is true are
// left to whoever waits for them.
func ReapOrphans(ctx context.Context, ours func(Info) bool) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		reapOrphans(ours)
		select {
		case <-ctx.Done():
			return
		case <-ended:
		}
	}
}

// reapOrphans reaps those that have ended. One that the list lacks for an instant is
// found at the next end of a child, or by KillDescendants.
func reapOrphans(ours func(Info) bool) {
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
