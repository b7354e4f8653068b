package agent

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/tendril-run/tendril/internal/cgroup"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/logstream"
)

// child is the process of one run, seen from the agent.
type child struct {
	cmd     *exec.Cmd
	control *control
	// wake receives when the spool has grown.
	wake chan struct{}
	// ended is closed when the process has.
	ended chan struct{}

	memory cgroup.Memory
	kills  int64 // for want of memory, before it was started

	said     *tail
	hide     func(string) string // what nobody is to read in what it said
	doorbell *os.File
	waiting  sync.WaitGroup
}

// startChild starts the command with the descriptors of package job. The
// files stay the caller's; the child has copies.
func (b *boot) startChild(j job.Job, files spoolFiles, uid int) (_ *child, err error) {
	p, err := newPipes()
	if err != nil {
		return nil, fmt.Errorf("make the child's pipes: %w", err)
	}
	// Our own program; and its end is its own, not that of a context.
	cmd := exec.Command(b.options.Command[0], b.options.Command[1:]...) //nolint:noctx // see above
	cmd.Env = append([]string{}, b.options.Env...)                      // never nil, which would be all of ours
	cmd.Dir = j.Dirs.Work
	cmd.Stdout, cmd.Stderr = p.said.write, p.said.write
	cmd.ExtraFiles = inherit(map[int]*os.File{
		job.ControlFD: p.control.read, job.SpoolFD: files.lines, job.LockFD: files.lock, job.DoorbellFD: p.doorbell.write,
		job.TailFD0: files.tail[0], job.TailFD1: files.tail[1], job.PlanFD: files.plan,
		job.StateInFD: files.stateIn, job.StateOutA: files.stateOut[0], job.StateOutB: files.stateOut[1],
	})
	b.dir.uids.dress(cmd, j.Dirs, uid)
	// A session of its own: a signal to our terminal is for us. No Pdeathsig:
	// when we die the child still has an ending to see to.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	memory := cgroup.Own()
	kills := memory.Kills()
	err = b.nursery.start(cmd)
	p.closeChilds()
	if err != nil {
		p.closeOurs()
		return nil, fmt.Errorf("start %s: %w", strings.Join(b.options.Command, " "), err)
	}
	c := &child{
		cmd: cmd, control: newControl(p.control.write, j), said: newTail(p.said.read), doorbell: p.doorbell.read,
		wake: make(chan struct{}, 1), ended: make(chan struct{}), memory: memory, kills: kills,
		// A crash prints what it pleases, and no masker is in its way.
		hide: func(text string) string { return logstream.Redact(text, j.Secrets(b.options.Env)...) },
	}
	c.waiting.Go(func() { logstream.Listen(c.doorbell, c.wake) })
	c.waiting.Go(func() {
		defer close(c.ended)
		b.nursery.wait(cmd)
	})
	return c, nil
}

// inherit is what gives a child each file as that descriptor.
func inherit(at map[int]*os.File) (files []*os.File) {
	for fd, file := range at {
		for len(files) <= fd-job.ControlFD {
			files = append(files, nil)
		}
		files[fd-job.ControlFD] = file
	}
	return files
}

// kill ends the process without asking. What it started falls to the agent.
func (c *child) kill() { _ = c.cmd.Process.Kill() }

// clear closes what belonged to a process that has ended, and returns the end
// of what it said on its own behalf.
func (c *child) clear() string {
	c.control.close()
	_ = c.doorbell.Close()
	c.waiting.Wait()
	said := c.said.end()
	if said == "" { // as a rule
		return ""
	}
	said = c.hide(said)
	return strings.ToValidUTF8(said[max(0, len(said)-tailSize):], "?")
}

// how says in words how the process ended, such as "ended with exit status 2".
func (c *child) how() string {
	status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return fmt.Sprintf("was ended by signal %d (%s)", int(status.Signal()), status.Signal())
	}
	return fmt.Sprintf("ended with exit status %d", c.cmd.ProcessState.ExitCode())
}

// outOfMemory says that the process was killed for want of memory, with the limit; "" if
// it was not.
func (c *child) outOfMemory() string {
	status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		return ""
	}
	return c.memory.Since(c.kills)
}

// pipe is both ends of one.
type pipe struct{ read, write *os.File }

// pipes are those between agent and child.
type pipes struct{ control, doorbell, said pipe }

func newPipes() (*pipes, error) {
	p := &pipes{}
	for _, one := range []*pipe{&p.control, &p.doorbell, &p.said} {
		var err error
		if one.read, one.write, err = os.Pipe(); err != nil {
			p.closeChilds()
			p.closeOurs()
			return nil, err
		}
	}
	return p, nil
}

func (p *pipes) closeChilds() { closeAll(p.control.read, p.doorbell.write, p.said.write) }
func (p *pipes) closeOurs()   { closeAll(p.control.write, p.doorbell.read, p.said.read) }

func closeAll(files ...*os.File) {
	for _, file := range files {
		_ = file.Close() // a pipe's end holds nothing that could be lost; nil is none
	}
}
