package agent

import (
	"context"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/retry"
	"github.com/tendril-run/tendril/provisioner"
)

// beatSpacing is the least time between two heartbeats: any role of the
// database can send what wakes us.
const beatSpacing = 100 * time.Millisecond

// heldShare is the part of a lease for which a heartbeat may be held that renews it.
const heldShare = 4

// beatUnadvised is the time between heartbeats until the database says.
const beatUnadvised = 5 * time.Second

// attentive is how many times as often as advised a heartbeat is sent while
// something runs and nothing can wake us: a cancel is heard of by asking then.
const attentive = 5

const (
	// heldBurst is how many heartbeats may follow each other at once where they are held: what
	// they wait for changes when a run begins or ends.
	heldBurst = 5
	// heldEarned is how many heartbeats a provision earns that was claimed: one says that it runs,
	// one that the agent is free again.
	heldEarned = 2
	// claimTime is how long the poller has to act on news of work, until the next heartbeat
	// goes without knowing what became of it.
	claimTime = 500 * time.Millisecond
)

// heartbeat renews the leases of all claims in flight and passes on what comes back. Where the
// other side holds heartbeats until there is news, one is always under way:
//
//	beat ── held ──▶ answer: news, or its time is over ──▶ beat
//	          │
//	          └ nudge: a run has begun, a slot is free ──▶ beat; the other side ends the older one
type heartbeat struct {
	queue    queue.Queue
	inflight *inflight
	keys     *keys
	rotation *keyRotation
	checker  *checker
	observer Observer
	standing *health.Standing
	loops    *health.Loops
	log      *slog.Logger

	interval time.Duration
	lease    time.Duration // how long a claim lives after a heartbeat, as of the registration; 0: not known
	// ending goes off when the leases are about to end without having been renewed; nil: never.
	ending     *time.Timer
	superseded func(error) // another boot has taken over; called once
	trouble    outage
	retry      *retry.Waits
	nudged     chan struct{}
	advice     chan time.Duration // the newest poll interval; for the poller
	// waits: the poller waits for work. saysSo: the newest heartbeat says that.
	waits, saysSo atomic.Bool
	// earned is how many heartbeats need not keep apart, since news of work was true.
	earned atomic.Int32
	// holds: the other side held the last heartbeat, or would have.
	holds atomic.Bool
	// These belong to the loop.
	spacing    *rate.Limiter // of heartbeats that may be held
	told       map[uuid.UUID]told
	checksTold time.Time
	older      *older
}

// told is what the database has said of a claim, while this run had it.
type told struct {
	run                   *run
	cancel, lost, watched bool
}

// older is a heartbeat that a newer one has taken the place of.
type older struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (o *older) end() {
	if o != nil {
		o.cancel()
		<-o.done
	}
}

func (b *boot) newHeartbeat(registered queue.Registration, superseded func(error)) *heartbeat {
	return &heartbeat{
		queue: b.queue, inflight: &b.inflight, keys: b.keys, rotation: b.rotation, checker: b.checker,
		observer: b.options.Observer, standing: b.options.Standing, loops: b.options.Loops, log: b.log,
		interval: advised(registered.Heartbeat, beatUnadvised), lease: registered.Lease, superseded: superseded, retry: newRetry(),
		trouble: outage{log: b.log, what: "reach the database"},
		nudged:  make(chan struct{}, 1), advice: make(chan time.Duration, 1),
		spacing: rate.NewLimiter(rate.Every(beatSpacing), heldBurst), told: map[uuid.UUID]told{},
	}
}

// nudge has the next heartbeat sent at once.
func (h *heartbeat) nudge() {
	select {
	case h.nudged <- struct{}{}:
	default:
	}
}

// began has heartbeats come more often from now on, if nothing can wake us, and one that is held
// replaced by one that has the new claim.
func (h *heartbeat) began() {
	if h.unwoken() || h.holds.Load() {
		h.nudge()
	}
}

// waitForWork says whether the poller waits for work, of which a heartbeat that is held is to
// bring the news. One that says so already stays: a poll more often than heartbeats are held would
// replace each before its answer.
func (h *heartbeat) waitForWork(waits bool) {
	h.waits.Store(waits)
	if waits && h.holds.Load() && !h.saysSo.Load() {
		h.nudge()
	}
}

// free is whether the next heartbeat says that the agent waits for work. A poller that begins to
// wait meanwhile finds that it does not say so.
func (h *heartbeat) free() bool {
	h.saysSo.Store(false)
	free := h.waits.Load()
	h.saysSo.Store(free)
	return free
}

