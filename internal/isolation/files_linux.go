package isolation

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

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
	keep, err := parentSignal()
	if err != nil {
		return err
	}
	// These report no error; the last one asks what is so.
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(uid), 0, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
	if err := keep(); err != nil {
		return err
	}
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

// parentSignal returns what gives this thread back the signal that it gets when the
// process's parent ends (PR_SET_PDEATHSIG in prctl(2)). Of a process that was
// started with one it is the first thread that has it, and the kernel takes it away
// when that one changes its uid. The process would outlive its parent.
func parentSignal() (keep func() error, err error) {
	var signal int32
	if err := unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&signal)), 0, 0, 0); err != nil {
		return nil, fmt.Errorf("ask for the signal of the parent's end: %w", err)
	}
	parent := os.Getppid()
	return func() error {
		if signal == 0 {
			return nil
		}
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(signal), 0, 0, 0); err != nil {
			return fmt.Errorf("keep the signal of the parent's end: %w", err)
		}
		if os.Getppid() != parent { // it has ended just now
			return unix.Kill(os.Getpid(), unix.Signal(signal))
		}
		return nil
	}, nil
}
