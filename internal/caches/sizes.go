package caches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/isolation"
)

// Kinds are what an agent's data directory is said to hold, by the names of its
// directories, in the order in which people are told.
func Kinds() []string {
	return []string{"repos", "providers", "engines", "work", "state", "spool", "rejected", Other}
}

// Fetched reports whether what is of a kind can be fetched again, which the limit
// is on.
func Fetched(kind string) bool {
	switch kind {
	case "repos", "providers", "engines", "work":
		return true
	}
	return false
}

// Other is the kind of whatever has none.
const Other = "other"

// kindOf is the kind of what lies in a data directory under a name.
func kindOf(name string) string {
	if name == "states" {
		return "state"
	}
	for _, kind := range Kinds() {
		if name == kind {
			return kind
		}
	}
	return Other
}

// Sizes returns what each of the Kinds takes in a data directory, in bytes; what
// is known already is not checked. What cannot be looked at counts as nothing,
// and is in the error. When ctx ends it returns what it has found until then.
func Sizes(ctx context.Context, dataDir string, known map[string]int64) (map[string]int64, error) {
	sizes := map[string]int64{}
	for _, kind := range Kinds() {
		sizes[kind] = known[kind]
	}
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		return sizes, fmt.Errorf("look through the data directory: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		kind := kindOf(entry.Name())
		if _, is := known[kind]; is {
			continue
		}
		bytes, err := Size(ctx, filepath.Join(dataDir, entry.Name()))
		sizes[kind] += bytes
		errs = append(errs, err)
	}
	return sizes, errors.Join(errs...)
}

// blockSize is the unit of st_blocks, whatever the file system's own is.
const blockSize = 512

// Size is what a directory and all below it take on the disk, in bytes, as far
// as this process may look. One that is not there takes nothing. When ctx ends it
// returns what it has found until then, and an error.
func Size(ctx context.Context, dir string) (bytes int64, err error) {
	var top unix.Stat_t
	if err := unix.Lstat(dir, &top); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return 0, err
	}
	bytes = top.Blocks * blockSize
	if top.Mode&unix.S_IFMT != unix.S_IFDIR {
		return bytes, nil
	}
	err = isolation.Walk(dir, func(e isolation.Entry) (bool, error) {
		if e.Err == nil {
			bytes += e.Stat.Blocks * blockSize
		}
		return true, ctx.Err()
	})
	if errors.Is(err, fs.ErrPermission) {
		err = nil
	}
	return bytes, err
}

// Fewer free inodes than fewInodes do not take a checkout with its modules. It is
// no shortage where most of them are free nevertheless.
const fewInodes = 5_000

// Free is how much more a directory's file system takes.
type Free struct {
	// Bytes are those that this process may use.
	Bytes int64
	// FewInodes says that hardly any more files fit, whatever their size.
	FewInodes bool
}

// FreeAt asks a directory's file system.
func FreeAt(dir string) (Free, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Free{}, &os.PathError{Op: "look how full the file system is", Path: dir, Err: err}
	}
	return freeOf(s), nil
}

func freeOf(s unix.Statfs_t) Free {
	// Some file systems (btrfs) make inodes as they need them and count none; one
	// in user space may say anything.
	block := uint64(max(s.Bsize, 1))
	return Free{
		Bytes:     int64(min(s.Bavail, 1<<62/block) * block),
		FewInodes: s.Files > 0 && s.Ffree < fewInodes && s.Ffree < s.Files/2,
	}
}

// short reports whether less is free than is to be.
func (f Free) short(least int64) bool { return least > 0 && (f.Bytes < least || f.FewInodes) }

// device is which file system a path is on; 0 if that cannot be told.
func device(path string) uint64 {
	var s unix.Stat_t
	if err := unix.Lstat(path, &s); err != nil {
		return 0
	}
	return s.Dev
}
