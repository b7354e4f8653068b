package executor

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/protocol"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/timelimit"
)

// programs starts the commands of a template that is carried out by programs of its own.
type programs struct {
	*task
	dir     string // the template's
	env     []string
	confine func() error
	// said keeps the end of what they print, in place of the log; nil: nothing does.
	said *lastLines
}

// program is one of them. It has a process group of its own, and dies with this process.
type program struct {
	protocol.Program
	cmd   *exec.Cmd
	ended chan struct{}

	mu   sync.Mutex
	over bool // its process id may belong to another by now
}

// path is what a command's first word names: a file of the template, or an absolute path.
func (p programs) path(word string) string {
	if strings.HasPrefix(word, "./") {
		return filepath.Join(p.dir, word)
	}
	return word
}

// start starts a command, with the lines that it writes to stderr for people.
func (p programs) start(command []string, people io.Writer, more ...string) (*program, error) {
	in, toIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, toOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), toIn.Close())
	}
	stderr := &wholeLines{to: people}
	cmd := exec.CommandContext(context.Background(), p.path(command[0]), command[1:]...)
	cmd.Dir, cmd.Env = p.dir, append(p.env[:len(p.env):len(p.env)], more...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, toOut, stderr
	cmd.WaitDelay = time.Second // for a stderr that something left behind keeps open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := &program{Program: protocol.Program{In: toIn, Out: out}, cmd: cmd, ended: make(chan struct{})}
	began := make(chan error, 1)
	// The kernel kills the program when the thread that started it ends, so the thread is
	// ours until the program has ended.
	go func() {
		defer close(started.ended)
		runtime.LockOSThread()
		err := p.begin(cmd)
		_ = errors.Join(in.Close(), toOut.Close()) // the program has its own
		began <- err
		if err != nil {
			return
		}
		_ = cmd.Wait()                  // ProcessState has it
		started.signal(syscall.SIGKILL) // what it left behind keeps its stdout open, and can't answer for it
		stderr.end()
	}()
	if err := <-began; err != nil {
		return nil, errors.Join(err, toIn.Close(), out.Close())
	}
	return started, nil
}

// printed is where what they print goes.
func (p programs) printed(stream provision.Stream) io.Writer {
	switch {
	case p.said == nil:
		return p.log.Stream(stream)
	case stream == provision.Stderr:
		return &p.said.stderr
	}
	return &p.said.stdout
}

func (p programs) begin(cmd *exec.Cmd) error {
	if p.confine != nil {
		if err := p.confine(); err != nil {
			return err
		}
	}
	return cmd.Start()
}

// interrupt asks the program to end.
func (p *program) interrupt() { p.signal(syscall.SIGINT) }

func (p *program) signal(signal syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		_ = syscall.Kill(-p.cmd.Process.Pid, signal) // it may have ended
	}
}

// exitTime is how long a program may take to end after it has closed its stdout.
const exitTime = 10 * time.Second

// end waits until the program has ended, and kills it and what it has started when that
// takes too long, or at once. It returns the exit status, -1 for one that a signal ended.
func (p *program) end(atOnce bool) int {
	if atOnce {
		p.signal(syscall.SIGKILL)
	}
	late := time.AfterFunc(exitTime, func() { p.signal(syscall.SIGKILL) })
	<-p.ended
	late.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	return p.cmd.ProcessState.ExitCode()
}

// shell runs a line of the template's in a shell, as run does.
func (p programs) shell(ctx, limited context.Context, line string, more ...string) error {
	return p.run(ctx, limited, []string{"/bin/sh", "-c", line}, more...)
}

// exitError is the end of a command that did not end well by itself.
type exitError struct {
	status int // -1: a signal ended it
	text   string
}

func (e *exitError) Error() string { return e.text }

// run runs a command that is asked nothing, with its output in the log. It is interrupted
// when ctx ends and killed when limited does.
func (p programs) run(ctx, limited context.Context, command []string, more ...string) error {
	ran, err := p.start(command, p.printed(provision.Stderr), more...)
	if err != nil {
		return err
	}
	_ = ran.In.Close()
	defer context.AfterFunc(ctx, ran.interrupt)()
	out, copied := &wholeLines{to: p.printed(provision.Stdout)}, make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(out, ran.Out) // until it is closed
		out.end()
	}()
	select {
	case <-ran.ended:
	case <-limited.Done():
	}
	exit := ran.end(limited.Err() != nil) // and all that it has started
	select {
	case <-copied:
	case <-time.After(time.Second): // something else has its stdout
	}
	_ = ran.Out.Close()
	<-copied
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() != nil:
		return timelimit.Why(limited, errors.New("killed"))
	case exit != 0:
		return &exitError{exit, ran.cmd.ProcessState.String()}
	}
	return nil
}
