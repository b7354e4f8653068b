package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

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
}

func newIdleQueue() *idleQueue {
	return &idleQueue{work: make(chan struct{}, 1), attention: make(chan struct{}, 1)}
}

func (q *idleQueue) Work() <-chan struct{}      { return q.work }
func (q *idleQueue) Attention() <-chan struct{} { return q.attention }

func (q *idleQueue) Heartbeat(context.Context, []uuid.UUID) (queue.Pulse, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.beats++
	return queue.Pulse{Poll: q.advice}, q.err
}

func (q *idleQueue) Claim(_ context.Context, id uuid.UUID) (*provision.Assignment, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = append(q.asked, id)
	return nil, q.err
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

// beating runs a heart, and a poller if slots is not 0, in a bubble.
func beating(t *testing.T, q *idleQueue, slots int) *bytes.Buffer {
	t.Helper()
	log := &bytes.Buffer{}
	a := New(Options{Slots: slots, Log: slog.New(slog.NewTextHandler(log, nil))})
	b := newBoot(a, nil, q, nil)
	b.heart = newHeart(b, 10*time.Second, func(error) {})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { b.heart.run(ctx) })
	if slots > 0 {
		running.Go(func() { newPoller(b).run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	synctest.Wait()
	return log
}

func TestHeartBeatsAtOnceAndThenRegularly(t *testing.T) {
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
		q.fail(errors.New("no answer"))
		time.Sleep(time.Minute)
		synctest.Wait()
		q.mu.Lock()
		asked := q.asked
		q.mu.Unlock()
		if len(asked) < 4 || asked[1] == asked[0] {
			t.Fatalf("asked %d times, want a new id after an answer", len(asked))
		}
		for i, id := range asked[2:] {
			if id != asked[1] {
				t.Errorf("question %d has another id than those before, of which none was answered", i+2)
			}
		}
	})
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
