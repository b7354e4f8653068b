package process

import (
	"errors"
	"io"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a child that leads a process group.
type Group struct {
	cmd     *exec.Cmd
	copying sync.WaitGroup

	mu   sync.Mutex
	over bool // the leader may be reaped, and its id belong to another process
}

// StartGroup starts a command that leads a group (Setpgid), and copies what it prints to
// two writers, each of which another goroutine writes to; where one is nil, the command's
// own setting holds. At the end of the command's context the group is killed.
func StartGroup(cmd *exec.Cmd, stdout, stderr io.Writer) (*Group, error) {
	var copies []func()
	for _, stream := range []struct {
		to   io.Writer
		pipe func() (io.ReadCloser, error)
	}{{stdout, cmd.StdoutPipe}, {stderr, cmd.StderrPipe}} {
		if stream.to == nil {
			continue
		}
		from, err := stream.pipe()
		if err != nil {
			return nil, err
		}
		copies = append(copies, func() { _, _ = io.Copy(stream.to, from) }) // until Wait closes it, at the latest
	}
	g := &Group{cmd: cmd}
	if cmd.Cancel != nil {
		cmd.Cancel = func() error {
			g.Signal(unix.SIGKILL)
			return nil
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for _, c := range copies {
		g.copying.Go(c)
	}
	return g, nil
}

// Signal sends a signal to the group, unless it has ended, which false says.
func (g *Group) Signal(signal unix.Signal) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.over && unix.Kill(-g.cmd.Process.Pid, signal) == nil
}

// Wait waits until the leader has ended. What it has left running in its group may print
// for the length of linger, and is killed then. The error is that of exec.Cmd.Wait.
//
// The group is killed before the leader is reaped: afterwards, its id may belong to
// another group.
func (g *Group) Wait(linger time.Duration) error {
	for {
		err := unix.Waitid(unix.P_PID, g.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		g.copying.Wait()
	}()
	late := time.NewTimer(linger)
	select {
	case <-copied:
	case <-late.C:
	}
	late.Stop()
	g.Signal(unix.SIGKILL)
	g.mu.Lock()
	g.over = true
	g.mu.Unlock()
	err := g.cmd.Wait()
	<-copied
	return err
}
