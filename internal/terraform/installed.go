package terraform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/isolation"
)

// Installed are the engines that Locate has downloaded into a directory and would
// download again. What somebody else has put there, of another kind, is none of
// them. It implements caches.Cache.
type Installed struct{ Dir string }

// removedPrefix marks an engine that is being deleted.
const removedPrefix = ".removed-"

// Kind implements caches.Cache.
func (Installed) Kind() string { return "engines" }

func (i Installed) home() string { return filepath.Join(i.Dir, Terraform) }

// Items implements caches.Cache.
func (i Installed) Items() ([]caches.Item, error) {
	var items []caches.Item
	for _, binary := range newestFirst(filepath.Join(i.home(), "*", Terraform), Terraform) {
		dir := filepath.Dir(binary)
		if info, err := os.Lstat(dir); err == nil && info.IsDir() {
			items = append(items, caches.Item{Path: dir, Used: info.ModTime()})
		}
	}
	return items, nil
}

// Remove implements caches.Cache.
func (i Installed) Remove(ctx context.Context, item caches.Item) (bool, error) {
	unlock, claimed, err := caches.Claim(item.Path)
	if !claimed {
		return false, err
	}
	gone := filepath.Join(i.home(), fmt.Sprintf("%s%d", removedPrefix, time.Now().UnixNano()))
	err = os.Rename(item.Path, gone)
	unlock()
	if err != nil {
		return false, err
	}
	return true, isolation.RemoveAllUntil(ctx, gone)
}

// Sweep implements caches.Cache.
func (i Installed) Sweep(ctx context.Context) error {
	left, err := filepath.Glob(filepath.Join(i.home(), removedPrefix+"*"))
	errs := []error{err}
	for _, dir := range left {
		errs = append(errs, isolation.RemoveAllUntil(ctx, dir))
	}
	return errors.Join(append(errs, i.sweepHalves(ctx))...)
}

// sweepHalves deletes what installers that were killed have left, unless one is
// at work, which does it itself.
func (i Installed) sweepHalves(ctx context.Context) error {
	halves, err := filepath.Glob(filepath.Join(i.home(), stagingPrefix+"*"))
	if err != nil || halves == nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, lockPoll)
	defer cancel()
	release, err := caches.Lock(soon, filepath.Join(i.home(), installLock))
	if err != nil {
		if soon.Err() != nil {
			err = nil
		}
		return err
	}
	defer release()
	var errs []error
	for _, dir := range halves {
		errs = append(errs, isolation.RemoveAllUntil(ctx, dir))
	}
	return errors.Join(errs...)
}

// Hold keeps an engine that was installed in installDir from being removed until
// release is called or this process ends, and marks it as used. It reports false
// if it has been removed since it was located; any other engine is nobody's to
// remove.
func (e Engine) Hold(installDir string) (release func(), held bool) {
	dir := filepath.Dir(e.Path)
	installed, err := filepath.EvalSymlinks(installDir)
	if err != nil || !strings.HasPrefix(e.Path, installed+string(filepath.Separator)) {
		return func() {}, true
	}
	if release, held = caches.Hold(dir); !held {
		return nil, false
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // at worst it is downloaded once more
	return release, true
}
