package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/webhook"
)

// boot is one life of the agent: from a registered boot id to its end. It puts together
// the types that do the work:
//
//	registration   introduces the boot to the database
//	inflight       the claims whose leases are renewed
//	heartbeat      renews them, and passes on what the database answers
//	poller         claims a provision for each free slot
//	inputs         gets what a run needs of the database before it has a child
//	deliveries     sends spools to the database
//	leftovers      settles what earlier boots have left
//	drain          ends the boot's work
//	checker        asks machines how they are
//	poolReporter   tells what there is in pools
//	tidier         keeps the caches within their limits
//
// With a Launcher runs are dispatched: the agent hands them over, and follows their runners.
type boot struct {
	options Options
	log     *slog.Logger
	dir     *dataDir
	dirs    workspaceDirs
	queue   queue.Queue
	status  *status
	stopNow <-chan struct{}
	limits  limits

	inflight   inflight
	notes      workspaceNotes
	checkNotes *checkNotes
	children   *children
	workspaces locks
	tidier     *tidier
	heartbeat  *heartbeat
	checker    *checker
	slots      chan struct{} // a token is a free slot
	noteKey    []byte        // see job.Job
	agent      queue.Agent   // who it is
	registered queue.Registration
	contract   int             // the database's, when the boot registered
	leaving    context.Context // ends when the boot is asked to end
	// orders signs the orders of runners: those that are not handed over end with the boot.
	orders ed25519.PrivateKey
	// opened opens what is sealed for a run, and given gets what it needs of the database.
	opened     func(provision.Assignment) (vars, input map[string]json.RawMessage, err error)
	given      func(context.Context, provision.Assignment) (fetched, error)
	keys       *keys
	rotation   *keyRotation
	sealed     *sealedVars
	inputs     *inputs
	deliveries *deliveries

	unsaid        atomic.Bool    // a run's end could not be reported
	runsOver      sync.WaitGroup // until nothing of a run is left to do
	childrenEnded sync.WaitGroup // until its child has ended
}

func newBoot(a *Agent, dirs workspaceDirs, q queue.Queue, n *children, k *keys) *boot {
	o, dir := a.options, dirs.dir
	notes := workspaceNotes{dir, o.Log}
	b := &boot{
		options: o, log: o.Log, dir: dir, dirs: dirs, queue: q, status: &a.status, stopNow: a.stopNow, limits: a.limits,
		notes: notes, checkNotes: &checkNotes{dir: dir}, children: n, keys: k, rotation: &keyRotation{dir: o.DataDir, after: o.KeyLifetime, queue: q, log: o.Log}, sealed: &sealedVars{dir: dir, keys: k, log: o.Log},
		slots: make(chan struct{}, o.Slots), noteKey: make([]byte, 32),
	}
	b.inputs = &inputs{queue: q, keys: k, requesters: o.Requesters, states: &managedStates{
		queue: q, keys: k, notes: notes, allowed: o.Settings.State.MayBeManaged(),
	}}
	b.opened, b.given = b.sealed.open, b.inputs.fetch
	b.deliveries = &deliveries{queue: q, dir: dir, keys: k, notes: notes, checks: b.checkNotes, pools: o.PoolsFor, notifier: newNotifier(o.InputWebhook, o.Log), noted: o.Noted, retrying: func() { b.heartbeat.nudge() }}
	_, _ = rand.Read(b.noteKey) // never fails
	if o.Launcher != nil {
		_, b.orders, _ = ed25519.GenerateKey(nil) // never fails
	}
	b.checker = b.newChecker()
	for range o.Slots {
		b.slots <- struct{}{}
	}
	return b
}

// newWatch is for one delivery.
func (b *boot) newWatch() *watch {
	return &watch{status: b.status, observer: b.options.Observer, loops: b.options.Loops}
}

// errSuperseded is why an agent ends that another boot has replaced.
var errSuperseded = errors.New("another start of this agent has taken its place")

// live carries the boot from registration to drain.
func (b *boot) live(ctx context.Context) error {
	left := b.newLeftovers()
	if err := left.find(); err != nil {
		return err
	}
	defer left.close()
	registered, err := registration{b.queue, b.log, b.options.Loops, b.options.Standing}.await(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // asked to end before it had begun
		}
		return err
	}
	b.log.Info("registered", "cluster", registered.ClusterName, "agent", b.options.Name,
		"instance", b.dir.instance, "slots", b.options.Slots, "data_dir", b.dir.root,
		"key", seal.Fingerprint(b.keys.held().Public()))
	b.registered, b.contract = registered, registered.Contract
	if registered.Contract < queue.Contract {
		b.log.Warn("the database is one version older than this agent, which does without what is new. "+
			"Run \"trellis migrate\" of this release against it, then restart the agent",
			"database_contract", registered.Contract, "agent_contract", queue.Contract)
	}
	b.keys.contract.Store(int64(registered.Contract))
	b.deliveries.notifier.cluster = &webhook.Named{ID: registered.ClusterID, Name: registered.ClusterName}
	b.keys.registered(registered.ClusterKey, time.Now())
	if err := b.sealed.rememberCluster(registered.ClusterName); err != nil {
		return err
	}

	// Outlives ctx: leases are renewed and lines delivered until the drain is over.
	alive, stopBeating := context.WithCancel(context.WithoutCancel(ctx))
	b.deliveries.ctx, b.deliveries.stop = context.WithCancel(alive)
	defer b.deliveries.stop()
	claiming, stopClaiming := context.WithCancelCause(ctx)
	defer stopClaiming(nil)
	b.leaving = claiming

	b.heartbeat = b.newHeartbeat(registered, func(err error) {
		stopClaiming(fmt.Errorf("%w: %w", errSuperseded, err))
	})
	var beating sync.WaitGroup
	beating.Go(func() { b.heartbeat.run(alive) })
	beating.Go(func() { b.deliveries.notifier.run(alive) })
	defer beating.Wait()
	defer stopBeating()

	if err := errors.Join(left.settle(claiming), b.adopt(claiming)); err == nil {
		var tidying sync.WaitGroup
		tidying.Go(func() { b.tidier.run(claiming) })
		tidying.Go(func() { b.checker.run(claiming) })
		tidying.Go(func() {
			(&poolReporter{queue: b.queue, pools: b.options.Pools, every: poolsEvery, log: b.log}).run(claiming)
		})
		b.drain().after(claiming, b.newPoller().run)
		tidying.Wait()
	} else if claiming.Err() == nil {
		return err
	}
	if cause := context.Cause(claiming); errors.Is(cause, errSuperseded) {
		return cause
	}
	return nil
}

func (b *boot) newLeftovers() *leftovers {
	return &leftovers{
		log: b.log, queue: b.queue, deliveries: b.deliveries, dirs: b.dirs, inflight: &b.inflight, observer: b.options.Observer,
		engineMark: b.options.EngineMark, newWatch: b.newWatch, tracer: b.options.Tracer, workspaces: &b.workspaces, slots: b.slots, busy: &b.status.busy,
		outliving: &b.tidier.outliving, outlived: &b.runsOver,
	}
}

func (b *boot) drain() *drain {
	return &drain{
		log: b.log, standing: b.options.Standing, inflight: &b.inflight, children: &b.childrenEnded, runs: &b.runsOver,
		timeout: b.options.DrainTimeout, now: b.stopNow, lastDelivery: b.limits.lastDelivery, stopDelivering: b.deliveries.stop,
	}
}
