package terraform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os/exec"
	"reflect"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/terraform-exec/tfexec"

	"github.com/tendril-run/tendril/internal/provision"
)

// command is one run of the engine. Each has a terraform-exec instance of its
// own: what one call sets there (ApplyJSON leaves its stdout behind) would
// reach into the next, and a show would print secrets into the log.
type command struct {
	runner *Runner
	name   string         // as typed: init, plan, show, apply, state push
	code   provision.Code // what a failure is called
	diags  *diagnostics   // what went wrong, as far as the engine said
	gate   *gate
	// The runner's, unless the command has its own.
	out       *output
	killAfter time.Duration
	env       map[string]string
	use       StateUse
	kills     int64 // for want of memory, before it began
}

func (r *Runner) command(name string, code provision.Code) *command {
	return &command{runner: r, name: name, code: code, diags: &diagnostics{hide: r.hide}, out: r.out, killAfter: r.killAfter, env: r.env, kills: r.memory.Kills()}
}

// do runs the engine and explains how it ended. Nil stdout discards.
//
// terraform-exec asks the kernel to SIGKILL the engine when the thread that
// started it ends, and Go ends threads: this one is ours until the engine is
// done. Then it ends as well, and takes along what newestChild has looked at in
// /proc: left to the exit of this process, where all threads end at once, that
// costs the agent 5 ms of CPU for each run when it reaps us.
func (c *command) do(ctx context.Context, stdout io.Writer, call func(context.Context, *tfexec.Terraform) error) (err error) {
	err = errors.New("the call of the engine did not return") // runtime.Goexit
	var crash any
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer func() {
			if p := recover(); p != nil {
				crash = fmt.Sprintf("%v\n\n%s", p, debug.Stack())
			}
		}()
		runtime.LockOSThread()
		err = c.onThisThread(ctx, stdout, call)
	}()
	<-over
	if crash != nil {
		panic(crash) // for the caller, who saves the state
	}
	return err
}

func (c *command) onThisThread(ctx context.Context, stdout io.Writer, call func(context.Context, *tfexec.Terraform) error) error {
	if ctx.Err() != nil {
		return c.interrupted(ctx)
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
	tf, err := c.instance(env)
	if err != nil {
		return err
	}
	_ = c.out.takeErr() // an earlier command's, reported or overtaken by its failure
	if stdout != nil {
		tf.SetStdout(stdout)
	}
	stderr := &stderrReader{out: c.out, diags: c.diags}
	tf.SetStderr(stderr)

	watch := &watcher{stragglers: c.runner.stragglers}
	defer watch.stop()
	c.gate = newGate(ctx, func() {
		pid := newestChild()
		stderr.pid.Store(int64(pid))
		watch.start(pid)
	})
	defer c.gate.close()
	return c.explain(ctx, call(c.gate, tf))
}

func (c *command) instance(env map[string]string) (*tfexec.Terraform, error) {
	r := c.runner
	tf, err := tfexec.NewTerraform(r.dir, r.engine.Path)
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", r.engine.Kind, err)
	}
	if err := tf.SetEnv(env); err != nil {
		return nil, fmt.Errorf("prepare the environment of %s: %w", r.engine.Kind, err)
	}
	if err := tf.SetWaitDelay(c.killAfter); err != nil {
		return nil, fmt.Errorf("prepare %s: %w", r.engine.Kind, err)
	}
	if r.version != nil {
		if err := presetVersion(tf, r.version); err != nil {
			return nil, err
		}
	}
	return tf, nil
}

// presetVersion tells terraform-exec the version that we know already. It has
// no setter, and without it each instance runs `terraform version` first,
// which costs as much as an empty plan. The field's type is checked, so a
// terraform-exec that has changed fails every command and not just some.
func presetVersion(tf *tfexec.Terraform, known *version.Version) error {
	field := reflect.ValueOf(tf).Elem().FieldByName("execVersion")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*version.Version]() {
		return errors.New("terraform-exec keeps the engine's version elsewhere than this program was built for")
	}
	*(**version.Version)(unsafe.Pointer(field.UnsafeAddr())) = known //nolint:gosec // checked above to be exactly this type
	return nil
}

// explain turns what terraform-exec returned into what the caller gets. The
// error's text is used only where no process ran: it repeats all of stderr,
// and for a cancelled context asking for it may panic.
func (c *command) explain(ctx context.Context, err error) error {
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil, c.gate.fired() && !exited && errors.Is(err, context.Canceled):
		// Without an exit error the engine ended well, interrupted or not; but
		// one that could not be started has done nothing.
		if err := c.out.takeErr(); err != nil {
			return fmt.Errorf("%w: %w", ErrOutput, err)
		}
		return nil
	case c.gate.fired():
		return c.interrupted(ctx)
	case !exited:
		return c.notRun(err)
	}
	oom := c.runner.memory.Since(c.kills)
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		message := fmt.Sprintf("%s %s was ended by %s, which Tendril did not send", c.runner.engine.Kind, c.name, signalName(status.Signal()))
		if oom == "" {
			return provision.Fail(c.code, message+": somebody killed it, or the machine ran out of memory", exit)
		}
		return provision.Fail(c.code, message+". "+oom, exit)
	}
	failure := c.diags.failure(c.runner.engine.Kind, c.name, c.code, exit)
	if oom != "" { // of a provider, most likely: the engine tells of a plugin that went away
		failure.Message += "\n" + oom
	}
	return failure
}

// interrupted is the error of a run that was cancelled. The context's cause is
// in its chain.
func (c *command) interrupted(ctx context.Context) error {
	cause := context.Cause(ctx)
	if c.gate != nil && c.gate.reason != nil {
		cause = c.gate.reason
	}
	return fmt.Errorf("%s %s was interrupted: %w", c.runner.engine.Kind, c.name, cause)
}

// notRun explains an error that no finished process stands behind.
func (c *command) notRun(err error) error {
	engine := c.runner.engine
	if mismatch, ok := errors.AsType[*tfexec.ErrVersionMismatch](err); ok {
		return provision.Fail(provision.CodeEngineMissing, fmt.Sprintf(
			"%s %s at %s cannot do what is needed: %s. Install a newer version.",
			engine.Kind, engine.Version, engine.Path, mismatch), err)
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
