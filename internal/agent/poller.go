package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/retry"
)

const (
	// pollUnadvised is the time between polls until the database says.
	pollUnadvised = 5 * time.Second
	// askSpacing is the least time between two questions that had no work for
	// an answer: any role of the database can send what wakes us.
	askSpacing = 10 * time.Millisecond
	// mostSpacing is what that grows to while wakes promise work that is not there.
	mostSpacing = 2 * time.Second
	// lastAsk bounds how long an agent that is to end goes on asking about a
	// claim whose answer it has not seen.
	lastAsk = 10 * time.Second
)

// poller claims a provision for each slot that is free, and has no part in
// what becomes of it.
type poller struct {
	queue     queue.Queue
	inflight  *inflight
	heartbeat *heartbeat // tells of an outage, and of its end, and what the database advises
	observer  Observer
	loops     *health.Loops
	log       *slog.Logger
	// slots gives a token for each slot that is free, and start takes it with what was
	// claimed.
	slots chan struct{}
	start func(provision.Assignment)
	// fixed says that the operator has chosen how often the queue is polled.
	fixed bool
	every time.Duration
	// claim is the id to ask with. Work uses it up. Without an answer it stays,
	// for the database may have given us work under it; and so it does when
	// there is nothing to do, for an earlier question that was given up may
	// still arrive, and be given work under it.
	claim uuid.UUID
	// pending says that a question under that id got no answer at all.
	pending bool
	// empty counts questions one after the other that a wake had promised work for, and that
	// found none.
	empty   int
	trouble outage
	loop    *health.Loop
}

func (b *boot) newPoller() *poller {
	p := &poller{
		queue: b.queue, inflight: &b.inflight, heartbeat: b.heartbeat, observer: b.options.Observer, loops: b.options.Loops, log: b.log,
		slots: b.slots, start: b.start, every: pollUnadvised, claim: newClaimID(),
		trouble: outage{log: b.log, what: "ask the queue for work", patience: 30 * time.Second},
	}
	if b.options.Poll > 0 {
		p.fixed, p.every = true, b.options.Poll
	}
	return p
}

// newClaimID makes an id that begins with the time, as the database's own do:
// what is claimed together lies together there.
func newClaimID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// run claims until ctx ends.
func (p *poller) run(ctx context.Context) {
	p.loop = p.loops.Begin("poller")
	defer p.loop.End()
	for {
		p.loop.Rests() // all slots may be busy for long
		select {
		case <-ctx.Done():
			return
		case <-p.slots:
		}
		assignment := p.next(ctx)
		if assignment == nil {
			p.slots <- struct{}{}
			return
		}
		p.start(*assignment)
	}
}

// next waits for an assignment; nil when ctx ends first.
func (p *poller) next(ctx context.Context) *provision.Assignment {
	waits := newRetry()
	for ctx.Err() == nil {
		// Not cut short: a claim whose answer is not waited for is work that
		// nobody does until its lease has run out.
		assignment, err := p.ask(context.WithoutCancel(ctx))
		switch {
		case assignment != nil:
			p.trouble.over()
			return assignment
		case err == nil:
			p.trouble.over()
			waits.Reset()
			p.idle(ctx)
		default:
			p.trouble.met(err)
			p.heartbeat.nudge()
			if !p.pause(ctx, err, waits.NextBackOff()) && p.pending {
				return p.resolve(ctx)
			}
		}
	}
	return nil
}

// pause waits before it is asked again after a failure, less long when the
// database lets hear of itself; false when ctx ends first.
func (p *poller) pause(ctx context.Context, after error, d time.Duration) bool {
	again := queue.Wait(after, d)
	p.loop.Turns(again)
	timer := time.NewTimer(again)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-p.queue.Work():
		return wait(ctx, queue.Wait(after, min(d, retrySoon))) // any role of the database can send what wakes us
	}
}

// ask asks once. A refusal says nothing of an earlier question whose answer was
// lost (the token may have been revoked in between), so the id stays then too.
func (p *poller) ask(ctx context.Context) (*provision.Assignment, error) {
	asked := p.claim
	p.loop.Turns(0)
	assignment, err := p.queue.Claim(ctx, asked)
	switch {
	case assignment != nil || queue.KindOf(err) == queue.ClaimLost:
		p.answered()
		p.claim = newClaimID()
	case err == nil:
		p.answered()
	case queue.KindOf(err) == queue.Unavailable:
		// It may be ours, so its lease is renewed until we know.
		p.pending = true
		p.inflight.hold(asked, nil)
	}
	if err != nil {
		return nil, err
	}
	if assignment != nil && assignment.ClaimID != asked {
		// It may be the claim of a run that lives.
		p.log.Error("the database answered with a claim that was not asked for; it is not carried out",
			"asked", asked, "provision", assignment.Number, "workspace", assignment.Workspace, "claim", assignment.ClaimID)
		return nil, nil
	}
	if assignment != nil {
		p.empty = 0
		p.heartbeat.earned.Store(heldEarned)
		p.observer.Claimed(assignment.Operation, assignment.Waited())
	}
	return assignment, nil
}

// answered notes that it is known what became of the id.
func (p *poller) answered() {
	p.pending = false
	p.inflight.release(p.claim)
}

// idle waits until there may be something to claim.
func (p *poller) idle(ctx context.Context) {
	if !p.heartbeat.holds.Load() {
		p.empty = 0 // wakes are no promises there
	}
	if !wait(ctx, min(askSpacing<<min(p.empty, 10), mostSpacing)) {
		return
	}
	p.heartbeat.waitForWork(true)
	defer p.heartbeat.waitForWork(false)
	timer := time.NewTimer(retry.Jitter(p.every))
	defer timer.Stop()
	for {
		p.loop.Turns(retry.MostJitter(p.every))
		select {
		case <-ctx.Done():
			return
		case <-p.queue.Work():
			p.empty++
			return
		case <-timer.C:
			p.empty = 0
			return
		case advised := <-p.heartbeat.advice:
			if !p.fixed && advised != p.every {
				p.every = advised
				timer.Reset(retry.Jitter(p.every))
			}
		}
	}
}

// resolve asks once more about a claim of which the answer was lost when the
// agent was told to end. What it turns out to have is run, and drained, like
// the rest.
func (p *poller) resolve(ctx context.Context) *provision.Assignment {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAsk)
	defer cancel()
	waits := newRetry()
	for {
		claim := p.claim
		assignment, err := p.ask(ctx)
		if err == nil {
			return assignment
		}
		again := queue.Wait(err, waits.NextBackOff())
		p.loop.Turns(again)
		if queue.KindOf(err) != queue.Unavailable || !wait(ctx, again) {
			p.inflight.release(claim)
			p.log.Warn("the answer to the last claim was lost; if it took a provision, the next start ends it", "claim", claim, "error", err)
			return nil
		}
	}
}
