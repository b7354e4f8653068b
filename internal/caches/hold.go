package caches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a lock that somebody else has is tried.
const lockPoll = 20 * time.Millisecond

// holdPatience is how long somebody who is removing a directory, or a template
// that has locked it against others, is waited for.
const holdPatience = time.Second

// Hold keeps a directory from being removed until release is called or the
// process ends; programs that it starts do not inherit that. It reports false if
// the directory is not there, or somebody has locked it against that.
//
// Where the file system has no such locks it holds nothing, and Claim fails.
func Hold(dir string) (release func(), held bool) {
	file, err := openDir(dir)
	if err != nil {
		return nil, false
	}
	return holdOpen(file, dir)
}

// holdOpen holds what was found in dir when that was opened.
func holdOpen(file *os.File, dir string) (release func(), held bool) {
	limit := time.Now().Add(holdPatience)
	err := flock(file, unix.LOCK_SH)
	for errors.Is(err, unix.EWOULDBLOCK) && isAt(file, dir) && time.Now().Before(limit) {
		time.Sleep(lockPoll)
		err = flock(file, unix.LOCK_SH)
	}
	if errors.Is(err, unix.EWOULDBLOCK) || !isAt(file, dir) {
		_ = file.Close() // nothing was written
		return nil, false
	}
	return func() { unlock(file) }, true
}

// Claim takes a directory to remove it, if nobody holds it. Until release is
// called, or its name is another's, nobody can hold it.
func Claim(dir string) (release func(), claimed bool, err error) {
	file, err := openDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	switch err := flock(file, unix.LOCK_EX); {
	case err == nil:
		return func() { unlock(file) }, true, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, false, file.Close()
	default:
		return nil, false, errors.Join(fmt.Errorf("lock %s: %w", dir, err), file.Close())
	}
}

// Lock takes a lock file exclusively, making it where there is none, and waits
// for it until ctx ends. The file may be of a template's making: it is no link
// that is followed and no pipe that is waited for.
func Lock(ctx context.Context, path string) (release func(), err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is no regular file", path), err, file.Close())
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := flock(file, unix.LOCK_EX)
		if err == nil {
			return func() { unlock(file) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), file.Close())
		}
	}
}

func openDir(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// flock does not wait: those who may wait poll, and can give up.
func flock(file *os.File, how int) error {
	for {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// unlock ends a lock and closes its file. Closing alone would leave the lock to a
// process that is being started meanwhile, until that becomes its program.
func unlock(file *os.File) {
	_ = flock(file, unix.LOCK_UN) // it was locked, or closed before
	_ = file.Close()              // nothing was written
}

// isAt reports whether the file is what its name still stands for. Who removes
// renames before the lock is free again.
func isAt(file *os.File, path string) bool {
	mine, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, there)
}
