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
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/protocol"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/timelimit"
	messages "github.com/tendril-run/tendril/provisioner"
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

// program is one of them. It has a process group of its own, and dies with this process. One
// without a cmd is a part of this process, which stop ends.
type program struct {
	protocol.Program
	cmd   *exec.Cmd
	group *process.Group // of cmd
	stop  func()
	ended chan struct{}
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
	cmd.Stdin, cmd.Stdout = in, toOut
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := &program{Program: protocol.Program{In: toIn, Out: out}, cmd: cmd, ended: make(chan struct{})}
	began := make(chan error, 1)
	// The kernel kills the program when the thread that started it ends, so the thread is
	// ours until the program has ended.
	go func() {
		defer close(started.ended)
		runtime.LockOSThread()
		var err error
		started.group, err = p.begin(cmd, stderr)
		_ = errors.Join(in.Close(), toOut.Close()) // the program has its own
		began <- err
		if err != nil {
			return
		}
		_ = started.group.Wait(time.Second) // ProcessState has it
		stderr.end()
	}()
	if err := <-began; err != nil {
		return nil, errors.Join(err, toIn.Close(), out.Close())
	}
	return started, nil
}

// serve starts a handler as a program that is a part of this process.
func serve(h messages.Handler) *program {
	in, toIn := io.Pipe()
	out, toOut := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	started := &program{Program: protocol.Program{In: toIn, Out: out}, stop: cancel, ended: make(chan struct{})}
	go func() {
		defer close(started.ended)
		defer cancel()
		err := messages.ServeOn(ctx, in, toOut, h)
		_ = toOut.CloseWithError(err) // which the reader is told
		_ = in.Close()                // never fails
	}()
	return started
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

func (p programs) begin(cmd *exec.Cmd, stderr io.Writer) (*process.Group, error) {
	if p.confine != nil {
		if err := p.confine(); err != nil {
			return nil, err
		}
	}
	return process.StartGroup(cmd, nil, stderr)
}

// interrupt asks the program to end.
func (p *program) interrupt() { p.signal(syscall.SIGINT) }

func (p *program) signal(signal syscall.Signal) {
	if p.group == nil {
		p.stop()
		return
	}
	p.group.Signal(signal)
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
	if p.cmd == nil {
		return 0
	}
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
