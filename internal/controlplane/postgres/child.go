package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// command prepares one of PostgreSQL's programs to run under the account. It
// gets a process group of its own, so that Ctrl-C in the terminal reaches us
// alone, and an environment without our secrets and without PG* variables,
// which would change what it does.
func (a *account) command(path string, args ...string) *exec.Cmd {
	// No CommandContext: it would kill the postmaster with the context of Start.
	cmd := exec.Command(path, args...) //nolint:noctx,gosec // see above; no shell, and the paths are ours
	cmd.Dir = "/"                      // where we stand may be out of its reach
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.credential()}
	return cmd
}

// spawn starts cmd and returns a channel that receives its end. The kernel
// sends sig to the child when we die (Linux). It means the thread by that, not
// the process: the thread must live as long as the child.
func spawn(cmd *exec.Cmd, sig syscall.Signal) (<-chan error, error) {
	dieWithParent(cmd.SysProcAttr, sig)
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return ended, nil
}

// runGroup runs cmd to its end; when the context ends, it kills the command's
// whole process group and waits.
func runGroup(ctx context.Context, cmd *exec.Cmd) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ended, err := spawn(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return <-ended
	}
}

// exitText is how a process ended, without exec's own prefixes.
func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.String()
	}
	return fmt.Sprint(err)
}
