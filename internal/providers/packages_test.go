package providers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/caches"
)

// keeper keeps a site's store within a limit.
func (s *site) keeper(limits caches.Limits) *caches.Keeper {
	return caches.NewKeeper(s.store.dir, limits, Packages{s.store.dir})
}

func (s *site) pass(k *caches.Keeper) caches.Pass {
	s.t.Helper()
	p, err := k.Pass(s.t.Context())
	if err != nil {
		s.t.Fatalf("Pass() error = %v", err)
	}
	return p
}

// least is a limit that nothing is below.
var least = caches.Limits{Most: 1}

// What is over the limit goes, the least recently used first, and a workspace that
// wants it downloads it again.
func TestPackagesOverTheLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t, "0.14.1", newest)
	s.stock(map[string]time.Duration{"0.14.1": 3 * time.Hour, newest: 2 * time.Hour})
	both := s.pass(s.keeper(caches.Limits{})).Total()
	s.wantStored("0.14.1", newest)
	s.pass(s.keeper(caches.Limits{Most: both - 1}))
	s.wantStored(newest)
	s.pass(s.keeper(least))
	s.wantStored()
	if _, err := os.Stat(filepath.Join(s.store.dir, "registry.terraform.io")); err == nil {
		t.Error("empty directories are left")
	}
	s.run(s.workspace(newest))
	s.wantStored(newest)
	s.wantDownloads(1)
}

// What an init has been given stays until the run is over, though it was used
// long ago and there is no limit that it does not exceed.
func TestPackagesOfARunStay(t *testing.T) {
	t.Parallel()
	for name, lockedTo := range map[string]string{"locked": newest, "lockless": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, newest)
			s.stock(map[string]time.Duration{newest: 40 * 24 * time.Hour})
			dir := s.workspace(lockedTo)
			cache := New(Options{Store: s.store.dir, Private: filepath.Join(dir, "providers"), Template: filepath.Join(dir, "source")})
			k := s.keeper(least)
			err := cache.Init(t.Context(), func(ctx context.Context) error {
				s.pass(k)
				s.wantStored(newest)
				return s.init(ctx, dir, cache)
			})
			if err != nil {
				t.Fatal(err)
			}
			s.pass(k)
			s.wantStored(newest)
			s.wantDownloads(0)
			cache.Close()
			s.pass(k)
			s.wantStored()
		})
	}
}

// So does what an init has downloaded, and what a run goes on using of an earlier
// one's.
func TestPackagesThatAreNewOrReusedStay(t *testing.T) {
	t.Parallel()
	s := newSite(t, newest)
	dir := s.workspace(newest)
	open := func() *Cache {
		return New(Options{Store: s.store.dir, Private: filepath.Join(dir, "providers"), Template: filepath.Join(dir, "source")})
	}
	k := s.keeper(least)
	cache := open()
	if err := cache.Init(t.Context(), func(ctx context.Context) error { return s.init(ctx, dir, cache) }); err != nil {
		t.Fatal(err)
	}
	s.pass(k)
	s.wantStored(newest)
	cache.Close()

	aged := time.Now().Add(-40 * 24 * time.Hour)
	if err := os.Chtimes(s.path(newest), aged, aged); err != nil {
		t.Fatal(err)
	}
	again := open()
	if err := again.Reuse(); err != nil {
		t.Fatal(err)
	}
	s.pass(k)
	s.wantStored(newest)
	if info, err := os.Stat(s.path(newest)); err != nil || time.Since(info.ModTime()) > time.Hour {
		t.Errorf("Stat() = %v, %v, want it marked as used", info, err)
	}
	again.Close()
	s.pass(k)
	s.wantStored()
}

// Inits that begin while everything is being removed all the time succeed: what
// they are given stays, and the rest is downloaded.
func TestInitsWhilePackagesGo(t *testing.T) {
	t.Parallel()
	s := newSite(t, newest)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 4 {
			s.run(s.workspace(newest))
		}
	}()
	k := s.keeper(least)
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(time.Millisecond):
			s.pass(k)
		}
	}
}

