package providers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

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
