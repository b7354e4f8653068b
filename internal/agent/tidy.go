package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/isolation"
)

// tidyEvery is how often the caches are looked through when no run ends: what was
// used too short a time ago no longer is.
const tidyEvery = time.Hour

// tidier keeps the agent's caches within their limits: when it starts, after
// runs, and before a run that finds the disk nearly full. States, spools,
// rejected/ and whatever else cannot be had again are none of its business.
type tidier struct {
	root   string // of the data directory
	keeper *caches.Keeper
	log    *slog.Logger
	limits caches.Limits
	pause  time.Duration
	ended  chan struct{} // a run has
	// outliving counts runs of earlier starts that still live. An older version
	// of this program may have started them, which holds nothing of what it uses.
	outliving atomic.Int32
	// bytes is what was found last, by kind.
	bytes atomic.Pointer[map[string]int64]
	over  atomic.Bool // said so
}

func newTidier(dirs workspaceDirs, workspaces *locks, options Options, pause time.Duration) *tidier {
	all := []caches.Cache{workCache{dirs, workspaces}}
	if options.SharedCaches != nil {
		for _, cache := range options.SharedCaches(dirs.dir.sharedDirs()) {
			if dirs.uids != nil {
				cache = sharedCache{cache, dirs.uids.block.Cache}
			}
			all = append(all, cache)
		}
	}
	return &tidier{
		root: dirs.dir.root, keeper: caches.NewKeeper(dirs.dir.root, options.Caches, all...), log: options.Log, limits: options.Caches,
		pause: pause, ended: make(chan struct{}, 1),
	}
}

// run looks after the caches until ctx ends.
func (t *tidier) run(ctx context.Context) {
	if err := t.keeper.Sweep(ctx); err != nil && ctx.Err() == nil {
		t.log.Warn("what an interrupted clean-up left cannot be removed", "error", err)
	}
	for {
		t.pass(ctx)
		if !wait(ctx, t.pause) {
			return
		}
		timer := time.NewTimer(tidyEvery)
		select {
		case <-ctx.Done():
		case <-t.ended:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// runEnded has the caches looked through soon.
func (t *tidier) runEnded() {
	select {
	case t.ended <- struct{}{}:
	default:
	}
}

// makeRoom is called before a run, and takes its time only if the disk is nearly
// full.
func (t *tidier) makeRoom(ctx context.Context) {
	if t.keeper.Short() {
		t.pass(ctx)
	}
}

func (t *tidier) pass(ctx context.Context) {
	if t.outliving.Load() > 0 {
		return
	}
	p, err := t.keeper.Pass(ctx)
	for _, r := range p.Removed {
		t.log.Info("removed from a cache what can be fetched again", "cache", r.Kind, "why", r.Why, "items", r.Items, "bytes", r.Bytes)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		t.log.Warn("the caches cannot all be looked after", "error", err)
	}
	if over := p.Over > 0; over != t.over.Swap(over) && over {
		t.log.Warn("the caches are over their limit, for what is left in them is in use or was a short time ago",
			"bytes", p.Total(), "limit", t.limits.Most, "keep", t.limits.Keep)
	}
	t.measure(ctx, p.Bytes)
}

// measure adds what the caches are not, and remembers the whole.
func (t *tidier) measure(ctx context.Context, known map[string]int64) {
	bytes, err := caches.Sizes(ctx, t.root, known)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		t.log.Debug("the data directory cannot all be measured", "error", err)
	}
	t.bytes.Store(&bytes)
}

// sizes is what the data directory held when it was looked at last, in bytes by
// kind (caches.Kinds); nil before that.
func (t *tidier) sizes() map[string]int64 {
	if bytes := t.bytes.Load(); bytes != nil {
		return *bytes
	}
	return nil
}

// sharedCache is one that belongs to the caches' uid, where runs have uids of their
// own: root does there what that uid could do, and no more.
type sharedCache struct {
	caches.Cache
	uid int
}

func (c sharedCache) Items() (items []caches.Item, err error) {
	err = isolation.WithFilesOf(c.uid, func() (err error) {
		items, err = c.Cache.Items()
		return err
	})
	return items, err
}

func (c sharedCache) Remove(ctx context.Context, item caches.Item) (removed bool, err error) {
	err = isolation.WithFilesOf(c.uid, func() (err error) {
		removed, err = c.Cache.Remove(ctx, item)
		return err
	})
	return removed, err
}

func (c sharedCache) Sweep(ctx context.Context) error {
	return isolation.WithFilesOf(c.uid, func() error { return c.Cache.Sweep(ctx) })
}