// With no inode left no directory can be made, and room nevertheless.
func TestPackagesGoFromAFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the full disk is a tmpfs, and only root can mount one")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m,nr_inodes=64"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	old := filepath.Join(dir, "h", "n", "t", "1.0.0", "linux_amd64", "sum")
	if err := errors.Join(os.MkdirAll(old, 0o700), os.WriteFile(filepath.Join(dir, changeLock), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var full error
	for i := 0; full == nil; i++ {
		full = os.WriteFile(filepath.Join(old, fmt.Sprint(i)), nil, 0o600)
	}
	if !errors.Is(full, unix.ENOSPC) {
		t.Fatal(full)
	}
	if p, err := caches.NewKeeper(dir, caches.Limits{MinFree: 1 << 40}, Packages{dir}).Pass(t.Context()); err != nil || len(p.Removed) != 1 || exists(old) == nil {
		t.Errorf("Pass() = %+v, %v, want the package removed", p, err)
	}
}

// A clean-up that is killed leaves whole packages or none, and what it was about
// to delete goes at the next start.
func TestPackagesAfterAKilledCleanUp(t *testing.T) {
	t.Parallel()
	s := newSite(t, "0.14.1", newest)
	for tries := 1; !s.cleanUpKilled(); tries++ { // it may have been faster than this test
		if tries == 10 {
			t.Fatal("no clean-up was killed too soon")
		}
	}
	for _, path := range s.packages() {
		if sum, err := hashPackage(path); string(sum) != filepath.Base(path) && filepath.Base(filepath.Dir(filepath.Dir(path))) == newest {
			t.Errorf("%s has the checksum %s, %v", path, sum, err)
		}
	}
	s.run(s.workspace(newest)) // as ever
	if err := s.keeper(least).Sweep(t.Context()); err != nil {
		t.Errorf("Sweep() = %v", err)
	}
	s.run(s.workspace(newest))
	if trash, err := filepath.Glob(filepath.Join(s.store.dir, ".*", "*")); len(trash) > 0 || err != nil {
		t.Errorf("Glob() = %q, %v after a sweep, want nothing", trash, err)
	}
}

// cleanUpKilled kills a clean-up of two packages, and reports whether it was in the
// middle of it.
func (s *site) cleanUpKilled() bool {
	s.t.Helper()
	s.stock(map[string]time.Duration{"0.14.1": time.Hour, newest: time.Hour})
	for i := range 20_000 { // much to delete
		if err := os.WriteFile(filepath.Join(s.path("0.14.1"), "more-"+strings.Repeat("x", i%100)+time.Duration(i).String()), nil, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	cmd := s.startCleaner()
	s.until("the package is being removed", func() bool { return exists(s.path("0.14.1")) != nil })
	s.kill(cmd)
	trash, err := filepath.Glob(filepath.Join(s.store.dir, trashPrefix+"*"))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(trash) > 0
}

// A package that is being copied is not swept away: it is under the lock on
// changes.
func TestSweepLeavesWhatIsBeingAdded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	half := filepath.Join(s.store.dir, newPrefix+"1")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	err := s.store.change(t.Context(), func() error {
		return errors.Join(Packages{s.store.dir}.Sweep(t.Context()), exists(half))
	})
	if err != nil {
		t.Errorf("Sweep() while a package is added: %v, want it left alone", err)
	}
	if err := (Packages{s.store.dir}).Sweep(t.Context()); err != nil || exists(half) == nil {
		t.Errorf("Sweep() = %v and left it there, want it gone", err)
	}
}

func exists(path string) error {
	_, err := os.Lstat(path)
	return err
}

// What is in the store may be a template's, where agent and templates share a uid.
func TestPackagesThatAreNone(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	at := filepath.Join(dir, "h", "n", "t", "1.0.0", "linux_amd64")
	kept := filepath.Join(outside, "kept")
	deep := filepath.Join(at, "deep", strings.Repeat("d/", 400))
	err := errors.Join(
		os.MkdirAll(deep, 0o700), os.WriteFile(kept, nil, 0o600),
		os.Symlink(outside, filepath.Join(at, "link")), unix.Mkfifo(filepath.Join(at, "pipe"), 0o600),
		os.Mkdir(filepath.Join(at, "shut"), 0o700), os.WriteFile(filepath.Join(at, "shut", "file"), nil, 0o600), os.Chmod(filepath.Join(at, "shut"), 0o500),
		os.Symlink(kept, filepath.Join(at, "deep", "out")),
		os.Symlink(outside, filepath.Join(dir, trashPrefix+"1")), os.MkdirAll(filepath.Join(dir, newPrefix+"1"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	k := caches.NewKeeper(dir, least, Packages{dir})
	if err := k.Sweep(t.Context()); err != nil {
		t.Errorf("Sweep() = %v", err)
	}
	if p, err := k.Pass(t.Context()); err != nil || len(p.Removed) != 1 || p.Removed[0].Items != 2 {
		t.Errorf("Pass() = %+v, %v, want two directories removed", p, err)
	}
	if err := exists(kept); err != nil {
		t.Errorf("what a link leads to is gone: %v", err)
	}
	for _, path := range []string{deep, filepath.Join(at, "shut"), filepath.Join(dir, trashPrefix+"1"), filepath.Join(dir, newPrefix+"1")} {
		if exists(path) == nil {
			t.Errorf("%s is still there", path)
		}
	}
}
