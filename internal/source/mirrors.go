package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/isolation"
)

// Mirrors are the mirrors in a ReposDir, which can be fetched again. What is
// remembered of their tags is none of it. It implements caches.Cache.
type Mirrors struct{ Dir string }

// removedPrefix marks, in a mirror's directory, what is being deleted.
const removedPrefix = "removed-"

// removePatience is how long a fetch or a checkout is waited for.
const removePatience = 100 * time.Millisecond

// Kind implements caches.Cache.
func (Mirrors) Kind() string { return "repos" }

// Items implements caches.Cache.
func (c Mirrors) Items() ([]caches.Item, error) {
	mirrors, err := c.mirrors()
	if err != nil {
		return nil, fmt.Errorf("look for mirrors: %w", err)
	}
	var items []caches.Item
	for _, m := range mirrors {
		info, err := os.Lstat(m.git())
		if err != nil {
			continue // there is none, or it has just been removed
		}
		used := info.ModTime()
		if lock, err := os.Lstat(filepath.Join(m.dir, useLock)); err == nil && lock.ModTime().After(used) {
			used = lock.ModTime()
		}
		items = append(items, caches.Item{Path: m.git(), Used: used})
	}
	return items, nil
}

// mirrors lists the directories of mirrors, some of which may have none. A link
// is no such directory.
func (c Mirrors) mirrors() (all []mirror, err error) {
	entries, err := os.ReadDir(c.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		if entry.IsDir() {
			all = append(all, mirror{filepath.Join(c.Dir, entry.Name())})
		}
	}
	return all, err
}

// Remove implements caches.Cache: whoever fetches or reads the mirror keeps it.
func (c Mirrors) Remove(ctx context.Context, item caches.Item) (bool, error) {
	gone := filepath.Join(filepath.Dir(item.Path), fmt.Sprintf("%s%d", removedPrefix, time.Now().UnixNano()))
	if renamed, err := (mirror{filepath.Dir(item.Path)}).putAside(ctx, gone); !renamed {
		return false, err
	}
	return true, isolation.RemoveAllUntil(ctx, gone)
}

// putAside takes the mirror from where it is found: all of it at once, so that
// nothing half deleted looks complete. In use, it stays.
func (m mirror) putAside(ctx context.Context, to string) (renamed bool, err error) {
	soon, cancel := context.WithTimeout(ctx, removePatience)
	defer cancel()
	for _, name := range []string{fetchLock, useLock} { // in the order of a fetch
		unlock, err := caches.Lock(soon, filepath.Join(m.dir, name))
		if err != nil {
			if soon.Err() != nil {
				err = nil
			}
			return false, err
		}
		defer unlock()
	}
	err = os.Rename(m.git(), to)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Sweep implements caches.Cache.
func (c Mirrors) Sweep(ctx context.Context) error {
	mirrors, err := c.mirrors()
	errs := []error{err}
	for _, m := range mirrors {
		left, err := filepath.Glob(filepath.Join(m.dir, removedPrefix+"*"))
		errs = append(errs, err)
		for _, dir := range left {
			errs = append(errs, isolation.RemoveAllUntil(ctx, dir))
		}
	}
	return errors.Join(errs...)
}

// used marks the mirror as used now. At worst it is fetched once more.
func (m mirror) used() {
	now := time.Now()
	_ = os.Chtimes(filepath.Join(m.dir, useLock), now, now)
}
