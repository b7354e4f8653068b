package executor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// ballast is a file that holds room on a disk. A state that can be stored
// nowhere else because the disk is full is written into it, in place: room that
// was given back first could be gone before it is taken again. What is not
// needed for that is given back, so that the run can tell how it ended.
//
// A template may put a pipe in its place, which nobody waits for.
type ballast struct{ path string }

// The bounds of a ballast, in bytes. The least is far more than most states
// have; the most is what a caller of terraform.Apply gets of a printed state.
const (
	minBallast = 1 << 20
	maxBallast = 64 << 20
)

func ballastIn(dir string) ballast { return ballast{filepath.Join(dir, job.BallastName)} }

// reserve makes a ballast in dir for a state of size bytes. A disk without that
// much room is an error; a file system that cannot reserve is none, the file is
// then empty.
func reserve(dir string, size int64) (ballast, error) {
	b := ballastIn(dir)
	size = min(max(size, minBallast), maxBallast)
	file, err := os.OpenFile(b.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err == nil {
		err = unix.Fallocate(int(file.Fd()), 0, 0, size)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			err = nil
		}
		err = errors.Join(err, file.Close())
	}
	if err == nil {
		return b, nil
	}
	b.release()
	return ballast{}, provision.Fail(provision.CodeInternal, fmt.Sprintf(
		"Nothing was applied: there must be room for the state, and %d KiB could not be reserved in %s on this agent (%s). Make room on that disk, then deploy again.",
		size>>10, dir, reason(err)), err)
}

// become turns the ballast into a file with that content, on the disk when it
// returns. Where overwriting takes room itself (copy on write), the ballast is
// given back first.
func (b ballast) become(content []byte, path string) error {
	err := b.fill(content)
	if err != nil {
		b.release()
		err = b.fill(content)
	}
	if err != nil {
		b.release()
		return err
	}
	if err := os.Rename(b.path, path); err != nil {
		return err
	}
	return syncPath(filepath.Dir(path))
}

func (b ballast) fill(content []byte) error {
	file, err := os.OpenFile(b.path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(content, 0)
	if err == nil {
		err = file.Truncate(int64(len(content)))
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// release gives the room back. Without a ballast it does nothing.
func (b ballast) release() {
	if b.path != "" {
		_ = os.Remove(b.path) // the next run tries again
	}
}

// syncPath waits until the disk has a file, or a directory's entries.
func syncPath(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// reason is an error of the system without the path and the call.
func reason(err error) string {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno.Error()
	}
	return err.Error()
}
