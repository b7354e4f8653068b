package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
)

// account is whom the server runs as. PostgreSQL refuses root, so root lends
// it another account; everybody else runs it as themselves.
type account struct {
	name     string
	uid, gid uint32
	borrowed bool // we are root and it is not us
}

// serviceAccount returns the account to run PostgreSQL as. initdb wants one
// that the passwd database knows, so a free uid will not do.
func serviceAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return &account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil || uid == 0 {
			continue
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			continue
		}
		return &account{name: name, uid: uint32(uid), gid: uint32(gid), borrowed: true}, nil
	}
	return nil, errors.New("PostgreSQL refuses to run as root and this machine has neither a user postgres nor a user nobody to run it as: add one (useradd --system postgres), or run as an ordinary user")
}

// credential is for a child's SysProcAttr; nil means our own.
func (a *account) credential() *syscall.Credential {
	if !a.borrowed {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// own gives a path to the account.
func (a *account) own(path string) error {
	if !a.borrowed {
		return nil
	}
	if err := os.Lchown(path, int(a.uid), int(a.gid)); err != nil {
		return fmt.Errorf("giving %s to user %s, whom PostgreSQL runs as: %w", path, a.name, err)
	}
	return nil
}

// makeDataDir makes the directory with those parents that are missing, so that
// the account can pass through each, whatever the umask, and checks those that
// are there already.
func (a *account) makeDataDir(dir string) error {
	mode := fs.FileMode(0o700)
	if a.borrowed {
		mode = 0o711
	}
	var missing []string
	for d := dir; ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err == nil {
			if !info.IsDir() {
				return fmt.Errorf("the PostgreSQL data directory %s cannot be made: %s is not a directory", dir, d)
			}
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("making the PostgreSQL data directory: %w", err)
		}
		missing = append(missing, d)
	}
	// Checked before anything is made, so that a refusal leaves nothing behind.
	if err := a.canEnter(filepath.Join(dir, "x")); err != nil {
		return err
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := os.Mkdir(missing[i], mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making the PostgreSQL data directory: %w", err)
		}
		if err := os.Chmod(missing[i], mode); err != nil {
			return fmt.Errorf("making the PostgreSQL data directory: %w", err)
		}
	}
	return nil
}

// canEnter checks that the account may pass through every directory above
// path that exists, and names the first where it may not: PostgreSQL's own
// words for it would be "could not access directory", without saying which.
func (a *account) canEnter(path string) error {
	if !a.borrowed {
		return nil
	}
	if err := a.canPass(filepath.Dir(path)); err != nil {
		return err
	}
	// Once more without symlinks: their targets have parents of their own.
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return a.canPass(real)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("checking the way to %s: %w", path, err)
		}
	}
}

func (a *account) canPass(dir string) error {
	if parent := filepath.Dir(dir); parent != dir {
		if err := a.canPass(parent); err != nil {
			return err
		}
	}
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("checking the way to the PostgreSQL data directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	need := fs.FileMode(0o001)
	switch {
	case stat.Uid == a.uid:
		need = 0o100
	case stat.Gid == a.gid:
		need = 0o010
	}
	if info.Mode().Perm()&need == 0 {
		return fmt.Errorf("PostgreSQL refuses to run as root, so it runs as user %s, who may not pass through the directory %s (%s): choose a place outside of it, or allow passage with: chmod o+x %s", a.name, dir, info.Mode(), dir)
	}
	return nil
}

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
	DieWithParent(cmd.SysProcAttr, sig)
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

// ExitText is how a process ended, without exec's own prefixes.
func ExitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.String()
	}
	return fmt.Sprint(err)
}
