package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
)

// boot is one life of the agent: from a registered boot id to its end.
type boot struct {
	options Options
	log     *slog.Logger
	dir     *dataDir
	queue   queue.Queue
	now     *now
	hurry   <-chan struct{}
	limits  limits

	hand       hand
	nursery    *nursery
	workspaces locks
	tidier     *tidier
	heart      *heart
	slots      chan struct{}        // a token is a free slot
	left       map[uuid.UUID]*spool // of earlier boots, by provision; written before all else
	noteKey    []byte               // see job.Job
	keys       *keys
	cluster    string // for which sealed values are opened, see rememberCluster
	moved      string // why none is

	runs     sync.WaitGroup // until nothing of a run is left to do
	children sync.WaitGroup // until its child has ended
	// delivery ends when what is not delivered is left to the next start.
	delivery       context.Context
	stopDelivering context.CancelFunc
}

func newBoot(a *Agent, dir *dataDir, q queue.Queue, n *nursery, k *keys) *boot {
	b := &boot{
		options: a.options, log: a.options.Log, dir: dir, queue: q,
		now: &a.now, hurry: a.hurry, limits: a.limits,
		nursery: n, keys: k, slots: make(chan struct{}, a.options.Slots), noteKey: make([]byte, 32), left: map[uuid.UUID]*spool{},
	}
	_, _ = rand.Read(b.noteKey) // never fails
	for range a.options.Slots {
		b.slots <- struct{}{}
	}
	return b
}

// errSuperseded is why an agent ends that another boot has replaced.
var errSuperseded = errors.New("another start of this agent has taken its place")

// live carries the boot from registration to drain.
func (b *boot) live(ctx context.Context) error {
	leftovers, err := b.dir.spools()
	if err != nil {
		return err
	}
	for _, s := range leftovers {
		b.hand.hold(s.claim, nil)
		b.left[s.about.Provision] = s
		s.watch = b.watchLeftover(s)
		defer s.watch.end()
	}
	b.forgetSecrets(leftovers) // which do not wait for the database
	registration, err := b.register(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // asked to end before it had begun
		}
		return err
	}
	b.log.Info("registered", "cluster", registration.ClusterName, "agent", b.options.Name,
		"instance", b.dir.instance, "slots", b.options.Slots, "data_dir", b.dir.root,
		"key", seal.Fingerprint(b.keys.held().Public()))
	if registration.Contract < queue.Contract {
		b.log.Warn("the database is one version older than this agent, which does without what is new. "+
			"Run \"trellis migrate\" of this release against it, then start the agent anew",
			"database_contract", registration.Contract, "agent_contract", queue.Contract)
	}
	b.keys.registered(registration.ClusterKey, time.Now())
	if err := b.rememberCluster(registration.ClusterName); err != nil {
		return err
	}

	// Outlives ctx: leases are renewed and lines delivered until the drain is over.
	alive, stopBeating := context.WithCancel(context.WithoutCancel(ctx))
	b.delivery, b.stopDelivering = context.WithCancel(alive)
	defer b.stopDelivering()
	claiming, stopClaiming := context.WithCancelCause(ctx)
	defer stopClaiming(nil)

	b.heart = newHeart(b, registration.Heartbeat, func(err error) {
		stopClaiming(fmt.Errorf("%w: %w", errSuperseded, err))
	})
	var beating sync.WaitGroup
	beating.Go(func() { b.heart.run(alive) })
	defer beating.Wait()
	defer stopBeating()

	if err := b.settleLeftovers(claiming, leftovers); err == nil {
		var tidying sync.WaitGroup
		tidying.Go(func() { b.tidier.run(claiming) })
		b.work(claiming)
		tidying.Wait()
	} else if claiming.Err() == nil {
		return err
	}
	if cause := context.Cause(claiming); errors.Is(cause, errSuperseded) {
		return cause
	}
	return nil
}
