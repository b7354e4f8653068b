package providers

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Cache is what one run's init gets of the store.
type Cache struct {
	store    store
	private  string
	lockFile string
	// lockless: the template ships no lock file.
	lockless bool
	notice   func(string)
}

// Options say where a Cache works. Private and Store must be on one file
// system; else nothing is shared.
type Options struct {
	// Store is shared by all runs of this machine's agent.
	Store string
	// Private is this run's own. It is emptied by each init, and must stay
	// where it is as long as the engine's data directory is used, which has
	// links to it.
	Private string
	// Template is the root module, as checked out.
	Template string
	// Notice hears of what a person should know; it may be nil.
	Notice func(string)
}

// New looks whether the template ships a lock file. A nil Cache, which Options
// without a Store give, caches nothing.
func New(options Options) *Cache {
	if options.Store == "" {
		return nil
	}
	c := &Cache{
		store: store{options.Store}, private: options.Private,
		lockFile: filepath.Join(options.Template, lockFileName), notice: options.Notice,
	}
	if c.notice == nil {
		c.notice = func(string) {}
	}
	_, err := os.Lstat(c.lockFile)
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
	if err := os.Remove(c.lockFile); err != nil {
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

// empty makes the private directory anew: what an earlier run's template may
// have put there must not reach the store.
func (c *Cache) empty() error {
	if err := os.RemoveAll(c.private); err != nil {
		return fmt.Errorf("clear the workspace's provider directory: %w", err)
	}
	if err := os.MkdirAll(c.private, 0o700); err != nil {
		return fmt.Errorf("make the workspace's provider directory: %w", err)
	}
	return nil
}

// open fills the private directory.
func (c *Cache) open(ctx context.Context) error {
	if err := c.empty(); err != nil {
		return err
	}
	if c.lockless {
		for at, sum := range c.store.newest() {
			c.link(at, sum)
		}
		return nil
	}
	for at, sums := range c.locked() {
		if sum, ok := c.store.verified(ctx, at, sums); ok {
			c.link(at, sum)
		}
	}
	return nil
}

// locked reads the lock file; nil if there is none, for a template that needs
// no provider.
func (c *Cache) locked() locked {
	content, err := os.ReadFile(c.lockFile)
	if err != nil {
		return nil
	}
	return parseLockFile(content)
}

// link gives the engine a package of the store. Without the link it downloads.
func (c *Cache) link(at slot, sum checksum) {
	path := at.in(c.private)
	if os.MkdirAll(filepath.Dir(path), 0o700) == nil {
		_ = os.Symlink(c.store.path(at, sum), path)
	}
}

// settle stores what init downloaded and marks what it used. It reports whether
// all packages that came from the store are what the engine says they are.
func (c *Cache) settle(ctx context.Context) (whole bool) {
	whole = true
	for at, sums := range c.locked() {
		path := at.in(c.private)
		info, err := os.Lstat(path)
		if err != nil {
			continue // came from elsewhere, a mirror on this machine for one
		}
		switch info.Mode().Type() {
		case fs.ModeSymlink:
			sum, ok := c.linked(path)
			switch {
			case !ok:
			case slices.Contains(sums, sum):
				c.store.touch(at, sum)
			default:
				_ = c.store.removeDamaged(ctx, at, sum) // the engine is not given it again, removed or not
				whole = false
			}
		case fs.ModeDir:
			if err := c.keep(ctx, path, at, sums); err != nil {
				c.notice(fmt.Sprintf("The provider package %s was not added to this agent's cache: %v", at, err))
			}
		}
	}
	return whole
}

// linked returns which package of the store a link leads to, if to any.
func (c *Cache) linked(path string) (checksum, bool) {
	target, err := os.Readlink(path)
	if err != nil || !strings.HasPrefix(target, c.store.dir+string(filepath.Separator)) {
		return "", false
	}
	return checksum(filepath.Base(target)), true
}

// keep moves a downloaded package to the store and leaves a link, so that what
// the engine's data directory has stays valid. One that the lock file does not
// know by this checksum stays private.
func (c *Cache) keep(ctx context.Context, path string, at slot, sums []checksum) error {
	sum, err := hashPackage(path)
	if err != nil {
		return err
	}
	if !slices.Contains(sums, sum) {
		return nil
	}
	if err := c.store.publish(ctx, path, at, sum); err != nil {
		return err
	}
	c.store.touch(at, sum)
	if err := os.Symlink(c.store.path(at, sum), path); err != nil {
		return fmt.Errorf("link it: %w", err)
	}
	return nil
}
