package executor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// reservedSpace is a file that holds room on a disk. A state that can be stored
// nowhere else because the disk is full is written into it, in place: room that
// was given back first could be gone before it is taken again. What is not
// needed for that is given back, so that the run can tell how it ended.
//
// A template may put a pipe in its place, which nobody waits for.
type reservedSpace struct{ path string }

// The bounds of reserved space, in bytes. The least is far more than most states
// have; the most is what a caller of terraform.Apply gets of a printed state.
const (
	minReserved = 1 << 20
	maxReserved = 64 << 20
)

func reservedIn(dir string) reservedSpace { return reservedSpace{filepath.Join(dir, job.ReservedName)} }

// reserve makes space in dir for a state of size bytes. A disk without that
// much room is an error; a file system that cannot reserve is none, the file is
// then empty.
func reserve(dir string, size int64) (reservedSpace, error) {
	b := reservedIn(dir)
	size = min(max(size, minReserved), maxReserved)
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
	return reservedSpace{}, provision.Fail(provision.AsFailure(err).Code, fmt.Sprintf(
		"Nothing was applied: there must be room for the state, and %d KiB could not be reserved in %s on this agent (%s). Make room on that disk, then deploy again.",
		size>>10, dir, reason(err)), err)
}

// become turns the reserved space into a file with that content, on the disk when it
// returns. Where overwriting takes room itself (copy on write), the reserved space is
// given back first.
func (b reservedSpace) become(content []byte, path string) error {
	err := b.fill(content)
	if err != nil {
		b.release()
		err = b.fill(content)
	}
	if err != nil {
		b.release()
		return err
	}
	return durable.Rename(b.path, path)
}

func (b reservedSpace) fill(content []byte) error {
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

// release gives the room back. Without a reservedSpace it does nothing.
func (b reservedSpace) release() {
	if b.path != "" {
		_ = os.Remove(b.path) // the next run tries again
	}
}

// reason is an error of the system without the path and the call.
func reason(err error) string {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno.Error()
	}
	return err.Error()
}
