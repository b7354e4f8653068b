package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// mostRead is how large a file of the agent's own may be that is read as a
// whole, in bytes.
const mostRead = 64 << 10

// errOdd is met where something else than a regular file has taken a file's
// place: a directory, a pipe, a link. Whoever may write there may do that.
var errOdd = errors.New("no regular file")

// openRegular opens a file that is there. It follows no link and waits for
// nobody, as opening a pipe would.
func openRegular(path string, flag int) (*os.File, error) {
	file, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EISDIR):
		return nil, fmt.Errorf("%w: %w", errOdd, err)
	case err != nil:
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is a %s: %w", path, info.Mode().Type(), errOdd)
	}
	if err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	return file, nil
}

// readFile reads a small regular file.
func readFile(path string) ([]byte, error) { return readUpTo(path, mostRead) }

// readUpTo reads the first bytes of a regular file, limit at most.
func readUpTo(path string, limit int64) ([]byte, error) {
	file, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	content.Grow(int(min(info.Size(), limit)) + bytes.MinRead) // at once: it may be a large state
	_, err = content.ReadFrom(io.LimitReader(file, limit))
	return content.Bytes(), err
}
