package agent

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/cgroup"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/redact"
	"github.com/tendril-run/tendril/internal/spool"
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

	said     *outputTail
	hide     func(string) string // what nobody is to read in what it said
	doorbell *os.File
	waiting  sync.WaitGroup
}

// launcher starts children.
type launcher struct {
	command, env []string // of each child
	uids         *uids
	children     *children
}

// start starts the command with the descriptors of package job. The files stay the
// caller's; the child has copies.
func (l launcher) start(j job.Job, files childFiles, uid int) (_ *child, err error) {
	p, err := newPipes()
	if err != nil {
		return nil, fmt.Errorf("make the child's pipes: %w", err)
	}
	// Our own program; and its end is its own, not that of a context.
	cmd := exec.Command(l.command[0], l.command[1:]...) //nolint:noctx // see above
	cmd.Env = append([]string{}, l.env...)              // never nil, which would be all of ours
	cmd.Dir = j.Dirs.Work
	cmd.Stdout, cmd.Stderr = p.said.write, p.said.write
	cmd.ExtraFiles = inherit(map[int]*os.File{
		job.ControlFD: p.control.read, job.SpoolFD: files.lines, job.LockFD: files.lock, job.DoorbellFD: p.doorbell.write,
		job.TailFD0: files.tail[0], job.TailFD1: files.tail[1], job.PlanFD: files.plan,
		job.StateInFD: files.stateIn, job.StateOutA: files.stateOut[0], job.StateOutB: files.stateOut[1],
	})
	l.uids.dress(cmd, j.Dirs, uid)
	// A session of its own: a signal to our terminal is for us. No Pdeathsig:
	// when we die the child still has an ending to see to.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	memory := cgroup.Own()
	kills := memory.Kills()
	err = l.children.start(cmd)
	p.closeChilds()
	if err != nil {
		p.closeOurs()
		return nil, fmt.Errorf("start %s: %w", strings.Join(l.command, " "), err)
	}
	c := &child{
		cmd: cmd, control: newControl(p.control.write, j), said: newOutputTail(p.said.read), doorbell: p.doorbell.read,
		wake: make(chan struct{}, 1), ended: make(chan struct{}), memory: memory, kills: kills,
		// A crash prints what it pleases, and no masker is in its way.
		hide: func(text string) string { return redact.Text(text, j.Secrets(l.env)...) },
	}
	c.waiting.Go(func() { spool.Listen(c.doorbell, c.wake) })
	c.waiting.Go(func() {
		defer close(c.ended)
		l.children.wait(cmd)
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

// mostMessages is how many messages wait for a child that does not read. It
// waits for each answer before it asks again, so one that has not read this
// many waits for none of them.
const mostMessages = 64

// control is the agent's end of a child's control pipe. Sending never waits:
// a child that is stuck must not hold up the agent. While it is open the child
// knows that the agent lives.
type control struct {
	pipe     *os.File
	messages chan any
	closed   chan struct{}
	writing  sync.WaitGroup
}

// newControl starts to write to the pipe, the job first.
func newControl(pipe *os.File, j job.Job) *control {
	c := &control{pipe: pipe, messages: make(chan any, mostMessages), closed: make(chan struct{})}
	c.messages <- j
	c.writing.Go(c.write)
	return c
}

// send puts a message on its way, or drops it when too many wait.
func (c *control) send(message job.Control) {
	select {
	case c.messages <- message:
	default:
	}
}

func (c *control) write() {
	for {
		select {
		case <-c.closed:
			return
		case message := <-c.messages:
			if err := job.Write(c.pipe, message); err != nil {
				return // the child has ended, or close came in between
			}
		}
	}
}

// close ends the pipe, also under a write that waits for the child.
func (c *control) close() {
	close(c.closed)
	_ = c.pipe.Close()
	c.writing.Wait()
}

// tailSize is how much of what a child says on its own stdout and stderr is
// kept, in bytes: a Go panic fits, a flood does not.
const tailSize = 8 << 10

// outputTail keeps the end of what comes out of a pipe, twice as much as is shown: what
// is cut off is then found whole by who hides it.
type outputTail struct {
	pipe    *os.File
	reading sync.WaitGroup
	kept    []byte
}

func newOutputTail(pipe *os.File) *outputTail {
	t := &outputTail{pipe: pipe}
	t.reading.Go(t.read)
	return t
}

func (t *outputTail) read() {
	buf := make([]byte, 4<<10)
	for {
		n, err := t.pipe.Read(buf)
		t.kept = append(t.kept, buf[:n]...)
		if more := len(t.kept) - 2*tailSize; more > 0 {
			t.kept = append(t.kept[:0], t.kept[more:]...)
		}
		if err != nil {
			return
		}
	}
}

// end returns what was kept. What still holds the other end is not waited for.
func (t *outputTail) end() string {
	_ = t.pipe.SetReadDeadline(time.Now().Add(tailPatience))
	t.reading.Wait()
	_ = t.pipe.Close()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.kept), "?"))
}

// tailPatience is for what is in the pipe when the child has ended.
const tailPatience = 100 * time.Millisecond
