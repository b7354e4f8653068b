package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// idleQueue has nothing to do and counts how often it is asked.
type idleQueue struct {
	queue.Queue
	work, attention chan struct{}

	mu     sync.Mutex
	beats  int
	asked  []uuid.UUID
	err    error
	advice time.Duration
	pulse  time.Duration // advised between heartbeats
	gives  *provision.Assignment
}

func newIdleQueue() *idleQueue {
	return &idleQueue{work: make(chan struct{}, 1), attention: make(chan struct{}, 1)}
}

func (q *idleQueue) Work() <-chan struct{}      { return q.work }
func (q *idleQueue) Attention() <-chan struct{} { return q.attention }

func (q *idleQueue) Register(context.Context) (queue.Registration, error) {
	return queue.Registration{}, nil
}

func (q *idleQueue) Heartbeat(context.Context, queue.Beat) (queue.Pulse, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.beats++
	return queue.Pulse{Poll: q.advice, Heartbeat: q.pulse}, q.err
}

func (q *idleQueue) Claim(_ context.Context, id uuid.UUID) (*provision.Assignment, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = append(q.asked, id)
	return q.gives, q.err
}

func (q *idleQueue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
}

// counts returns how often the queue was asked since the last time.
func (q *idleQueue) counts() (beats, asked int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	beats, asked = q.beats, len(q.asked)
	q.beats, q.asked = 0, nil
	return beats, asked
}

// beating runs a heartbeat, and a poller if slots is not 0, in a bubble.
func beating(t *testing.T, q *idleQueue, slots int) *bytes.Buffer {
	t.Helper()
	return beatingEvery(t, q, slots, 10*time.Second)
}

func beatingEvery(t *testing.T, q *idleQueue, slots int, interval time.Duration) *bytes.Buffer {
	t.Helper()
	log := &bytes.Buffer{}
	a := New(Options{Slots: slots, Log: slog.New(slog.NewTextHandler(log, nil))})
	b := newBoot(a, workspaceDirs{}, q, nil, &keys{})
	b.heartbeat = b.newHeartbeat(queue.Registration{Heartbeat: interval}, func(error) {})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { b.heartbeat.run(ctx) })
	if slots > 0 {
		running.Go(func() { b.newPoller().run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	synctest.Wait()
	return log
}

func TestHeartbeatAtOnceAndThenRegularly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newIdleQueue()
		beating(t, q, 0)
		if n, _ := q.counts(); n != 1 {
			t.Errorf("beats at once = %d, want 1", n)
		}
		time.Sleep(100 * time.Second)
		if n, _ := q.counts(); n < 8 || n > 13 {
			t.Errorf("beats in 100 s = %d, want about 10", n)
		}
	})
}

// Nothing wakes an agent over HTTPS, and people wait for a cancel.
func TestHeartbeatOftenWhileSomethingRunsUnwoken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		wakes, runs bool
		least, most int // heartbeats in 100 s
	}{
		{wakes: true, runs: true, least: 8, most: 13},
		{wakes: false, runs: false, least: 8, most: 13},
		{wakes: false, runs: true, least: 40, most: 65},
	} {
		synctest.Test(t, func(t *testing.T) {
			q := newIdleQueue()
			if !c.wakes {
				q.attention = nil
			}
			a := New(Options{Log: slog.New(slog.DiscardHandler)})
			b := newBoot(a, workspaceDirs{}, q, nil, &keys{})
			if c.runs {
				b.inflight.hold(uuid.New(), nil)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
			defer cancel()
			b.newHeartbeat(queue.Registration{Heartbeat: 10 * time.Second}, func(error) {}).run(ctx)
			if n, _ := q.counts(); n < c.least || n > c.most {
				t.Errorf("heartbeats in 100 s with wakes %t and a run %t = %d, want %d to %d", c.wakes, c.runs, n, c.least, c.most)
			}
		})
	}
}

// slowAnswer holds the answer to a heartbeat back: all of its claims are lost.
type slowAnswer struct {
	*idleQueue
	asked, answer chan struct{}
}

