package providers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/isolation"
)

// store is the directory that all workspaces share. Its methods, but for use
// and prune, need the lock that use takes. Those that write do so as its owner,
// who may be another uid than the one that runs the engine.
type store struct {
	dir string
	as  func(func() error) error // see Options.AsStore; nil where it is one uid
}

// asOwner does what needs the right to write here.
func (s store) asOwner(do func() error) error {
	if s.as == nil {
		return do()
	}
	return s.as(do)
}

// The store's own files begin with a dot, which no host does.
const (
	// useLock is held shared from the look for packages until the packages of
	// that init are marked as used, and exclusively to prune.
	useLock = ".use"
	// changeLock is held to add or remove a package.
	changeLock = ".change"
	// trashPrefix marks a package that is being removed.
	trashPrefix = ".trash-"
	// newPrefix marks a package that is being copied here.
	newPrefix = ".new-"
)

// publicDir is the mode of the store's directories: each run reads them, and
// whoever is not to is kept out above.
const publicDir = 0o755

// lockPoll is how often a lock that somebody else has is tried.
const lockPoll = 20 * time.Millisecond

// use keeps the store from being pruned until done is called.
func (s store) use(ctx context.Context) (done func(), err error) {
	lock := flock.New(filepath.Join(s.dir, useLock))
	err = s.asOwner(func() error {
		if err := os.MkdirAll(s.dir, publicDir); err != nil {
			return err
		}
		if _, err := lock.TryRLockContext(ctx, lockPoll); err != nil {
			return fmt.Errorf("wait for the provider cache to be pruned: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Unlock() }, nil // closing the file, which ends the lock, has no other way to fail
}

// change runs do while nobody else adds or removes a package.
func (s store) change(ctx context.Context, do func() error) error {
	return s.asOwner(func() error {
		lock := flock.New(filepath.Join(s.dir, changeLock))
		if _, err := lock.TryLockContext(ctx, lockPoll); err != nil {
			return err
		}
		defer lock.Unlock() //nolint:errcheck // see use
		return do()
	})
}

// path is where a package is, or would be.
func (s store) path(at slot, sum checksum) string { return filepath.Join(at.in(s.dir), string(sum)) }

// newest lists, for each version of the provider (HOST/NAMESPACE/TYPE, or a
// pattern), the newest package. They are not verified.
func (s store) newest(provider string) map[slot]checksum {
	pattern := filepath.Join(s.dir, filepath.FromSlash(provider), "*", platform, "*")
	found, err := filepath.Glob(pattern) // which reports a malformed pattern only
	if err != nil {
		return nil
	}
	newest, times := map[slot]checksum{}, map[slot]time.Time{}
	for _, path := range found {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() || !hasProgram(path) {
			continue
		}
		relative, err := filepath.Rel(s.dir, filepath.Dir(path))
		if err != nil {
			continue
		}
		at := slot(filepath.ToSlash(relative))
		if _, seen := newest[at]; !seen || info.ModTime().After(times[at]) {
			newest[at], times[at] = checksum(filepath.Base(path)), info.ModTime()
		}
	}
	return newest
}

// hasProgram reports whether a package holds what the engine fails without
// rather than downloads again.
func hasProgram(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return strings.HasPrefix(e.Name(), "terraform-provider-")
	})
}

// verified returns the first of the packages that is there and undamaged.
// Those that are damaged are removed.
func (s store) verified(ctx context.Context, at slot, sums []checksum) (checksum, bool) {
	for _, sum := range sums {
		path := s.path(at, sum)
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if got, err := hashPackage(path); err == nil && got == sum {
			return sum, true
		}
		_ = s.removeDamaged(ctx, at, sum) // it is not used, removed or not
	}
	return "", false
}

// removeDamaged removes a package unless it is whole, which it may have become
// since it was looked at: somebody else has replaced it then.
func (s store) removeDamaged(ctx context.Context, at slot, sum checksum) error {
	return s.change(ctx, func() error {
		path := s.path(at, sum)
		if got, err := hashPackage(path); err == nil && got == sum {
			return nil
		}
		return s.discard(path)
	})
}

// discard makes a package vanish at once, and then removes it.
func (s store) discard(path string) error {
	trash, err := os.MkdirTemp(s.dir, trashPrefix)
	if err != nil {
		return err
	}
	err = os.Rename(path, filepath.Join(trash, "package"))
	return cmp.Or(os.RemoveAll(trash), ignoreMissing(err))
}

// publish puts a package into the store, unless it is there already and whole,
// and removes the one given. Where the store has an owner of its own the package
// is copied, for a file stays its maker's, and checked after that. Else it is
// moved: it must be on the store's file system. hold is called with the package's
// path before anybody could remove it.
func (s store) publish(ctx context.Context, dir string, at slot, sum checksum, hold func(path string) bool) error {
	err := s.change(ctx, func() (err error) {
		path := s.path(at, sum)
		defer func() {
			if err == nil {
				hold(path) // without that it is there all the same
			}
		}()
		if _, err := os.Lstat(path); err == nil {
			if got, err := hashPackage(path); err == nil && got == sum {
				return nil
			}
			if err := s.discard(path); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(filepath.Dir(path), publicDir); err != nil {
			return err
		}
		if s.as == nil {
			return errors.Join(readOnly(dir), os.Rename(dir, path))
		}
		return s.copy(dir, path, sum)
	})
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// copy makes a package of its own from one that another uid has made.
func (s store) copy(from, to string, sum checksum) error {
	half, err := os.MkdirTemp(s.dir, newPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(half) //nolint:errcheck // swept when the store is pruned
	made := filepath.Join(half, "package")
	if err := os.CopyFS(made, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy it: %w", err)
	}
	switch got, err := hashPackage(made); {
	case err != nil:
		return fmt.Errorf("check its copy: %w", err)
	case got != sum:
		return errors.New("its copy has another checksum")
	}
	return errors.Join(readOnly(made), os.Rename(made, to))
}

// readOnly takes the right to write from a package's files, so that an engine
// that is not root cannot change them in place. Directories stay as they are:
// whoever removes the data directory needs them so.
func readOnly(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		return os.Chmod(path, 0o555) //nolint:gosec // a program; the directory above is private
	})
}

// touch marks a package as used now.
func (s store) touch(at slot, sum checksum) {
	now := time.Now()
	_ = s.asOwner(func() error { return os.Chtimes(s.path(at, sum), now, now) }) // at worst it is downloaded again in a month
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

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
	path := filepath.Join(s.dir, useLock)
	if info, err := os.Stat(path); err != nil || now.Sub(info.ModTime()) < pruneEvery {
		return
	}
	_ = s.asOwner(func() error { // who cannot leaves it to the next one
		s.pruneAsOwner(path, now)
		return nil
	})
}

func (s store) pruneAsOwner(path string, now time.Time) {
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

// Packages are the packages of a store, which can be downloaded again. It
// implements caches.Cache.
type Packages struct{ Dir string }

// changePatience is how long somebody who adds a package is waited for.
const changePatience = 2 * time.Second

// Kind implements caches.Cache.
func (Packages) Kind() string { return "providers" }

// Items implements caches.Cache.
func (p Packages) Items() ([]caches.Item, error) {
	found, err := store{dir: p.Dir}.packages()
	if err != nil {
		return nil, fmt.Errorf("look for provider packages: %w", err)
	}
	var items []caches.Item
	for _, dir := range found {
		if info, err := os.Lstat(dir); err == nil && info.IsDir() {
			items = append(items, caches.Item{Path: dir, Used: info.ModTime()})
		}
	}
	return items, nil
}

// Remove implements caches.Cache: a run holds what it has linked.
func (p Packages) Remove(ctx context.Context, item caches.Item) (bool, error) {
	soon, cancel := context.WithTimeout(ctx, changePatience)
	defer cancel()
	release, err := caches.Lock(soon, filepath.Join(p.Dir, changeLock))
	if err != nil {
		if soon.Err() != nil {
			err = nil
		}
		return false, err
	}
	trash, err := p.putAside(item.Path)
	release() // who adds a package need not wait for this one's end
	if trash == "" {
		return false, err
	}
	return true, isolation.RemoveAllUntil(ctx, trash)
}

// putAside takes a package from where it is found, unless somebody uses it. The
// caller holds the lock on changes.
func (p Packages) putAside(dir string) (trash string, err error) {
	unlock, claimed, err := caches.Claim(dir)
	if !claimed {
		return "", err
	}
	defer unlock()
	// No directory is made for it: on a disk without an inode left there is none.
	trash = filepath.Join(p.Dir, trashPrefix+uuid.NewString())
	if err := os.Rename(dir, trash); err != nil {
		return "", err
	}
	store{dir: p.Dir}.removeEmpty(filepath.Dir(dir))
	return trash, nil
}

// Sweep implements caches.Cache. Whoever removes or copies a package has the lock
// on changes until it is either here or there.
func (p Packages) Sweep(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, changePatience)
	defer cancel()
	release, err := caches.Lock(soon, filepath.Join(p.Dir, changeLock))
	if err != nil {
		if soon.Err() != nil {
			err = nil // a run is busy here; it will be done another time
		}
		return err
	}
	defer release()
	return store{dir: p.Dir}.sweep(ctx)
}
