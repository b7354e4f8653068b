package terraform

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// command is one run of the engine.
type command struct {
	runner *Runner
	name   string         // as typed: init, plan, show, apply, state push
	code   provision.Code // what a failure is called
	diags  *diagnostics   // what went wrong, as far as the engine said
	kills  int64          // for want of memory, before it began

	// The runner's, unless the command has its own.
	out       *output
	killAfter time.Duration
	env       map[string]string
	use       StateUse

	// Who takes the engine's stdout: each line with its end, or all of it as it comes.
	// Neither keeps what it is given. Without one it is discarded.
	onLine func(line []byte)
	into   io.Writer
	lost   error // what into could not take

	// changesExit is the exit code that says: done, and there are changes; 0 for none.
	changesExit int
	changed     bool // it ended so

	ctx         context.Context         // of the engine: done when it is to be interrupted, and says why
	interrupt   context.CancelCauseFunc // for a reason of our own, while it runs
	interrupted atomic.Bool
}

func (r *Runner) command(name string, code provision.Code) *command {
	return &command{runner: r, name: name, code: code, diags: &diagnostics{hide: r.hide}, out: r.out, killAfter: r.killAfter, env: r.env, kills: r.memory.Kills()}
}

// print shows the engine's stdout.
func (c *command) print() {
	c.onLine = func(line []byte) { c.out.write(toStdout, line) }
}

// do runs the engine and explains how it ended.
//
// The kernel kills the engine when the thread that started it ends, and Go ends threads:
// this one is ours until the engine is done. Then it ends as well, with what Confine has
// changed there.
func (c *command) do(ctx context.Context, args ...string) (err error) {
	if ended := c.runner.ended; ended != nil {
		defer ended(c.name, time.Now())
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		runtime.LockOSThread()
		c.ctx, c.interrupt = context.WithCancelCause(ctx)
		defer c.interrupt(nil)
		err = c.onThisThread(args)
	}()
	<-over
	return err
}

func (c *command) onThisThread(args []string) error {
	if c.ctx.Err() != nil {
		return c.wasInterrupted()
	}
	if confine := c.runner.confine; confine != nil {
		if err := confine(); err != nil {
			return fmt.Errorf("prepare %s: %w", c.runner.engine.Kind, err)
		}
	}
	env := c.env
	if c.runner.state != nil {
		own, end := c.runner.state(c.use)
		defer end()
		env = maps.Clone(env)
		maps.Copy(env, own)
	}
	_ = c.out.takeErr() // an earlier command's, reported or overtaken by its failure

	cmd := exec.CommandContext(c.ctx, c.runner.engine.Path, append(strings.Fields(c.name), args...)...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = c.runner.dir, make([]string, 0, len(env)), group
	for key, value := range env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	cmd.Cancel = func() error {
		c.interrupted.Store(true)
		return cmd.Process.Signal(os.Interrupt)
	}
	cmd.WaitDelay = c.killAfter
	err := c.run(cmd)
	return c.explain(cmd, err)
}

// run starts the engine and waits until it has ended and its output was read to the end.
// The pipes are our own: those of package exec are closed with what is still in them.
func (c *command) run(cmd *exec.Cmd) error {
	var readers [2]*os.File
	var writers [2]*os.File
	defer func() {
		for _, file := range append(readers[:], writers[:]...) {
			_ = file.Close() // read to its end, or never used
		}
	}()
	for i := range readers {
		var err error
		if readers[i], writers[i], err = os.Pipe(); err != nil {
			return err
		}
	}
	cmd.Stdout, cmd.Stderr = writers[0], writers[1]
	if err := cmd.Start(); err != nil {
		return err
	}
	for _, writer := range writers {
		_ = writer.Close() // the engine has its own
	}
	var reading sync.WaitGroup
	reading.Go(func() { c.readStdout(readers[0]) })
	reading.Go(func() {
		p := paragraph{take: func(line []byte) {
			c.diags.addStderr(line)
			c.out.write(toStderr, line)
		}}
		eachLine(readers[1], p.line)
		p.end()
	})
	err := cmd.Wait()
	read := make(chan struct{})
	go func() {
		defer close(read)
		reading.Wait()
	}()
	if stragglers := c.runner.stragglers; stragglers != nil {
		select {
		case <-read:
		case <-time.After(stragglerDelay):
			stragglers()
		}
	}
	<-read
	return err
}

// stragglerDelay is how long output may stay open after the engine's end.
const stragglerDelay = 2 * time.Second

func (c *command) readStdout(pipe io.Reader) {
	switch {
	case c.onLine != nil:
		p := paragraph{take: c.onLine}
		eachLine(pipe, p.line)
		p.end()
	case c.into != nil:
		_, c.lost = io.Copy(c.into, pipe)
	}
	_, _ = io.Copy(io.Discard, pipe) // or the engine would wait for us
}

// eachLine hands over each line with its end, and at last what is left without one, unless
// that is nothing but colours. A line is valid during the call.
func eachLine(pipe io.Reader, take func(line []byte)) {
	reader := bufio.NewReaderSize(pipe, 64<<10)
	var long []byte // a line that does not fit into the reader's buffer, so far
	for {
		part, err := reader.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, part...)
			continue
		}
		if len(long) > 0 {
			part = append(long, part...)
			long = nil // a state may be many megabytes
		}
		if err != nil { // the end: a pipe has no other error
			if len(colour.ReplaceAll(part, nil)) > 0 { // engines turn colours off at last
				take(part)
			}
			return
		}
		take(part)
	}
}

