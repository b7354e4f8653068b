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

// workCache is what runs leave in work/ID so that the next run of the workspace need not
// fetch it again. It implements caches.Cache.
type workCache struct {
	dirs  workspaceDirs
	locks *locks
}

// Kind implements caches.Cache.
func (workCache) Kind() string { return "work" }

// Items implements caches.Cache.
func (c workCache) Items() ([]caches.Item, error) {
	names, err := c.dirs.list()
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
		path := c.dirs.dir.path("work", name)
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
	gone := c.dirs.dir.path("work", removedPrefix+uuid.NewString())
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
	entries, err := os.ReadDir(c.dirs.dir.path("work"))
	errs := []error{err}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), removedPrefix) {
			errs = append(errs, isolation.RemoveAllUntil(ctx, c.dirs.dir.path("work", entry.Name())))
		}
	}
	return errors.Join(errs...)
}
