package devstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tendril-run/tendril/internal/caches"
)

const (
	// newSpace is what a new data directory needs: an empty PostgreSQL takes 52 MB,
	// one that is downloaded 60 MB more, and a first run some.
	newSpace = 128 << 20
	// leastSpace is what one with data needs to start: PostgreSQL writes its log in
	// files of 16 MB.
	leastSpace = 32 << 20
	// fullSpace is where a start that failed has failed for want of space: less than
	// one file of that log.
	fullSpace = 16 << 20
)

// FullError says that the file system of a data directory has too little space.
type FullError struct {
	Dir          string
	Free, Needed int64 // bytes
}

func (e *FullError) Error() string {
	return fmt.Sprintf("the data directory %s has %d MB of disk space left and trellis up needs %d MB: free some, or choose another disk with --data-dir or TRELLIS_DATA_DIR",
		e.Dir, e.Free>>20, e.Needed>>20)
}

// checkSpace refuses to start where the disk is too full, before anything is made.
// What cannot be found out is no obstacle.
func checkSpace(o Options) error {
	needed := int64(leastSpace)
	if o.DatabaseURL == "" && !there(o.path("postgres", "data")) {
		needed = newSpace
	}
	if full := shortOf(o.DataDir, needed); full != nil {
		return full
	}
	return nil
}

// becauseFull is the reason of a start that failed, which is the disk's where that
// has filled up: each program has its own words for it, and some have many.
func becauseFull(dir string, err error) error {
	if full := shortOf(dir, fullSpace); full != nil {
		if _, told := errors.AsType[*FullError](err); !told {
			return &FullError{Dir: dir, Free: full.Free, Needed: leastSpace}
		}
	}
	return err
}

// shortOf reports that less than needed is free where a directory is, or is to be.
func shortOf(dir string, needed int64) *FullError {
	at := dir
	for !there(at) && at != filepath.Dir(at) {
		at = filepath.Dir(at)
	}
	if free, err := caches.FreeAt(at); err == nil && free.Bytes < needed {
		return &FullError{Dir: dir, Free: free.Bytes, Needed: needed}
	}
	return nil
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
