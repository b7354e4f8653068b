package providers

import (
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

const (
	// keepFor is how long a package stays that no init has used.
	keepFor = 30 * 24 * time.Hour
	// pruneEvery is how often the store is looked through.
	pruneEvery = 24 * time.Hour
)

// prune removes what was not used for keepFor, and what a killed run was about
// to remove. It does nothing if that was done within pruneEvery, or while any
// init uses the store: the next one will do it. The lock's file has the time of
// the last pruning.
func (s store) prune(now time.Time) {
	_ = s.asOwner(func() error { // who cannot leaves it to the next one
		s.pruneAsOwner(now)
		return nil
	})
}

func (s store) pruneAsOwner(now time.Time) {
	path := filepath.Join(s.dir, useLock)
	if info, err := os.Stat(path); err != nil || now.Sub(info.ModTime()) < pruneEvery {
		return
	}
	lock := flock.New(path)
	if free, err := lock.TryLock(); err != nil || !free {
		return
	}
	defer lock.Unlock() //nolint:errcheck // see use
	_ = os.Chtimes(path, now, now)
	packages, err := filepath.Glob(filepath.Join(s.dir, "*", "*", "*", "*", "*", "*"))
	if err != nil {
		return
	}
	for _, dir := range packages {
		if info, err := os.Lstat(dir); err != nil || now.Sub(info.ModTime()) < keepFor || s.discard(dir) != nil {
			continue
		}
		// Parents that are empty now; the first that is not ends it.
		for parent := filepath.Dir(dir); parent != s.dir && os.Remove(parent) == nil; {
			parent = filepath.Dir(parent)
		}
	}
	for _, prefix := range []string{trashPrefix, newPrefix} {
		leftovers, err := filepath.Glob(filepath.Join(s.dir, prefix+"*"))
		if err != nil {
			return
		}
		for _, dir := range leftovers {
			_ = os.RemoveAll(dir) // tried again tomorrow
		}
	}
}
