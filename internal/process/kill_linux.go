package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// The pause between looks when all that lives has been killed and only
	// has to die: it begins short, for most die at once.
	firstPause = time.Millisecond
	lastPause  = 50 * time.Millisecond
)

// KillDescendants sends SIGKILL to every descendant of this process, again and
// again until none lives, and returns nil then. What starts meanwhile is found
// at the next look, whatever session or group it moved to, provided that this
// process is a Subreaper. When the context ends first, the error names what is
// left: processes of another user, or stuck in the kernel.
//
// Where except is true for a process, that one and all below it are left alone.
// It is asked after the processes were listed, so a caller that starts children
// under a lock and takes the lock in except spares those that start meanwhile.
//
// Zombies are reaped, each by its pid and never by a wait for any child, which
// would steal the exit status of children that os/exec waits for. For the same
// reason, when except is nil only those zombies are reaped that were seen below
// another process before this one inherited them: os/exec gets the rest. With
// an except, every zombie child that it does not claim is reaped.
func KillDescendants(ctx context.Context, except func(Info) bool) error {
	k := killer{self: os.Getpid(), except: except, known: map[key]bool{}, refused: map[key]error{}}
	pause := firstPause
	for {
		if k.nothing() {
			return nil
		}
		infos, err := all()
		if err != nil {
			return err
		}
		living, news := k.look(infos)
		if living == nil && !news {
			return nil
		}
		if news {
			pause = firstPause
			if ctx.Err() == nil {
				continue // there may be more behind what is new
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			pause = min(2*pause, lastPause)
		case <-ctx.Done():
			timer.Stop()
			return k.left(living, context.Cause(ctx))
		}
	}
}

// nothing reports whether there is no descendant to end. The kernel knows at
// once what takes a walk through /proc otherwise, which costs the more the more
// processes the machine has, and most runs leave nothing behind.
func (k *killer) nothing() bool {
	if childless() {
		return true
	}
	if k.except == nil {
		return false
	}
	children, err := childrenOf(k.self)
	if err != nil {
		return false
	}
	for _, pid := range children {
		child, err := read(pid)
		if err != nil || !k.except(child) {
			return false
		}
	}
	return true
}

// childless reports whether this process has no child at all, living or
// zombie, and so no descendant. Nothing is reaped by asking (WNOWAIT).
func childless() bool {
	_, err := firstEnded()
	return errors.Is(err, unix.ECHILD)
}

// zombie returns the pid of a child that has ended and that nobody has waited for, or
// 0. Nothing is reaped by asking.
func zombie() int {
	pid, _ := firstEnded() // ECHILD: no child, and no zombie
	return pid
}

// firstEnded asks the kernel, and waits for nothing.
func firstEnded() (pid int, err error) {
	for {
		var info unix.Siginfo
		err = unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, err
		}
		// si_pid, which x/sys has no name for, follows signal, errno, code and padding.
		return int((*[32]int32)(unsafe.Pointer(&info))[4]), nil //nolint:gosec // the structure has 128 bytes
	}
}

// key names one process for ever.
type key struct {
	pid     int
	started uint64
}

func (i Info) key() key { return key{i.PID, i.Started} }

type killer struct {
	self   int
	except func(Info) bool
	// known has the processes seen so far: true when below another process
	// than this one.
	known   map[key]bool
	refused map[key]error // what could not be killed
}

// look kills what lives and reaps what is dead. It returns what lived, and
// whether it saw any process that it did not know: one that forks and ends at
// once may show nothing but a new zombie at each look.
func (k *killer) look(infos []Info) (living []Info, news bool) {
	targets := k.targets(infos)
	for _, t := range targets {
		if !t.Zombie {
			living = append(living, t)
		}
		inherited, seen := k.known[t.key()]
		news = news || !seen
		k.known[t.key()] = inherited || t.Parent != k.self
	}
	k.killGroups(infos, targets)
	for _, t := range living {
		k.kill(t)
	}
	for _, t := range targets {
		if t.Zombie && t.Parent == k.self && (k.except != nil || k.known[t.key()]) {
			_, _ = unix.Wait4(t.PID, nil, unix.WNOHANG, nil) // ECHILD: somebody else was first
		}
	}
	return living, news
}

// targets are the descendants without those that are excepted and their own.
func (k *killer) targets(infos []Info) []Info {
	if k.except == nil {
		return below(k.self, infos)
	}
	spared := map[int]bool{}
	var targets []Info
	for _, info := range below(k.self, infos) { // parents come first
		if spared[info.Parent] || k.except(info) {
			spared[info.PID] = true
			continue
		}
		targets = append(targets, info)
	}
	return targets
}

// killGroups kills process groups that consist of targets alone. The kernel
// does that in one step in which no member can fork, so it ends those too that
// fork and exit faster than they can be looked at one by one.
func (k *killer) killGroups(infos, targets []Info) {
	target := make(map[int]bool, len(targets))
	for _, t := range targets {
		target[t.PID] = true
	}
	mixed := map[int]bool{unix.Getpgrp(): true, 0: true, 1: true}
	for _, info := range infos {
		if !target[info.PID] {
			mixed[info.Group] = true
		}
	}
	for _, t := range targets {
		if !mixed[t.Group] {
			mixed[t.Group] = true // once
			_ = unix.Kill(-t.Group, unix.SIGKILL)
		}
	}
}

// kill kills exactly the process that was seen: FindProcess holds on to
// whatever has the pid now, and only then is it compared.
func (k *killer) kill(target Info) {
	p, err := os.FindProcess(target.PID)
	if err != nil {
		return
	}
	defer func() { _ = p.Release() }()
	if now, err := read(target.PID); err != nil || now.Started != target.Started {
		return
	}
	if err := p.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		k.refused[target.key()] = err
	}
}

// left is the error for what still lives.
func (k *killer) left(living []Info, cause error) error {
	const most = 10
	var names []string
	for i, info := range living {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(living)-most))
			break
		}
		name := fmt.Sprintf("%d (%s)", info.PID, strings.ToValidUTF8(info.Name, "?"))
		if err := k.refused[info.key()]; err != nil {
			name += ": " + err.Error()
		}
		names = append(names, name)
	}
	if names == nil {
		names = []string{"only such that start again all the time"}
	}
	return fmt.Errorf("processes are still alive after SIGKILL: %s: %w", strings.Join(names, ", "), cause)
}
