package providers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/isolation"
)

// Cache is what one run's init gets of the store.
type Cache struct {
	store    store
	private  string
	template string
	// lockless: the template ships no lock file.
	lockless bool
	// shipped is what the template's own lock file accepts.
	shipped map[slot][]checksum
	// selected is a copy of the lock file that the workspace's last init made,
	// empty if it made none.
	selected string
	notice   func(string)
	// held has, by its path, each package that is not to be removed while the
	// engine may use it.
	held map[string]func()
}

// Options say where a Cache works. Private and Store must be on one file
// system; else nothing is shared.
type Options struct {
	// Store is shared by all runs of this machine's agent.
	Store string
	// Private is the workspace's own. It is emptied by each init, and must stay
	// where it is as long as the engine's data directory is used, which has
	// links to it. A file PRIVATE.lock.hcl is kept beside it.
	Private string
	// Template is the root module, as checked out.
	Template string
	// AsStore does something with the right to write to the store, where that
	// belongs to another uid; nil where it does not.
	AsStore func(do func() error) error
	// Notice hears of what a person should know; it may be nil.
	Notice func(string)
}

// Selected is the file that is kept beside a private directory.
func Selected(private string) string { return private + ".lock.hcl" }

// New looks whether the template ships a lock file. A nil Cache, which Options
// without a Store give, caches nothing.
func New(options Options) *Cache {
	if options.Store == "" {
		return nil
	}
	c := &Cache{
		store: store{options.Store, options.AsStore}, private: options.Private,
		template: options.Template, selected: Selected(options.Private), notice: options.Notice,
		held: map[string]func(){},
	}
	if c.notice == nil {
		c.notice = func(string) {}
	}
	_, err := os.Lstat(c.lockFile())
	c.lockless = err != nil
	return c
}

// Env is what the engine needs in its environment, for every command.
func (c *Cache) Env() []string {
	if c == nil {
		return nil
	}
	env := []string{"TF_PLUGIN_CACHE_DIR=" + c.private}
	if c.lockless {
		env = append(env, "TF_PLUGIN_CACHE_MAY_BREAK_DEPENDENCY_LOCK_FILE=1")
	}
	return env
}

// Init runs the engine's init with the store's packages at hand, and stores
// what it downloaded. Its errors are those of init; but for a private directory
// that cannot be made, the cache itself only costs downloads when it fails.
func (c *Cache) Init(ctx context.Context, init func(context.Context) error) error {
	if c == nil {
		return init(ctx)
	}
	done, err := c.store.use(ctx)
	if err != nil {
		c.notice(fmt.Sprintf("The provider cache cannot be used: %v", err))
		if err := c.empty(); err != nil {
			return err
		}
		return init(ctx)
	}
	defer func() {
		done()
		c.store.prune(time.Now())
	}()
	if err := c.open(ctx); err != nil {
		return err
	}
	if err := init(ctx); err != nil {
		return err
	}
	if whole := c.settle(ctx); whole {
		return nil
	}
	// Only without a lock file, so the one that is there is the engine's.
	c.notice("A provider package in this agent's cache was damaged. It is downloaded again.")
	if err := os.Remove(c.lockFile()); err != nil {
		return fmt.Errorf("forget a damaged provider package: %w", err)
	}
	if err := c.empty(); err != nil {
		return err
	}
	if err := init(ctx); err != nil {
		return err
	}
	c.settle(ctx)
	return nil
}

// Reuse makes ready for commands after an earlier run's init, whose links are in
// the engine's data directory: the engine wants its cache directory to be there,
// and the packages of the lock file, which such an init had, to stay.
func (c *Cache) Reuse() error {
	if c == nil {
		return nil
	}
	for at, sums := range c.locked() {
		for _, sum := range sums {
			if c.hold(c.store.path(at, sum)) {
				c.store.touch(at, sum)
			}
		}
	}
	if err := os.MkdirAll(c.private, publicDir); err != nil {
		return fmt.Errorf("make the workspace's provider directory: %w", err)
	}
	return nil
}

// Adopt does for a workspace without an init what Reuse does after one: it links
// the packages of the lock file below data, which is where the engine has them in
// its data directory. It reports false where one is not in the store, for init to
// download it.
func (c *Cache) Adopt(ctx context.Context, data string) (bool, error) {
	if c == nil {
		return false, nil
	}
	if err := errors.Join(c.empty(), isolation.RemoveAll(data)); err != nil {
		return false, err
	}
	for at, sums := range c.locked() {
		sum, ok := c.store.verified(ctx, at, sums)
		if !ok || !c.hold(c.store.path(at, sum)) {
			return false, nil
		}
		c.link(at, sum)
		c.store.touch(at, sum)
		place := at.in(data)
		if err := errors.Join(os.MkdirAll(filepath.Dir(place), publicDir), os.Symlink(at.in(c.private), place)); err != nil {
			return false, fmt.Errorf("link a provider package: %w", err)
		}
	}
	return true, nil
}

// empty makes the private directory, or empties it: what an earlier run's
// template may have put there must not reach the store.
func (c *Cache) empty() error {
	c.letGo(func(string) bool { return true })
	if err := os.MkdirAll(c.private, publicDir); err != nil {
		return fmt.Errorf("make the workspace's provider directory: %w", err)
	}
	entries, err := os.ReadDir(c.private)
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(c.private, entry.Name())))
	}
	if err != nil {
		return fmt.Errorf("clear the workspace's provider directory: %w", err)
	}
	return nil
}

