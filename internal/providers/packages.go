package providers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/isolation"
)

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
