package caches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

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
