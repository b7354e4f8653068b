package queuetest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Holder is a server of a world that holds heartbeats until there is news.
type Holder struct {
	// Open opens the transport under test, and closes it when the test is over.
	Open func(t *testing.T, token string, agent queue.Agent) queue.Queue
	// Held is how many calls it holds now.
	Held func() int
	// Stop has it answer all of them, and hold none from then on.
	Stop func()
}

// pace is how long an agent that hears of work has to take it, until the next one hears.
const pace = 20 * time.Millisecond

// RunHeld runs every case of calls that are held against a transport.
func RunHeld(t *testing.T, serve func(t *testing.T, w *World) Holder) {
	for name, test := range map[string]func(*testing.T, *World, Holder){
		"WorkEndsTheWait":           workEndsTheWait,
		"CancelEndsTheWait":         cancelEndsTheWait,
		"NewerHeartbeatEndsOlder":   newerHeartbeatEndsOlder,
		"ShutdownEndsTheWait":       shutdownEndsTheWait,
		"RevocationEndsTheWait":     revocationEndsTheWait,
		"OneRowIsForOneAgent":       oneRowIsForOneAgent,
		"ClientThatIsGoneIsNotHeld": clientThatIsGoneIsNotHeld,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := NewWorld(t)
			test(t, w, serve(t, w))
		})
	}
}

// waits opens the transport for a new agent, which has learnt that its heartbeats are held.
func (h Holder) waits(t *testing.T, w *World, name string) queue.Queue {
	t.Helper()
	q := h.Open(t, w.Token, NewAgent(name))
	mustRegister(t, q)
	first, err := q.Heartbeat(t.Context(), queue.Beat{Wait: queue.MaxHeld})
	if err != nil || !first.Held {
		t.Fatalf("the first heartbeat = %+v, %v, want one to follow at once: the database can be asked to tell", first, err)
	}
	return q
}

// beat sends a heartbeat that may wait, waits until so many calls are held, and gives its answer.
func (h Holder) beat(t *testing.T, q queue.Queue, held int, beat queue.Beat) <-chan queue.Pulse {
	t.Helper()
	beat.Wait = queue.MaxHeld
	answer := make(chan queue.Pulse, 1)
	go func() {
		pulse, err := q.Heartbeat(t.Context(), beat)
		if err != nil && t.Context().Err() == nil {
			t.Errorf("Heartbeat() = %v, want nil", err)
		}
		answer <- pulse
	}()
	h.want(t, held)
	return answer
}

func (h Holder) want(t *testing.T, calls int) {
	t.Helper()
	patience.Await(t, "calls to be held", func() bool { return h.Held() == calls })
}

func receive(t *testing.T, answer <-chan queue.Pulse, what string) queue.Pulse {
	t.Helper()
	select {
	case pulse := <-answer:
		return pulse
	case <-patience.After(time.Minute):
		t.Fatalf("no answer: %s", what)
		return queue.Pulse{}
	}
}

func workEndsTheWait(t *testing.T, w *World, h Holder) {
	q := h.waits(t, w, "one")
	answer := h.beat(t, q, 1, queue.Beat{Free: true})
	w.Deploy(t, "acme/prod")
	if pulse := receive(t, answer, "work"); !pulse.Work || !pulse.Held {
		t.Errorf("heartbeat when something is deployed = %+v, want work", pulse)
	}
	select {
	case <-q.Work():
	default:
		t.Error("Work() has not received")
	}
	mustClaim(t, q)
}

func cancelEndsTheWait(t *testing.T, w *World, h Holder) {
	q := h.waits(t, w, "one")
	w.Deploy(t, "acme/prod")
	a := mustClaim(t, q)
	answer := h.beat(t, q, 1, queue.Beat{Claims: []uuid.UUID{a.ClaimID}, Free: true})
	w.Exec(t, "SELECT public.cancel_provision($1)", a.ProvisionID)
	if pulse := receive(t, answer, "a cancel"); len(pulse.Cancel) != 1 || !pulse.Held {
		t.Errorf("heartbeat when it is cancelled = %+v, want the claim", pulse)
	}
	// What is known is no news.
	h.beat(t, q, 1, queue.Beat{Claims: []uuid.UUID{a.ClaimID}, Cancelled: []uuid.UUID{a.ClaimID}})
	h.Stop()
}