// open fills the private directory.
func (c *Cache) open(ctx context.Context) error {
	if err := c.empty(); err != nil {
		return err
	}
	if c.lockless {
		for _, provider := range c.likely() {
			for at, sum := range c.store.newest(provider) {
				c.link(at, sum)
			}
		}
		return nil
	}
	c.shipped = c.locked()
	for at, sums := range c.shipped {
		if sum, ok := c.store.verified(ctx, at, sums); ok {
			c.link(at, sum)
		}
	}
	return nil
}

// likely lists the providers that a template without a lock file may need:
// those it needed last time, or any. A link costs about 0.1 ms; what one is
// missing for is downloaded once more.
func (c *Cache) likely() []string {
	var lock Lock
	content, err := os.ReadFile(c.selected)
	if err == nil {
		lock, err = parseLock(content)
	}
	if err != nil {
		return []string{"*/*/*"}
	}
	var providers []string
	for at := range lock.packages() {
		providers = append(providers, path.Dir(path.Dir(string(at))))
	}
	return providers
}

// locked reads the lock file; nil if there is none, for a template that needs
// no provider, or one that nobody can read, which the engine is not run with.
func (c *Cache) locked() map[slot][]checksum {
	lock, err := ReadLock(c.template)
	if err != nil {
		return nil
	}
	return lock.packages()
}

func (c *Cache) lockFile() string { return filepath.Join(c.template, LockFileName) }

// link gives the engine a package of the store. Without the link it downloads.
func (c *Cache) link(at slot, sum checksum) {
	place, path := at.in(c.private), c.store.path(at, sum)
	if c.hold(path) && os.MkdirAll(filepath.Dir(place), publicDir) == nil {
		_ = os.Symlink(path, place)
	}
}

// hold keeps a package of the store from being removed until this process ends,
// or lets it go. It reports whether the package is there.
func (c *Cache) hold(path string) bool {
	if c.held[path] != nil {
		return true
	}
	release, held := caches.Hold(path)
	if held {
		c.held[path] = release
	}
	return held
}

// letGo gives up holding some packages.
func (c *Cache) letGo(which func(path string) bool) {
	for path, release := range c.held {
		if which(path) {
			release()
			delete(c.held, path)
		}
	}
}

// Close lets all packages go: no engine runs any more.
func (c *Cache) Close() {
	if c != nil {
		c.letGo(func(string) bool { return true })
	}
}

// settle stores what init downloaded and marks what it used. It reports whether
// all packages that came from the store are what the engine says they are.
func (c *Cache) settle(ctx context.Context) (whole bool) {
	whole = true
	if c.lockless {
		c.remember()
	}
	used := map[string]bool{}
	for at, sums := range c.locked() {
		place := at.in(c.private)
		info, err := os.Lstat(place)
		if err != nil {
			continue // came from elsewhere, a mirror on this machine for one
		}
		switch info.Mode().Type() {
		case fs.ModeSymlink:
			sum, ok := c.linked(place)
			switch {
			case !ok:
			case slices.Contains(sums, sum):
				used[c.store.path(at, sum)] = true
				c.store.touch(at, sum)
			default:
				_ = c.store.removeDamaged(ctx, at, sum) // the engine is not given it again, removed or not
				whole = false
			}
		case fs.ModeDir:
			if c.shipsPackages() {
				continue
			}
			path, err := c.keep(ctx, place, at, sums)
			if err != nil {
				c.notice(fmt.Sprintf("The provider package %s was not added to this agent's cache: %v", at, err))
			}
			used[path] = true
		}
	}
	c.letGo(func(path string) bool { return !used[path] })
	return whole
}

// shipsPackages reports whether the template has a mirror of its own, where the
// engine looks first (terraform.d/plugins). What is from there has the names
// that the template gave it, and is nobody else's to run.
func (c *Cache) shipsPackages() bool {
	_, err := os.Lstat(filepath.Join(c.template, "terraform.d", "plugins"))
	return err == nil
}

// linked returns which package of the store a link leads to, if to any.
func (c *Cache) linked(link string) (checksum, bool) {
	target, err := os.Readlink(link)
	if err != nil || !strings.HasPrefix(target, c.store.dir+string(filepath.Separator)) {
		return "", false
	}
	return checksum(filepath.Base(target)), true
}

// keep moves a downloaded package to the store and leaves a link, so that what
// the engine's data directory has stays valid, and returns where it is. One that
// the lock file does not know by this checksum stays private.
func (c *Cache) keep(ctx context.Context, dir string, at slot, sums []checksum) (path string, err error) {
	sum, err := hashPackage(dir)
	if err != nil {
		return "", err
	}
	if !slices.Contains(sums, sum) {
		return "", nil
	}
	if !c.lockless && !slices.Contains(c.shipped[at], sum) {
		c.notice(fmt.Sprintf("The lock file has no checksum of %s, so each run downloads it again. \"terraform providers lock -platform=%s\" adds it.", at, platform))
	}
	path = c.store.path(at, sum)
	if err := c.store.publish(ctx, dir, at, sum, c.hold); err != nil {
		return "", err
	}
	c.store.touch(at, sum)
	if err := os.Symlink(path, dir); err != nil {
		return path, fmt.Errorf("link it: %w", err)
	}
	return path, nil
}

// remember keeps what likely reads.
func (c *Cache) remember() {
	content, err := os.ReadFile(c.lockFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if known, err := os.ReadFile(c.selected); err == nil && bytes.Equal(known, content) {
		return
	}
	_ = os.WriteFile(c.selected, content, 0o600) //nolint:gosec // our own path; at worst too much is linked, or downloaded, next time
}
