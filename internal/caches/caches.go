package caches

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Item is one thing that can be had again: the mirror of a repository, a package
// of a provider, an engine, what a workspace's last init has fetched.
type Item struct {
	// Path is the directory that Remove removes.
	Path string
	// Used is when a run used it last. A time to come counts as none.
	Used time.Time
	// Busy says that it is in use, so that its size is not checked now.
	Busy bool
	// Outdated says that nobody is likely to want it again: it goes without
	// need.
	Outdated bool
}

// Cache is one kind of things.
type Cache interface {
	// Kind is the name of its directory in the data directory.
	Kind() string
	// Items lists what is there.
	Items() ([]Item, error)
	// Remove removes one, by a rename first, and reports whether it did: what is
	// in use stays. If it is gone and could not be deleted, it is an error as
	// well.
	Remove(ctx context.Context, item Item) (removed bool, err error)
	// Sweep deletes what was renamed by somebody who was killed then.
	Sweep(ctx context.Context) error
}

// Limits say how much is kept. The zero value keeps everything but what is
// outdated.
type Limits struct {
	// Most is how much all caches together may take on the disk, in bytes; 0 is
	// any amount.
	Most int64
	// Keep is how long nothing is removed that was used.
	Keep time.Duration
	// MinFree is how much of the file system is to stay free, in bytes, if need
	// be by keeping less than Most; 0 is none.
	MinFree int64
}

// lockPoll is how often a lock that somebody else has is tried.
const lockPoll = 20 * time.Millisecond

// holdPatience is how long somebody who is removing a directory, or a template
// that has locked it against others, is waited for.
const holdPatience = time.Second

// Hold keeps a directory from being removed until release is called or the
// process ends; programs that it starts do not inherit that. It reports false if
// the directory is not there, or somebody has locked it against that.
//
// Where the file system has no such locks it holds nothing, and Claim fails.
func Hold(dir string) (release func(), held bool) {
	file, err := openDir(dir)
	if err != nil {
		return nil, false
	}
	return holdOpen(file, dir)
}

// holdOpen holds what was found in dir when that was opened.
func holdOpen(file *os.File, dir string) (release func(), held bool) {
	limit := time.Now().Add(holdPatience)
	err := flock(file, unix.LOCK_SH)
	for errors.Is(err, unix.EWOULDBLOCK) && isAt(file, dir) && time.Now().Before(limit) {
		time.Sleep(lockPoll)
		err = flock(file, unix.LOCK_SH)
	}
	if errors.Is(err, unix.EWOULDBLOCK) || !isAt(file, dir) {
		_ = file.Close() // nothing was written
		return nil, false
	}
	return func() { unlock(file) }, true
}

// Claim takes a directory to remove it, if nobody holds it. Until release is
// called, or its name is another's, nobody can hold it.
func Claim(dir string) (release func(), claimed bool, err error) {
	file, err := openDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	switch err := flock(file, unix.LOCK_EX); {
	case err == nil:
		return func() { unlock(file) }, true, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, false, file.Close()
	default:
		return nil, false, errors.Join(fmt.Errorf("lock %s: %w", dir, err), file.Close())
	}
}

// Lock takes a lock file exclusively, making it where there is none, and waits
// for it until ctx ends. The file may be of a template's making: it is no link
// that is followed and no pipe that is waited for.
func Lock(ctx context.Context, path string) (release func(), err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is no regular file", path), err, file.Close())
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := flock(file, unix.LOCK_EX)
		if err == nil {
			return func() { unlock(file) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), file.Close())
		}
	}
}

