package agent

import (
	"context"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"

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

// beatUnadvised is the time between heartbeats until the database says.
const beatUnadvised = 5 * time.Second

// attentive is how many times as often as advised a heartbeat is sent while
// something runs and nothing can wake us: a cancel is heard of by asking then.
const attentive = 5

// heartbeat renews the leases of all claims in flight and passes on what comes back.
type heartbeat struct {
	queue    queue.Queue
	inflight *inflight
	keys     *keys
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
}

func (b *boot) newHeartbeat(registered queue.Registration, superseded func(error)) *heartbeat {
	return &heartbeat{
		queue: b.queue, inflight: &b.inflight, keys: b.keys, checker: b.checker,
		observer: b.options.Observer, standing: b.options.Standing, loops: b.options.Loops, log: b.log,
		interval: advised(registered.Heartbeat, beatUnadvised), lease: registered.Lease, superseded: superseded, retry: newRetry(),
		trouble: outage{log: b.log, what: "reach the database"},
		nudged:  make(chan struct{}, 1), advice: make(chan time.Duration, 1),
	}
}

// nudge has the next heartbeat sent at once.
func (h *heartbeat) nudge() {
	select {
	case h.nudged <- struct{}{}:
	default:
	}
}

// began has heartbeats come more often from now on, if nothing can wake us.
func (h *heartbeat) began() {
	if h.unwoken() {
		h.nudge()
	}
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
	if h.lease > 0 {
		h.ending = time.AfterFunc(h.untilDetach(), h.detachRuns)
		defer h.ending.Stop()
	}
	for {
		loop.Turns(0)
		next, alive := h.beat(ctx)
		memory.observe(len(h.inflight.claims()) == 0, time.Now())
		if !alive || !wait(ctx, beatSpacing) {
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
	claims := slices.Collect(maps.Keys(held))
	sent := time.Now() // the database has it later, so no lease ends sooner than we think
	pulse, err := h.queue.Heartbeat(ctx, claims)
	if ctx.Err() != nil {
		return 0, false
	}
	if err != nil {
		h.observer.LeasesRenewed(0, 0, len(claims))
		h.standing.Missed(inTheWay(err))
		return h.failed(ctx, err)
	}
	if h.ending != nil {
		h.ending.Reset(h.untilDetach() - time.Since(sent))
	}
	h.trouble.over()
	h.retry.Reset()
	if pulse.ChecksDue {
		h.checker.wake()
	}
	h.observer.LeasesRenewed(max(len(claims)-len(pulse.Lost), 0), h.obey(pulse, held), 0)
	h.observer.Beat(time.Now())
	h.standing.Beat(h.interval)
	h.keys.renew(ctx, time.Now(), h.queue.Register)
	if h.unwoken() && len(h.inflight.claims()) > 0 {
		return retry.Jitter(h.interval / attentive), true
	}
	return retry.Jitter(h.interval), true
}

// obey does what the database has answered to a heartbeat with the claims held, and
// returns how many of those that it calls lost were being worked on. Others have ended
// meanwhile, or were asked for when it was sent: one of these may have been given
// while the answer was on its way, and is not lost.
func (h *heartbeat) obey(pulse queue.Pulse, held map[uuid.UUID]*run) (lost int) {
	h.interval = advised(pulse.Heartbeat, h.interval)
	if poll := advised(pulse.Poll, 0); poll > 0 {
		select { // only the newest counts
		case <-h.advice:
		default:
		}
		h.advice <- poll
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
