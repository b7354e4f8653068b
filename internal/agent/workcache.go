package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/job"
)

const (
	// removedPrefix marks, in work/, a directory that is being deleted.
	removedPrefix = ".removed-"
	// workOutdated is how long a work directory stays that no run has used.
	workOutdated = 30 * 24 * time.Hour
)

// workCache is what runs leave in work/ID for the next run of the workspace:
// modules, packages of providers that are not shared, and what tells that this
// need not be fetched again. It implements caches.Cache.
type workCache struct {
	dir   *dataDir
	locks *locks
}

// Kind implements caches.Cache.
func (workCache) Kind() string { return "work" }

// Items implements caches.Cache.
func (c workCache) Items() ([]caches.Item, error) {
	names, err := c.dir.workspaces()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var items []caches.Item
	for _, name := range names {
		id, err := uuid.Parse(name)
		if err != nil {
			continue // none of ours
		}
		path := c.dir.path("work", name)
		info, err := os.Lstat(path)
		if err != nil {
			continue // removed meanwhile
		}
		used := info.ModTime()
		items = append(items, caches.Item{
			Path: path, Used: used, Busy: c.locks.taken(id), Outdated: now.Sub(used) > workOutdated,
		})
	}
	return items, nil
}

// Remove implements caches.Cache. What is of one run only is there when no run is
// only if a state may be in it: that is for the next run, or a person.
func (c workCache) Remove(ctx context.Context, item caches.Item) (bool, error) {
	id, err := uuid.Parse(filepath.Base(item.Path))
	if err != nil {
		return false, err
	}
	release, _ := c.locks.tryTake(id)
	if release == nil {
		return false, nil
	}
	gone := c.dir.path("work", removedPrefix+uuid.NewString())
	kept, err := ofOneRun(item.Path)
	if err == nil && !kept {
		err = os.Rename(item.Path, gone)
	}
	release() // a run that waits need not wait for all of it to be deleted
	if kept || err != nil {
		return false, err
	}
	return true, isolation.RemoveAllUntil(ctx, gone)
}

// ofOneRun reports whether a work directory holds what is of one run only.
func ofOneRun(work string) (bool, error) {
	for _, name := range []string{job.SourceName, job.TempName, job.HomeName, secretsName} {
		_, err := os.Lstat(filepath.Join(work, name))
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, os.ErrNotExist):
			return false, fmt.Errorf("look for a state that could not be stored: %w", err)
		}
	}
	return false, nil
}

// Sweep implements caches.Cache.
func (c workCache) Sweep(ctx context.Context) error {
	entries, err := os.ReadDir(c.dir.path("work"))
	errs := []error{err}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), removedPrefix) {
			errs = append(errs, isolation.RemoveAllUntil(ctx, c.dir.path("work", entry.Name())))
		}
	}
	return errors.Join(errs...)
}

// markUsed says that a run has used a work directory until now. A template may
// have given it another time, and something else its name.
func (d *dataDir) markUsed(workspace string) {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	// At worst what it holds is fetched once more.
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, d.path("work", workspace), now, unix.AT_SYMLINK_NOFOLLOW)
}