func openDir(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// flock does not wait: those who may wait poll, and can give up.
func flock(file *os.File, how int) error {
	for {
		err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// unlock ends a lock and closes its file. Closing alone would leave the lock to a
// process that is being started meanwhile, until that becomes its program.
func unlock(file *os.File) {
	_ = flock(file, unix.LOCK_UN) // it was locked, or closed before
	_ = file.Close()              // nothing was written
}

// isAt reports whether the file is what its name still stands for. Who removes
// renames before the lock is free again.
func isAt(file *os.File, path string) bool {
	mine, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, there)
}

// Keeper keeps caches within their limits.
type Keeper struct {
	root   string // whose file system is to have room
	limits Limits
	caches []Cache
	free   func(dir string) (Free, error)
	now    func() time.Time

	mu sync.Mutex // held for a pass
	// known has the sizes of items as of when they were used last: nothing else
	// changes them.
	known map[string]known
}

type known struct {
	used  time.Time
	bytes int64
}

// NewKeeper returns a Keeper of what is below root.
func NewKeeper(root string, limits Limits, caches ...Cache) *Keeper {
	return &Keeper{root: root, limits: limits, caches: caches, free: FreeAt, now: time.Now, known: map[string]known{}}
}

// Removed is what a pass has removed of one kind, and why.
type Removed struct {
	Kind  string
	Why   Reason
	Items int
	Bytes int64
}

// Reason is why something was removed.
type Reason string

// The reasons.
const (
	Unused    Reason = "not used for long"
	OverLimit Reason = "over the limit"
	DiskFull  Reason = "the disk is nearly full"
)

// Pass is what one pass has done and found.
type Pass struct {
	Removed []Removed
	// Bytes is what each kind takes after it.
	Bytes map[string]int64
	// Over is by how much all of them exceed the limit nevertheless, for what is
	// left is in use or was a short time ago.
	Over int64
}

// Total is what all kinds take.
func (p Pass) Total() (sum int64) {
	for _, bytes := range p.Bytes {
		sum += bytes
	}
	return sum
}

func (p *Pass) count(kind string, why Reason, bytes int64) {
	i := slices.IndexFunc(p.Removed, func(r Removed) bool { return r.Kind == kind && r.Why == why })
	if i < 0 {
		i, p.Removed = len(p.Removed), append(p.Removed, Removed{Kind: kind, Why: why})
	}
	p.Removed[i].Items++
	p.Removed[i].Bytes += bytes
}

// found is an item with what a pass needs to know of it.
type found struct {
	Item
	cache Cache
	bytes int64
}

// Sweep deletes what passes that were killed have left.
func (k *Keeper) Sweep(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, cache := range k.caches {
		errs = append(errs, cache.Sweep(ctx))
	}
	return errors.Join(errs...)
}

// Short reports whether the file system has less room than it is to have.
func (k *Keeper) Short() bool {
	free, err := k.free(k.root)
	return err == nil && free.short(k.limits.MinFree)
}

// Pass removes what is outdated, and then what was used longest ago until the
// rest is within its limits. What cannot be removed does not keep it from
// removing other things; the error tells of it. It ends early with ctx.
func (k *Keeper) Pass(ctx context.Context) (Pass, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := Pass{Bytes: map[string]int64{}}
	for _, cache := range k.caches {
		p.Bytes[cache.Kind()] = 0
	}
	all, errs := k.look(ctx)
	for _, f := range all {
		p.Bytes[f.cache.Kind()] += f.bytes
	}
	total, now, here := p.Total(), k.now(), device(k.root)
	for _, f := range all {
		if ctx.Err() != nil {
			break
		}
		if now.Sub(f.Used) < k.limits.Keep {
			continue
		}
		why := k.reason(f, total, here)
		if why == "" {
			continue
		}
		removed, err := f.cache.Remove(ctx, f.Item)
		if err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", f.Path, err))
		}
		if removed {
			total -= f.bytes
			p.Bytes[f.cache.Kind()] -= f.bytes
			p.count(f.cache.Kind(), why, f.bytes)
			delete(k.known, f.Path)
		}
	}
	if k.limits.Most > 0 {
		p.Over = max(0, total-k.limits.Most)
	}
	return p, errors.Join(append(errs, ctx.Err())...)
}

// reason is why an item is to go, the next of those used longest ago; "" if it
// is to stay.
func (k *Keeper) reason(f found, total int64, here uint64) Reason {
	switch {
	case f.Busy:
		return ""
	case f.Outdated:
		return Unused
	case k.limits.Most > 0 && total > k.limits.Most:
		return OverLimit
	case device(f.Path) == here && k.Short():
		return DiskFull
	}
	return ""
}

// look lists everything, what was used longest ago first.
func (k *Keeper) look(ctx context.Context) (all []found, errs []error) {
	now, still := k.now(), map[string]known{}
	for _, cache := range k.caches {
		items, err := cache.Items()
		if err != nil {
			errs = append(errs, err)
		}
		for _, item := range items {
			if item.Used.After(now) {
				item.Used = time.Time{}
			}
			size, err := k.size(ctx, item)
			if err == nil {
				still[item.Path] = size
			} else if ctx.Err() == nil {
				errs = append(errs, err)
			}
			all = append(all, found{item, cache, size.bytes})
		}
	}
	if ctx.Err() == nil {
		k.known = still
	}
	slices.SortStableFunc(all, func(a, b found) int { return a.Used.Compare(b.Used) })
	return all, errs
}

// size looks how large an item is, unless that is known. One that is in use has
// the size that it had before.
func (k *Keeper) size(ctx context.Context, item Item) (known, error) {
	last, is := k.known[item.Path]
	if item.Busy || is && last.used.Equal(item.Used) {
		return last, nil
	}
	bytes, err := Size(ctx, item.Path)
	if err != nil {
		return known{}, fmt.Errorf("look how large %s is: %w", item.Path, err)
	}
	return known{item.Used, bytes}, nil
}