// explain turns how the engine ended into what the caller gets.
func (c *command) explain(cmd *exec.Cmd, err error) error {
	state := cmd.ProcessState
	if state == nil {
		return c.notStarted(err)
	}
	c.changed = c.changesExit > 0 && state.ExitCode() == c.changesExit
	switch {
	case state.Success(), c.changed: // interrupted or not
		if err := cmp.Or(c.lost, c.out.takeErr()); err != nil {
			return fmt.Errorf("%w: %w", ErrOutput, err)
		}
		return nil
	case c.interrupted.Load():
		return c.wasInterrupted()
	}
	cause := &exec.ExitError{ProcessState: state}
	oom := c.runner.memory.Since(c.kills)
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		message := fmt.Sprintf("%s %s was ended by %s, which Tendril did not send", c.runner.engine.Kind, c.name, signalName(status.Signal()))
		if oom == "" {
			return provision.Fail(c.code, message+": somebody killed it, or the machine ran out of memory", cause)
		}
		return provision.Fail(c.code, message+". "+oom, cause)
	}
	failure := c.diags.failure(c.runner.engine.Kind, c.name, c.code, cause)
	if oom != "" { // of a provider, most likely: the engine tells of a plugin that went away
		failure.Message += "\n" + oom
	}
	return failure
}

// wasInterrupted is the error of a run that was cancelled. The cause is in its chain.
func (c *command) wasInterrupted() error {
	return fmt.Errorf("%s %s was interrupted: %w", c.runner.engine.Kind, c.name, context.Cause(c.ctx))
}

// notStarted explains why there was no process.
func (c *command) notStarted(err error) error {
	engine := c.runner.engine
	if c.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return c.wasInterrupted()
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok && path.Op == "fork/exec" {
		return provision.Fail(provision.CodeEngineMissing, fmt.Sprintf(
			"%s at %s cannot be started: %s. Check that the file is a program for this machine and that the agent may execute it.",
			engine.Kind, engine.Path, path.Err), err)
	}
	return fmt.Errorf("run %s %s: %w", engine.Kind, c.name, err)
}

func signalName(s syscall.Signal) string {
	switch s {
	case syscall.SIGKILL:
		return "SIGKILL"
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGINT:
		return "SIGINT"
	default:
		return "signal " + s.String()
	}
}