func (q slowAnswer) Heartbeat(_ context.Context, beat queue.Beat) (queue.Pulse, error) {
	q.asked <- struct{}{}
	<-q.answer
	return queue.Pulse{Lost: beat.Claims}, nil
}

// A claim that was given while the answer to a heartbeat was on its way is not lost,
// although the database did not know it when it answered; one that was worked on is.
func TestAnswerFromBeforeTheClaim(t *testing.T) {
	t.Parallel()
	q := slowAnswer{newIdleQueue(), make(chan struct{}), make(chan struct{})}
	b := newBoot(New(Options{Log: slog.New(slog.DiscardHandler)}), workspaceDirs{}, q, nil, &keys{})
	h := b.newHeartbeat(queue.Registration{Heartbeat: 10 * time.Second}, func(error) {})
	newer := newRun(b, provision.Assignment{ClaimID: uuid.New()})
	older := newRun(b, provision.Assignment{ClaimID: uuid.New()})
	b.inflight.hold(newer.assignment.ClaimID, nil) // asked for
	b.inflight.hold(older.assignment.ClaimID, older)
	var beat sync.WaitGroup
	beat.Go(func() { h.beat(t.Context()) })
	<-q.asked
	b.inflight.hold(newer.assignment.ClaimID, newer) // given
	q.answer <- struct{}{}
	beat.Wait()
	if newer.stopReason() != "" || older.stopReason() != job.StopLost {
		t.Errorf("stopped: %q and %q, want the older alone", newer.stopReason(), older.stopReason())
	}
}

// A run whose apply has begun is asked to detach shortly before its lease ends, also while a
// heartbeat is on its way and gets no answer. One that has not begun is not, and neither is any
// while heartbeats are answered.
func TestLeaseThatIsNotRenewed(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(context.Context) error{
		"refused":   func(context.Context) error { return errors.New("connection refused") },
		"swallowed": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := &cutQueue{idleQueue: newIdleQueue(), after: time.Now().Add(time.Hour), cut: cut}
				b := newBoot(New(Options{Log: slog.New(slog.DiscardHandler)}), workspaceDirs{}, q, nil, &keys{})
				applying, planning, terraform := stoppable(), stoppable(), stoppable()
				applying.applying.Store(true)
				applying.detachable.Store(true)
				terraform.applying.Store(true)
				b.inflight.hold(uuid.New(), applying)
				b.inflight.hold(uuid.New(), planning)
				b.inflight.hold(uuid.New(), terraform)
				h := b.newHeartbeat(queue.Registration{Heartbeat: 10 * time.Second, Lease: 2 * time.Minute}, nil)
				ctx, cancel := context.WithCancel(t.Context())
				var beating sync.WaitGroup
				beating.Go(func() { h.run(ctx) })
				defer beating.Wait()
				defer cancel()
				<-applying.detaching
				if after := time.Since(q.answered); after != 90*time.Second {
					t.Errorf("asked to detach %s after the last heartbeat that was answered, want 30 s before the lease of 2 minutes ends", after)
				}
				time.Sleep(10 * time.Minute)
				select {
				case <-planning.detaching:
					t.Error("a run whose apply has not begun was asked to detach")
				case <-terraform.detaching:
					t.Error("a run whose work ends with its process was asked to detach")
				default:
				}
			})
		})
	}
}

// cutQueue answers heartbeats until a time.
type cutQueue struct {
	*idleQueue
	after, answered time.Time
	cut             func(context.Context) error
}

func (q *cutQueue) Heartbeat(ctx context.Context, beat queue.Beat) (queue.Pulse, error) {
	if time.Now().After(q.after) {
		return queue.Pulse{}, q.cut(ctx)
	}
	q.answered = time.Now()
	return q.idleQueue.Heartbeat(ctx, beat)
}