func (h *heartbeat) unwoken() bool { return h.queue.Attention() == nil }

// run beats until ctx ends.
func (h *heartbeat) run(ctx context.Context) {
	memory := idleMemory{free: func() {
		debug.FreeOSMemory()
		process.ReleaseProgram()
	}}
	loop := h.loops.Begin("heartbeat")
	defer loop.End()
	defer func() { h.older.end() }()
	if h.lease > 0 {
		h.ending = time.AfterFunc(h.untilDetach(), h.detachRuns)
		defer h.ending.Stop()
	}
	for {
		loop.Turns(0)
		next, alive := h.beat(ctx)
		memory.observe(len(h.inflight.claims()) == 0, time.Now())
		if !alive || !h.space(ctx) {
			return
		}
		loop.Turns(next)
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-h.queue.Attention():
		case <-h.nudged:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// untilDetach is how long runs go on without a heartbeat that is answered, until what continues
// by itself is detached: a program has the rest of the lease to answer.
func (h *heartbeat) untilDetach() time.Duration {
	return h.lease - min(provisioner.DetachTime, h.lease/4)
}

// detachRuns asks runs whose apply has begun to be set down, if their work continues by itself.
// Once the lease has ended another agent takes that up, and is not to find our program still at
// work. If the database was away for everyone, no agent takes it up, and we report it as set down
// later.
func (h *heartbeat) detachRuns() {
	for _, r := range h.inflight.held() {
		if r != nil && r.applying.Load() && r.detachable.Load() {
			r.log.Warn("cannot reach the database, and the lease is about to end: setting the run down, for its work continues without this agent")
			r.detach()
		}
	}
}

// idleTime is how long an agent has no claim until it counts as idle: less than the time
// between two heartbeats, and more than what is left to do takes.
const idleTime = 3 * time.Second

// idleMemory gives memory back once each time that the agent has become idle. Go keeps
// what it has had of the system's for long, and an agent with nothing to do needs a third
// of it, and little of its program. As soon as the last claim has gone would be too
// early: what follows, the pass over the caches above all, takes as much again.
type idleMemory struct {
	free  func()
	since time.Time // when there was first no claim; zero: there is one
	done  bool
}

// observe is called with each heartbeat, and told whether there is no claim.
func (m *idleMemory) observe(idle bool, now time.Time) {
	switch {
	case !idle:
		m.since, m.done = time.Time{}, false
	case m.since.IsZero():
		m.since = now
	case !m.done && now.Sub(m.since) >= idleTime:
		m.done = true
		m.free()
	}
}

// beat sends one heartbeat and returns when the next one is due; false when
// there is to be none.
func (h *heartbeat) beat(ctx context.Context) (time.Duration, bool) {
	held := h.inflight.held()
	beat := h.compose(held)
	claims := beat.Claims
	sent := time.Now() // the database has it later, so no lease ends sooner than we think
	pulse, answered, err := h.send(ctx, beat)
	if ctx.Err() != nil {
		return 0, false
	}
	if !answered {
		return 0, true
	}
	if err != nil {
		h.holds.Store(false)
		h.observer.LeasesRenewed(0, 0, len(claims))
		h.standing.Missed(inTheWay(err))
		return h.failed(ctx, err)
	}
	h.holds.Store(pulse.Held)
	if h.ending != nil {
		h.ending.Reset(h.untilDetach() - time.Since(sent))
	}
	h.trouble.over()
	h.retry.Reset()
	if pulse.ChecksDue && (beat.Checks || !pulse.Held) {
		h.checksTold = time.Now()
		h.checker.wake()
	}
	h.observer.LeasesRenewed(max(len(claims)-len(pulse.Lost), 0), h.obey(pulse, held), 0)
	h.observer.Beat(time.Now())
	if pulse.Held {
		h.standing.Beat(h.interval + queue.MaxHeld)
	} else {
		h.standing.Beat(h.interval)
	}
	h.keys.renew(ctx, time.Now(), h.queue.Register)
	h.rotation.rotate(ctx, time.Now())
	switch {
	case pulse.Again > 0:
		return pulse.Again, true
	case pulse.Held && pulse.Work:
		return claimTime, true
	case pulse.Held:
		return 0, true
	case h.unwoken() && len(h.inflight.claims()) > 0:
		return retry.Jitter(h.interval / attentive), true
	}
	return retry.Jitter(h.interval), true
}

// compose says which claims are held, and what would be news.
func (h *heartbeat) compose(held map[uuid.UUID]*run) queue.Beat {
	beat := queue.Beat{
		Claims: slices.Collect(maps.Keys(held)), Wait: queue.MaxHeld,
		Free: h.free(), Checks: time.Since(h.checksTold) >= h.interval,
	}
	if len(held) > 0 && h.lease > 0 { // a call renews leases as of when it was signed
		beat.Wait = min(beat.Wait, h.lease/heldShare)
	}
	for claim, t := range h.told {
		if r, is := held[claim]; !is || r != t.run {
			delete(h.told, claim)
			continue
		}
		if t.cancel {
			beat.Cancelled = append(beat.Cancelled, claim)
		}
		if t.lost {
			beat.Lost = append(beat.Lost, claim)
		}
		if t.watched {
			beat.Watched = append(beat.Watched, claim)
		}
	}
	return beat
}

// send sends a heartbeat and waits for the answer; not answered: something has happened that
// it does not know, and it is left to the next one to end it.
func (h *heartbeat) send(ctx context.Context, beat queue.Beat) (pulse queue.Pulse, answered bool, err error) {
	if !h.holds.Load() {
		pulse, err = h.queue.Heartbeat(ctx, beat)
		return pulse, true, err
	}
	type answer struct {
		pulse queue.Pulse
		err   error
	}
	ctx, cancel := context.WithCancel(ctx)
	this, answers := &older{cancel: cancel, done: make(chan struct{})}, make(chan answer, 1)
	go func() {
		defer close(this.done)
		pulse, err := h.queue.Heartbeat(ctx, beat)
		answers <- answer{pulse, err}
	}()
	select {
	case a := <-answers:
		this.end()
		h.older.end()
		h.older = nil
		return a.pulse, true, a.err
	case <-h.nudged:
		h.older.end()
		h.older = this
		return queue.Pulse{}, false, nil
	}
}

// space keeps heartbeats apart; false when ctx ends first.
func (h *heartbeat) space(ctx context.Context) bool {
	if h.holds.Load() {
		if h.earned.Add(-1) >= 0 {
			return ctx.Err() == nil
		}
		h.earned.Store(0)
		return h.spacing.Wait(ctx) == nil
	}
	return wait(ctx, beatSpacing)
}

// obey does what the database has answered to a heartbeat with the claims held, and
// returns how many of those that it calls lost were being worked on. Others have ended
// meanwhile, or were asked for when it was sent: one of these may have been given
// while the answer was on its way, and is not lost.
func (h *heartbeat) obey(pulse queue.Pulse, held map[uuid.UUID]*run) (lost int) {
	h.interval = advised(pulse.Heartbeat, h.interval)
	poll := advised(pulse.Poll, 0)
	if poll > 0 && pulse.Held {
		poll = mostInterval // heartbeats bring the news of work
	}
	if poll > 0 {
		select { // only the newest counts
		case <-h.advice:
		default:
		}
		h.advice <- poll
	}
	for claim, r := range held {
		t := told{run: r, cancel: slices.Contains(pulse.Cancel, claim), lost: slices.Contains(pulse.Lost, claim), watched: slices.Contains(pulse.Watched, claim)}
		if r != nil {
			r.viewed(t.watched)
		}
		if t.cancel || t.lost || t.watched {
			h.told[claim] = t
		} else {
			delete(h.told, claim)
		}
	}
	for _, claim := range pulse.Cancel {
		if r := h.inflight.run(claim); r != nil {
			r.stop(job.StopCancelled)
		}
	}
	for _, claim := range pulse.Lost {
		if r := held[claim]; r != nil && !r.ending.Load() {
			lost++
			r.lost()
		}
	}
	return lost
}

func (h *heartbeat) failed(ctx context.Context, err error) (time.Duration, bool) {
	switch queue.KindOf(err) {
	case queue.Superseded:
		h.superseded(err)
		return 0, false
	case queue.Refused, queue.ContentRefused:
		// The database may have forgotten us: restored from a backup, or the
		// agent's row removed.
		if registration, again := h.queue.Register(ctx); again == nil {
			h.keys.registered(registration.ClusterKey, time.Now())
			h.lease = registration.Lease
			h.log.Warn("registered again", "after", err)
			return min(h.retry.NextBackOff(), h.interval), true
		}
	}
	h.trouble.met(err)
	return queue.Wait(err, min(h.retry.NextBackOff(), h.interval)), true
}