func newerHeartbeatEndsOlder(t *testing.T, w *World, h Holder) {
	q := h.waits(t, w, "one")
	older := h.beat(t, q, 1, queue.Beat{})
	newer := make(chan queue.Pulse, 1)
	go func() {
		pulse, _ := q.Heartbeat(t.Context(), queue.Beat{Wait: queue.MaxHeld, Free: true}) // its answer tells
		newer <- pulse
	}()
	receive(t, older, "the end of the older one")
	h.want(t, 1)
	w.Deploy(t, "acme/prod")
	if pulse := receive(t, newer, "work"); !pulse.Work {
		t.Errorf("the newer heartbeat = %+v, want work", pulse)
	}
}

// Agents are sent away for some seconds, for what comes in its place must begin first.
func shutdownEndsTheWait(t *testing.T, w *World, h Holder) {
	q := h.waits(t, w, "one")
	answer := h.beat(t, q, 1, queue.Beat{Free: true})
	h.Stop()
	if pulse := receive(t, answer, "the shutdown"); pulse.Work || pulse.Again <= 0 {
		t.Errorf("heartbeat when the server stops = %+v, want it to say when to ask again", pulse)
	}
	h.want(t, 0)
}

// A token or a key that is revoked ends what is held under it, long before its time is over.
func revocationEndsTheWait(t *testing.T, w *World, h Holder) {
	q := h.waits(t, w, "one")
	ended := make(chan error, 1)
	go func() {
		_, err := q.Heartbeat(t.Context(), queue.Beat{Wait: queue.MaxHeld, Free: true})
		ended <- err
	}()
	h.want(t, 1)
	began := time.Now()
	w.Exec(t, "SELECT public.revoke_cluster_token($1, t.id) FROM public.cluster_tokens($1) t WHERE t.revoked_at IS NULL", w.Cluster)
	_ = wantKind(t, "Heartbeat()", <-ended, queue.Unauthorized)
	if took := time.Since(began); took > patience.For(queue.MaxHeld/2) {
		t.Errorf("the heartbeat ends %s after the revocation, want it at once", took)
	}
}

// Many wait, one has the row, and the others are not all told of it: one each time that the
// one before has had a moment to take it.
func oneRowIsForOneAgent(t *testing.T, w *World, h Holder) {
	const agents = 6
	var told atomic.Int64
	var mu sync.Mutex
	var began, claimed time.Time
	var got []*provision.Assignment
	var all sync.WaitGroup
	for n := range agents {
		q := h.waits(t, w, string(rune('a'+n)))
		answer := h.beat(t, q, n+1, queue.Beat{Free: true})
		all.Go(func() {
			pulse := <-answer
			if !pulse.Work {
				return
			}
			told.Add(1)
			a, err := q.Claim(t.Context(), uuid.New())
			if err != nil {
				t.Errorf("Claim() = %v, want nil", err)
			}
			if mu.Lock(); a != nil {
				got, claimed = append(got, a), time.Now()
			}
			mu.Unlock()
		})
	}
	began = time.Now()
	w.Deploy(t, "acme/prod")
	patience.Await(t, "an agent to take the row", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) > 0
	})
	h.Stop()
	all.Wait()
	if len(got) != 1 {
		t.Errorf("%d agents have the row, want one", len(got))
	}
	if n, most := told.Load(), 2+int64(claimed.Sub(began)/pace); n > most {
		t.Errorf("%d agents are told of one row that was taken after %s, want at most %d", n, claimed.Sub(began), most)
	}
}

func clientThatIsGoneIsNotHeld(t *testing.T, w *World, h Holder) {
	q := h.waits(t, w, "one")
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, _ = q.Heartbeat(ctx, queue.Beat{Wait: queue.MaxHeld}) }() // it is given up
	h.want(t, 1)
	cancel()
	h.want(t, 0)
}
