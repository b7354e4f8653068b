package pgqueue_test

import (
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

// quick is the call time-out of an agent that is to notice soon, and whose calls
// are answered in time by a machine that is slow.
const quick = 5 * time.Second

// overWire opens a queue whose connections go by way of a proxy.
func overWire(t *testing.T, timeout time.Duration) (*queuetest.World, *wiretest.Proxy, queue.Queue) {
	t.Helper()
	w := queuetest.NewWorld(t)
	wire := wiretest.New(t, w.URL)
	q, err := pgqueue.New(t.Context(), pgqueue.Options{
		URL: wire.URL(w.AgentURL(t)), Token: w.Token, Agent: queuetest.NewAgent("one"), CallTimeout: timeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	t.Cleanup(func() { wire.Cut() }) // else closing waits for answers that do not come
	await(t, q.Work(), "the first session")
	return w, wire, q
}

func register(t *testing.T, q queue.Queue) {
	t.Helper()
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// atOnce sends more heartbeats at once than there are connections.
func atOnce(t *testing.T, q queue.Queue) {
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() { _, _ = q.Heartbeat(t.Context(), queue.Beat{}) }) // whether it works is asked later
	}
	calls.Wait()
}

// A session that only listens has nothing to send, so nothing tells it that
// what it is connected to is no longer there.
func TestListenerLeavesABlackHole(t *testing.T) {
	t.Parallel()
	// It tries again by itself, so nothing is asked of a call in that time.
	const bound = quick / 10
	w, wire, q := overWire(t, bound)
	wire.BlackHole()
	began := time.Now()
	wire.Pass() // the session of before stays lost
	await(t, q.Work(), "a new LISTEN session")
	t.Logf("a listener left a black hole after %s, with calls bounded by %s", time.Since(began), bound)
	w.Deploy(t, "a")
	await(t, q.Work(), "a wake for the deploy")
}

// Every connection of the pool is lost. One call finds out; the next gets a new
// connection and does not try each of the others first.
func TestPoolLeavesABlackHole(t *testing.T) {
	t.Parallel()
	_, wire, q := overWire(t, quick)
	register(t, q)
	atOnce(t, q)
	wire.BlackHole()
	wire.Pass()
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil && queue.KindOf(err) != queue.Unavailable {
		t.Fatalf("Heartbeat() on a lost connection = %v, want it unavailable", err)
	}
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
		t.Errorf("the Heartbeat() after it = %v, want nil", err)
	}
}

// What was connecting into the hole when it closed must not keep the pool's
// places.
func TestPoolLeavesAHalfMadeConnection(t *testing.T) {
	t.Parallel()
	_, wire, q := overWire(t, quick)
	register(t, q)
	wire.BlackHole()
	wire.Cut()
	atOnce(t, q)
	wire.Pass()
	began := time.Now()
	for {
		_, err := q.Heartbeat(t.Context(), queue.Beat{})
		if err == nil {
			break
		}
		if time.Since(began) > time.Minute { // less than the pool's own limit for connecting
			t.Fatalf("Heartbeat() %s after the black hole = %v, want nil", time.Since(began), err)
		}
	}
	t.Logf("calls worked %s after the black hole", time.Since(began))
}
