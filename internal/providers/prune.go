package providers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/isolation"
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
	packages, err := s.packages()
	if err != nil {
		return
	}
	for _, dir := range packages {
		if info, err := os.Lstat(dir); err != nil || now.Sub(info.ModTime()) < keepFor {
			continue
		}
		if unlock, claimed, err := caches.Claim(dir); err == nil && claimed {
			if s.discard(dir) == nil {
				s.removeEmpty(filepath.Dir(dir))
			}
			unlock()
		}
	}
	_ = s.sweep(context.Background()) // tried again tomorrow
}

// packages lists the directories of all packages.
func (s store) packages() ([]string, error) {
	return filepath.Glob(filepath.Join(s.dir, "[^.]*", "*", "*", "*", "*", "*"))
}

// removeEmpty removes a directory and those above it, up to the first that is
// not empty.
func (s store) removeEmpty(dir string) {
	for dir != s.dir && os.Remove(dir) == nil {
		dir = filepath.Dir(dir)
	}
}

// sweep removes what somebody who was killed was about to remove or to add.
func (s store) sweep(ctx context.Context) error {
	var errs []error
	for _, prefix := range []string{trashPrefix, newPrefix} {
		left, err := filepath.Glob(filepath.Join(s.dir, prefix+"*"))
		errs = append(errs, err)
		for _, dir := range left {
			errs = append(errs, isolation.RemoveAllUntil(ctx, dir))
		}
	}
	return errors.Join(errs...)
}