// What begins just after a heartbeat is not left without one until the next.
func TestHeartbeatWhenSomethingBegins(t *testing.T) {
	t.Parallel()
	for _, wakes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			q := newIdleQueue()
			if !wakes {
				q.attention = nil
			}
			b := newBoot(New(Options{Log: slog.New(slog.DiscardHandler)}), workspaceDirs{}, q, nil, &keys{})
			b.heartbeat = b.newHeartbeat(queue.Registration{Heartbeat: 10 * time.Second}, func(error) {})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			time.AfterFunc(time.Second, func() {
				b.inflight.hold(uuid.New(), nil)
				b.heartbeat.began()
			})
			b.heartbeat.run(ctx)
			if n, _ := q.counts(); wakes && n != 1 || !wakes && n < 3 {
				t.Errorf("heartbeats in 5 s with wakes %t = %d, want 1 with and 3 or more without", wakes, n)
			}
		})
	}
}

// A heartbeat that renews leases is held for a part of one alone: a signed one renews them as of
// when it was signed.
func TestHeartbeatIsHeldWithinTheLease(t *testing.T) {
	t.Parallel()
	b := newBoot(New(Options{Log: slog.New(slog.DiscardHandler)}), workspaceDirs{}, newIdleQueue(), nil, &keys{})
	some := map[uuid.UUID]*run{uuid.New(): nil}
	for _, c := range []struct {
		lease time.Duration
		held  map[uuid.UUID]*run
		want  time.Duration
	}{{20 * time.Second, some, 5 * time.Second}, {20 * time.Second, nil, queue.MaxHeld}, {2 * time.Minute, some, queue.MaxHeld}, {0, some, queue.MaxHeld}} {
		if got := b.newHeartbeat(queue.Registration{Lease: c.lease}, func(error) {}).compose(c.held).Wait; got != c.want {
			t.Errorf("with a lease of %s and %d claims it may be held for %s, want %s", c.lease, len(c.held), got, c.want)
		}
	}
}

// holdingQueue holds heartbeats for as long as they allow.
type holdingQueue struct {
	*idleQueue
	answered int
}

func (q *holdingQueue) Heartbeat(ctx context.Context, beat queue.Beat) (queue.Pulse, error) {
	pulse, err := q.idleQueue.Heartbeat(ctx, beat)
	if !wait(ctx, beat.Wait) {
		return pulse, ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.answered++
	pulse.Held = true
	return pulse, err
}

// An agent whose operator has it poll more often than heartbeats are held gets their answers all the
// same: with each it inspects its keys and counts as healthy.
func TestHeldHeartbeatOutlivesPolls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &holdingQueue{idleQueue: newIdleQueue()}
		b := newBoot(New(Options{Slots: 1, Poll: time.Second, Log: slog.New(slog.DiscardHandler)}), workspaceDirs{}, q, nil, &keys{})
		b.heartbeat = b.newHeartbeat(queue.Registration{Heartbeat: 10 * time.Second}, func(error) {})
		ctx, cancel := context.WithTimeout(t.Context(), 10*queue.MaxHeld)
		defer cancel()
		var running sync.WaitGroup
		running.Go(func() { b.heartbeat.run(ctx) })
		running.Go(func() { b.newPoller().run(ctx) })
		running.Wait()
		if beats, asked := q.counts(); q.answered < 9 || beats > 15 || asked < 100 {
			t.Errorf("in 200 s %d of %d heartbeats are answered, and %d polls sent, want about 10 of 10, and the polls", q.answered, beats, asked)
		}
	})
}

// A run hears that people watch its log, and that they have left, once each; the database hears
// what the agent knows.
func TestHeartbeatSaysWhatIsWatched(t *testing.T) {
	t.Parallel()
	b := newBoot(New(Options{Log: slog.New(slog.DiscardHandler)}), workspaceDirs{}, newIdleQueue(), nil, &keys{})
	h := b.newHeartbeat(queue.Registration{}, func(error) {})
	claim, r := uuid.New(), &run{watched: make(chan bool, 1)}
	held := map[uuid.UUID]*run{claim: r, uuid.New(): nil}
	for _, step := range []struct {
		watched     []uuid.UUID
		hears, says bool
	}{
		{nil, false, false}, {[]uuid.UUID{claim}, true, true}, {[]uuid.UUID{claim}, false, true}, {nil, true, false}, {nil, false, false},
	} {
		h.obey(queue.Pulse{Watched: step.watched}, held)
		select {
		case is := <-r.watched:
			if !step.hears || is != step.says {
				t.Errorf("after %v the run hears %t, want news: %t", step.watched, is, step.hears)
			}
		default:
			if step.hears {
				t.Errorf("after %v the run hears nothing", step.watched)
			}
		}
		if got := slices.Contains(h.compose(held).Watched, claim); got != step.says {
			t.Errorf("after %v the database hears that it is known: %t, want %t", step.watched, got, step.says)
		}
	}
}

