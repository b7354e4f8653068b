package isolation

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/process"
)

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
		// prctl(2)), and the main one is where whoever started us has set that.
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
