package terraform

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// MaxStateFile is how large a state may be that is read as a whole, in bytes.
// It is held in memory, some ten times its size where two are compared.
const MaxStateFile = 256 << 20

// ErrStateTooLarge is met where a state has more than MaxStateFile bytes.
var ErrStateTooLarge = fmt.Errorf("a state of more than %d MiB", MaxStateFile>>20)

// ErrNoStateFile is met where something else than a regular file has taken the
// place of a state: a link, a pipe, a directory. A template may have put it there.
var ErrNoStateFile = errors.New("no regular file")

// OpenStateFile opens a state where a template may write. It follows no link,
// to another workspace's state for one, and waits for nobody, as opening a pipe
// would.
func OpenStateFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("%w: %w", ErrNoStateFile, err)
	case err != nil:
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: %w", path, ErrNoStateFile)
	}
	if err != nil {
		_ = file.Close() // only opened for reading
		return nil, err
	}
	return file, nil
}

// ReadStateFile reads a state, whole or not, of at most MaxStateFile bytes; see
// OpenStateFile.
func ReadStateFile(path string) ([]byte, error) {
	file, err := OpenStateFile(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	state, err := io.ReadAll(io.LimitReader(file, MaxStateFile+1))
	if err == nil && len(state) > MaxStateFile {
		err = fmt.Errorf("read %s: %w", path, ErrStateTooLarge)
	}
	return state, err
}