// A server that is overloaded says when to come back: the agent does not come
// before.
func TestRetryAfterIsObeyed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newIdleQueue()
		beating(t, q, 1)
		q.fail(&queue.Error{Kind: queue.Unavailable, Message: "too many requests", RetryAfter: 30 * time.Second})
		time.Sleep(time.Minute) // all have heard of it
		q.counts()
		for range 600 { // in 10 minutes; hints change nothing
			select {
			case q.work <- struct{}{}:
			default:
			}
			time.Sleep(time.Second)
		}
		// A question that failed has a heartbeat sent at once, and no more.
		beats, asked := q.counts()
		if beats < 18 || beats > 42 || asked < 9 || asked > 21 {
			t.Errorf("heartbeats, questions in 10 minutes = %d, %d, want about 20 each, and one of the first for each of the second at the most", beats, asked)
		}
	})
}

func TestForgedWakesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newIdleQueue()
		beating(t, q, 1)
		q.counts()
		for range 10_000 { // in 10 s
			select {
			case q.attention <- struct{}{}:
			default:
			}
			select {
			case q.work <- struct{}{}:
			default:
			}
			time.Sleep(time.Millisecond)
		}
		beats, asked := q.counts()
		if beats < 50 || beats > 101 {
			t.Errorf("beats = %d, want no more than one in 100 ms, and those", beats)
		}
		if asked < 500 || asked > 1001 {
			t.Errorf("questions = %d, want no more than one in 10 ms, and those", asked)
		}
	})
}

// News of work that was true costs the next claim no time, however often it comes; any other keeps
// held heartbeats apart.
func TestWorkIsNotKeptApart(t *testing.T) {
	t.Parallel()
	h := &heartbeat{spacing: rate.NewLimiter(0, 0)} // which lets nothing through
	h.holds.Store(true)
	p := &poller{queue: &idleQueue{}, inflight: &inflight{}, heartbeat: h, observer: unobserved{}, log: slog.New(slog.DiscardHandler), claim: newClaimID()}
	for range 3 {
		p.queue = &idleQueue{gives: &provision.Assignment{ClaimID: p.claim}}
		if a, err := p.ask(t.Context()); a == nil || err != nil {
			t.Fatalf("ask() = %v, %v, want work", a, err)
		}
		for range heldEarned {
			if !h.space(t.Context()) {
				t.Error("a heartbeat that work has earned is kept apart")
			}
		}
		if h.space(t.Context()) {
			t.Error("more heartbeats than work has earned are not kept apart")
		}
	}
	p.queue = &idleQueue{}
	if a, err := p.ask(t.Context()); a != nil || err != nil || h.space(t.Context()) {
		t.Errorf("ask() = %v, %v; an empty claim has earned a heartbeat", a, err)
	}
}

func TestOutageIsToldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newIdleQueue()
		log := beating(t, q, 1)
		q.fail(&queue.Error{Kind: queue.Unavailable, Message: "connection refused"})
		time.Sleep(10 * time.Minute)
		_, asked := q.counts()
		if asked > 200 {
			t.Errorf("questions in 10 minutes of outage = %d, want them put off more and more", asked)
		}
		q.fail(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(log.String(), "cannot reach the database; trying again"); n != 1 {
			t.Errorf("log:\n%s\ntells of the outage %d times, want once", log, n)
		}
		if n := strings.Count(log.String(), "can reach the database again"); n != 1 {
			t.Errorf("log:\n%s\ntells of its end %d times, want once", log, n)
		}
	})
}

func TestClaimIDStaysUntilAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newIdleQueue()
		beating(t, q, 1)
		q.counts()
		for _, err := range []error{
			errors.New("no answer"),
			&queue.Error{Kind: queue.Unauthorized, Message: "no such token"},
			&queue.Error{Kind: queue.Refused, Message: "no"},
		} {
			q.fail(err)
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		q.mu.Lock()
		asked := q.asked
		q.mu.Unlock()
		if len(asked) < 8 {
			t.Fatalf("asked %d times in 3 minutes, want more", len(asked))
		}
		for i, id := range asked {
			if id != asked[0] {
				t.Errorf("question %d has another id than the first, which was not answered", i)
			}
		}
		last := asked[0]
		for _, answer := range []error{&queue.Error{Kind: queue.ClaimLost, Message: "lost"}, nil} {
			q.fail(answer)
			time.Sleep(time.Minute)
			synctest.Wait()
			q.mu.Lock()
			id := q.asked[len(q.asked)-1]
			q.mu.Unlock()
			if id == last {
				t.Errorf("after the answer %v it asks under the same id, want a new one", answer)
			}
			last = id
		}
	})
}

func TestClaimThatWasNotAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newIdleQueue()
		q.gives = &provision.Assignment{ClaimID: uuid.New()} // to carry it out would panic here
		log := beating(t, q, 1)
		q.counts()
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, asked := q.counts(); asked < 8 || asked > 16 {
			t.Errorf("questions in a minute = %d, want about 12 as when there is no work", asked)
		}
		if !strings.Contains(log.String(), "a claim that was not asked for") {
			t.Errorf("log:\n%s\nwant it told", log)
		}
	})
}

func TestAdviceIsKeptWithinBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		registered, now time.Duration
		least, most     int // calls in 10 minutes
	}{
		{"negative", -time.Hour, -time.Hour, 90, 160},
		{"none", 0, 0, 90, 160},
		{"too short", 1, 1, 2400, 6001},
		{"too long", 1 << 62, 1 << 62, 8, 14},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := newIdleQueue()
				q.pulse, q.advice = c.now, c.now
				beatingEvery(t, q, 1, c.registered)
				q.counts()
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				beats, asked := q.counts()
				if beats < c.least || beats > c.most {
					t.Errorf("heartbeats in 10 minutes = %d, want %d to %d", beats, c.least, c.most)
				}
				if asked < c.least || asked > c.most {
					t.Errorf("questions in 10 minutes = %d, want %d to %d", asked, c.least, c.most)
				}
			})
		})
	}
}

func TestPollFollowsAdvice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newIdleQueue()
		q.advice = time.Minute
		beating(t, q, 1)
		q.counts()
		time.Sleep(10 * time.Minute)
		if _, asked := q.counts(); asked < 8 || asked > 13 {
			t.Errorf("questions in 10 minutes = %d, want about 10", asked)
		}
	})
}

// After a failure the database is asked again as soon as it lets hear of itself.
func TestPollerAsksAgainWhenWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newIdleQueue()
		a := New(Options{Slots: 1, Log: slog.New(slog.DiscardHandler)})
		p := newBoot(a, workspaceDirs{}, q, nil, &keys{}).newPoller()
		began := time.Now()
		time.AfterFunc(time.Second, func() { q.work <- struct{}{} })
		if !p.pause(t.Context(), nil, time.Minute) {
			t.Error("pause() = false, want true")
		}
		if took := time.Since(began); took != time.Second+retrySoon {
			t.Errorf("pause() took %s, want %s after it was woken", took, retrySoon)
		}
	})
}

// Memory is given back once, when the agent has had nothing in hand for a while.
func TestMemoryIsGivenBackWhenSettled(t *testing.T) {
	t.Parallel()
	freed := 0
	s, now := idleMemory{free: func() { freed++ }}, time.Now()
	for i, step := range []struct {
		after time.Duration
		idle  bool
		want  int
	}{
		{0, true, 0}, {time.Second, true, 0}, {idleTime, true, 1}, {idleTime, true, 1},
		{time.Second, false, 1}, {idleTime, true, 1}, {time.Second, false, 1}, {time.Second, true, 1}, {idleTime, true, 2},
	} {
		now = now.Add(step.after)
		if s.observe(step.idle, now); freed != step.want {
			t.Errorf("step %d: memory was given back %d times, want %d", i+1, freed, step.want)
		}
	}
}
