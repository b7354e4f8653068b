package devstack

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// InUseError says that another Stack runs on the data directory.
type InUseError struct {
	Dir string
	PID int // 0 when not known
}

func (e *InUseError) Error() string {
	holder := "another process"
	if e.PID != 0 {
		holder = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("trellis up runs already on %s (%s): use that one, stop it, or choose another --data-dir", e.Dir, holder)
}

// InUse reports whether a Stack runs on a data directory, as far as this user may
// look.
func InUse(dir string) bool {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	return errors.Is(syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// unlockDataDir gives the directory back. Closing alone would do so only when
// no child that is just being started holds a copy of the descriptor any more.
func unlockDataDir(lock *os.File) {
	_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_UN)
	_ = lock.Close()
}

// lockDataDir takes the directory for this process. The kernel gives it back
// when the process dies.
func lockDataDir(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer func() { _ = file.Close() }()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the data directory %s: %w", dir, err)
		}
		text, _ := io.ReadAll(io.LimitReader(file, 32))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return nil, &InUseError{Dir: dir, PID: pid}
	}
	// Padded and written in place: a reader never sees an empty file.
	if _, err := file.WriteAt(fmt.Appendf(nil, "%-20d\n", os.Getpid()), 0); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	return file, nil
}
