package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"
	"github.com/gofrs/flock"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/isolation"
)

const (
	// objectCache is how much go-git may keep of what it has inflated.
	objectCache = 8 * cache.MiByte
	// streamFrom is the size in bytes from which go-git streams an object.
	streamFrom = 64 << 10
	// lockPoll is how often a lock that somebody else holds is tried again.
	lockPoll = 20 * time.Millisecond
)

// mirror is the directory of one repository; see the package comment.
type mirror struct{ dir string }

func (s *Source) mirror(a address) (mirror, error) {
	m := mirror{filepath.Join(s.repos, a.key())}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return mirror{}, fmt.Errorf("cache of %s: %w", a, err)
	}
	return m, nil
}

func (m mirror) git() string      { return filepath.Join(m.dir, "git") }
func (m mirror) packs() string    { return filepath.Join(m.git(), "objects", "pack") }
func (m mirror) marks() string    { return filepath.Join(m.git(), "complete") }
func (m mirror) tagsFile() string { return filepath.Join(m.dir, "tags.json") }

// The locks of a mirror, by file name.
const (
	fetchLock = "fetch.lock"
	useLock   = "use.lock"
	tagsLock  = "tags.lock"
)

type lockMode bool

const (
	shared    lockMode = false
	exclusive lockMode = true
)

// lock waits for a lock until ctx ends.
func (m mirror) lock(ctx context.Context, name string, mode lockMode) (unlock func(), err error) {
	l := flock.New(filepath.Join(m.dir, name), flock.SetPermissions(0o600))
	try := l.TryRLockContext
	if mode == exclusive {
		try = l.TryLockContext
	}
	if ok, err := try(ctx, lockPoll); err != nil || !ok {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("wait for the lock %s: %w", l.Path(), err)
	}
	return func() { _ = l.Unlock() }, nil // closing the file is what unlocks it
}

// prepare makes the mirror where there is none and sweeps away what an
// interrupted fetch left. A mirror of maxPacks packs, which is about as many
// versions, is begun anew: that bounds the disk, and the indexes that go-git
// holds in memory. The caller holds the fetch lock.
func (m mirror) prepare(ctx context.Context, maxPacks int) error {
	packs, err := filepath.Glob(filepath.Join(m.packs(), "pack-*.pack"))
	if err != nil {
		return err
	}
	if len(packs) >= maxPacks {
		if err := m.remove(ctx); err != nil {
			return err
		}
	}
	for _, dir := range []string{m.packs(), m.marks(), filepath.Join(m.git(), "refs")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make mirror: %w", err)
		}
	}
	// With a HEAD, git itself takes the directory for a repository.
	if err := os.WriteFile(filepath.Join(m.git(), "HEAD"), []byte("ref: refs/heads/none\n"), 0o600); err != nil {
		return fmt.Errorf("make mirror: %w", err)
	}
	return m.sweep()
}

// sweep removes half-written packs, and indexes whose pack never came.
func (m mirror) sweep() error {
	received, errReceived := filepath.Glob(filepath.Join(m.packs(), packPrefix+"*"))
	halves, errHalves := filepath.Glob(filepath.Join(m.packs(), durable.TempPrefix+"*"))
	indexes, errIndexes := filepath.Glob(filepath.Join(m.packs(), "*.idx"))
	if err := errors.Join(errReceived, errHalves, errIndexes); err != nil {
		return err
	}
	left := slices.Concat(received, halves)
	for _, index := range indexes {
		if _, err := os.Stat(index[:len(index)-len("idx")] + "pack"); errors.Is(err, fs.ErrNotExist) {
			left = append(left, index)
		}
	}
	for _, file := range left {
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("sweep mirror: %w", err)
		}
	}
	return nil
}

// remove deletes the mirror, not what is remembered of its tags, once nobody
// reads it. The caller holds the fetch lock.
func (m mirror) remove(ctx context.Context) error {
	unlock, err := m.lock(ctx, useLock, exclusive)
	if err != nil {
		return err
	}
	defer unlock()
	// The marks go first: a mirror half deleted must not look complete.
	for _, dir := range []string{m.marks(), m.git()} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove mirror: %w", err)
		}
	}
	return nil
}

// complete reports whether commit and all it holds were fetched and verified.
func (m mirror) complete(commit plumbing.Hash) bool {
	_, err := os.Stat(filepath.Join(m.marks(), commit.String()))
	return err == nil
}

func (m mirror) markComplete(commit plumbing.Hash) error {
	if err := os.WriteFile(filepath.Join(m.marks(), commit.String()), nil, 0o600); err != nil {
		return fmt.Errorf("mark commit as complete: %w", err)
	}
	return nil
}

// storage opens the mirror for go-git, with little memory.
func (m mirror) storage() *filesystem.Storage {
	return filesystem.NewStorageWithOptions(osfs.New(m.git()), cache.NewObjectLRU(objectCache),
		filesystem.Options{LargeObjectThreshold: streamFrom, KeepDescriptors: true})
}

// remember returns the commit that tag meant when this agent first saw it,
// which is the one given when it never did.
func (m mirror) remember(ctx context.Context, tag, commit string) (first string, err error) {
	if first, err = m.remembered(tag); err != nil || first != "" {
		return first, err
	}
	unlock, err := m.lock(ctx, tagsLock, exclusive)
	if err != nil {
		return "", err
	}
	defer unlock()
	tags, err := m.readTags()
	if err != nil {
		return "", err
	}
	if first := tags[tag]; first != "" {
		return first, nil
	}
	tags[tag] = commit
	content, err := json.MarshalIndent(tags, "", "  ")
	if err != nil {
		return "", fmt.Errorf("remember tag: %w", err)
	}
	if err := durable.WriteFile(m.tagsFile(), content); err != nil {
		return "", fmt.Errorf("remember tag: %w", err)
	}
	return commit, nil
}

// remembered returns what tag first meant, or "" when it was never seen.
func (m mirror) remembered(tag string) (string, error) {
	tags, err := m.readTags()
	return tags[tag], err
}

func (m mirror) readTags() (map[string]string, error) {
	tags := map[string]string{}
	content, err := os.ReadFile(m.tagsFile())
	if errors.Is(err, fs.ErrNotExist) {
		return tags, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read remembered tags: %w", err)
	}
	if err := json.Unmarshal(content, &tags); err != nil {
		return nil, fmt.Errorf("%s, where this agent remembers what tags meant, is damaged: %w; deleting it forgets them", m.tagsFile(), err)
	}
	return tags, nil
}

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
