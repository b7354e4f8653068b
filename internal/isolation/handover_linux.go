package isolation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/process"
)

// HandOver gives a run's uid a directory and all in it. No process of another
// run may be in there. What no run has made stays as it is: where the kernel does
// not forbid it, a template can give a file of root's a second name in there.
// In a directory that no run of ours had before, whatever has one name only is
// given.
//
// The group of a directory that is at rest says whose its content is, so the
// same uid gets it back in one step.
func (b *Block) HandOver(dir string, uid int, mode fs.FileMode) error {
	top, err := openDir(unix.AT_FDCWD, dir)
	if err != nil {
		return fmt.Errorf("give %s to uid %d: %w", dir, uid, err)
	}
	defer top.Close() //nolint:errcheck // only looked at
	info, err := top.Stat()
	if err == nil && groupOf(info) != uid {
		err = b.handOverContent(dir, uid, b.Has(groupOf(info)))
	}
	// Last of all: what was interrupted is done again.
	err = errors.Join(err, withoutACL(top), top.Chown(uid, uid), top.Chmod(mode))
	if err != nil {
		return fmt.Errorf("give %s to uid %d: %w", dir, uid, err)
	}
	return nil
}

func (b *Block) handOverContent(dir string, uid int, hadRuns bool) error {
	return Walk(dir, func(e Entry) (bool, error) {
		kind := e.Stat.Mode & unix.S_IFMT
		switch {
		case e.Err != nil:
			return false, e.Err
		case kind == unix.S_IFBLK, kind == unix.S_IFCHR:
			return false, nil
		case b.Has(int(e.Stat.Uid)):
		case hadRuns, e.IsRegular() && e.Stat.Nlink > 1:
			return true, nil
		}
		if e.IsDir() && e.Depth+1 >= Deepest {
			return false, e.Remove() // nobody goes there
		}
		return true, e.lchown(uid)
	})
}

// withoutACL takes away the rights to a directory that its last owner may have
// given to uids by name: one of them may be another run's by now.
func withoutACL(dir *os.File) error {
	for _, name := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
		err := unix.Fremovexattr(int(dir.Fd()), name)
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("remove the access list: %w", err)
		}
	}
	return nil
}

// Shut takes a directory back from a run: from now on only root gets in, and
// its group says whose the content is.
func Shut(dir string) error {
	top, err := openDir(unix.AT_FDCWD, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("shut %s: %w", dir, err)
	}
	defer top.Close() //nolint:errcheck // only looked at
	if err := errors.Join(top.Chown(0, -1), top.Chmod(0o700)); err != nil {
		return fmt.Errorf("shut %s: %w", dir, err)
	}
	return nil
}

// Group is the gid of a directory, or 0 if that cannot be told.
func Group(dir string) int {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return 0
	}
	return groupOf(info)
}

func groupOf(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Gid)
	}
	return 0
}

// Owner is the uid of a directory, or -1 if that cannot be told.
func Owner(dir string) int {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return -1
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// fileCapabilities are those by which root passes over the rights to files.
const fileCapabilities = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH |
	1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID | 1<<unix.CAP_LINUX_IMMUTABLE | 1<<unix.CAP_MKNOD

// WithFilesOf has root do something with the rights to files that a uid has, and
// no others: whatever that uid has left there, a link for one, leads nowhere
// where it could not go itself. It holds for this thread alone, so do must start
// no goroutine that touches files, and no process.
func WithFilesOf(uid int, do func() error) error {
	// A thread that is not as it was ends with its goroutine: nobody else gets it.
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- withFilesOf(uid, do)
			return
		}
		// Not on the main thread: with a change of rights the kernel forgets which
		// signal a thread wanted at its parent's death (PR_SET_PDEATHSIG in
		// prctl(2)), and the main one is where our parent has set that.
		// While it is held here, the next goroutine gets another.
		defer runtime.UnlockOSThread()
		done <- WithFilesOf(uid, do)
	}()
	return <-done
}

func withFilesOf(uid int, do func() error) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return fmt.Errorf("act on files as uid %d: leave root's groups: %w", uid, errno)
	}
	// These report no error; the last one asks what is so.
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(uid), 0, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
	// That may have made this process dumpable, see Identity: whatever comes next.
	if err := process.Undumpable(); err != nil {
		return err
	}
	const nobody = ^uintptr(0)
	now, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, nobody, 0, 0)
	if int(now) != uid {
		return fmt.Errorf("act on files as uid %d: this process may not", uid)
	}
	data, err := capabilities()
	if err != nil {
		return err
	}
	if data[0].Effective&fileCapabilities != 0 {
		return fmt.Errorf("act on files as uid %d: the agent was started with securebits that keep root's rights to them", uid)
	}
	return do()
}
