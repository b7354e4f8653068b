package agent

import (
	"context"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/queue"
)

// beatSpacing is the least time between two heartbeats: any role of the
// database can send what wakes us.
const beatSpacing = 100 * time.Millisecond

// beatUnadvised is the time between heartbeats until the database says.
const beatUnadvised = 5 * time.Second

// attentive is how many times as often as advised a heartbeat is sent while
// something runs and nothing can wake us: a cancel is heard of by asking then.
const attentive = 5

// heart renews the leases of what is in hand and passes on what comes back.
type heart struct {
	boot       *boot
	interval   time.Duration
	superseded func(error) // another boot has taken over; called once
	trouble    outage
	retry      *backoff.ExponentialBackOff
	nudged     chan struct{}
	advice     chan time.Duration // the newest poll interval; for the poller
}

func newHeart(b *boot, interval time.Duration, superseded func(error)) *heart {
	return &heart{
		boot: b, interval: advised(interval, beatUnadvised), superseded: superseded, retry: newRetry(),
		trouble: outage{log: b.log, what: "reach the database"},
		nudged:  make(chan struct{}, 1), advice: make(chan time.Duration, 1),
	}
}

// nudge has the next heartbeat sent at once.
func (h *heart) nudge() {
	select {
	case h.nudged <- struct{}{}:
	default:
	}
}

// began has heartbeats come more often from now on, if nothing can wake us.
func (h *heart) began() {
	if h.unwoken() {
		h.nudge()
	}
}

func (h *heart) unwoken() bool { return h.boot.queue.Attention() == nil }

// run beats until ctx ends.
func (h *heart) run(ctx context.Context) {
	settled := settling{free: func() {
		debug.FreeOSMemory()
		process.ReleaseProgram()
	}}
	loop := h.boot.options.Loops.Begin("heartbeat")
	defer loop.End()
	for {
		loop.Turns(0)
		next, alive := h.beat(ctx)
		settled.look(len(h.boot.hand.claims()) == 0, time.Now())
		if !alive || !wait(ctx, beatSpacing) {
			return
		}
		loop.Turns(next)
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-h.boot.queue.Attention():
		case <-h.nudged:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// settleTime is how long an agent has nothing in hand until it counts as idle: less
// than the time between two heartbeats, and more than what is left to do takes.
const settleTime = 3 * time.Second

// settling gives memory back, once each time that the agent has come to rest. Go
// keeps what it has had of the system's for long, and an agent with nothing to do
// needs a third of it; and of its program, most of which only starting needs. To do so as soon as nothing is in hand would be too early:
// what follows, the look at the caches above all, takes as much again.
type settling struct {
	free  func()
	since time.Time // when it was first seen with nothing in hand; zero: it has something
	done  bool
}

// look is told, with each heartbeat, whether nothing is in hand.
func (s *settling) look(idle bool, now time.Time) {
	switch {
	case !idle:
		s.since, s.done = time.Time{}, false
	case s.since.IsZero():
		s.since = now
	case !s.done && now.Sub(s.since) >= settleTime:
		s.done = true
		s.free()
	}
}

// beat sends one heartbeat and returns when the next one is due; false when
// there is to be none.
func (h *heart) beat(ctx context.Context) (time.Duration, bool) {
	held := h.boot.hand.held()
	claims := slices.Collect(maps.Keys(held))
	pulse, err := h.boot.queue.Heartbeat(ctx, claims)
	if ctx.Err() != nil {
		return 0, false
	}
	observer, standing := h.boot.options.Observer, h.boot.options.Standing
	if err != nil {
		observer.LeasesRenewed(0, 0, len(claims))
		standing.Missed(inTheWay(err))
		return h.failed(ctx, err)
	}
	h.trouble.over()
	h.retry.Reset()
	observer.LeasesRenewed(max(len(claims)-len(pulse.Lost), 0), h.obey(pulse, held), 0)
	observer.Beat(time.Now())
	standing.Beat(h.interval)
	h.boot.keys.renew(ctx, time.Now(), h.boot.queue.Register)
	if h.unwoken() && len(h.boot.hand.claims()) > 0 {
		return jitter(h.interval / attentive), true
	}
	return jitter(h.interval), true
}

// obey does what the database has answered to a heartbeat with the claims held, and
// returns how many of those that it calls lost were being worked on. Others have ended
// meanwhile, or were asked for when it was sent: one of these may have been given
// while the answer was on its way, and is not lost.
func (h *heart) obey(pulse queue.Pulse, held map[uuid.UUID]*run) (lost int) {
	h.interval = advised(pulse.Heartbeat, h.interval)
	if poll := advised(pulse.Poll, 0); poll > 0 {
		select { // only the newest counts
		case <-h.advice:
		default:
		}
		h.advice <- poll
	}
	for _, claim := range pulse.Cancel {
		if r := h.boot.hand.run(claim); r != nil {
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

func (h *heart) failed(ctx context.Context, err error) (time.Duration, bool) {
	switch queue.KindOf(err) {
	case queue.Superseded:
		h.superseded(err)
		return 0, false
	case queue.Refused, queue.ContentRefused:
		// The database may have forgotten us: restored from a backup, or the
		// agent's row removed.
		if registration, again := h.boot.queue.Register(ctx); again == nil {
			h.boot.keys.registered(registration.ClusterKey, time.Now())
			h.boot.log.Warn("registered again", "after", err)
			return min(h.retry.NextBackOff(), h.interval), true
		}
	}
	h.trouble.met(err)
	return queue.Wait(err, min(h.retry.NextBackOff(), h.interval)), true
}
