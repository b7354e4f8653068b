package rpcqueue_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// heldBeat sends a heartbeat that may wait, and gives its answer.
func heldBeat(t *testing.T, q queue.Queue, beat queue.Beat) <-chan queue.Pulse {
	t.Helper()
	beat.Wait = true
	answer := make(chan queue.Pulse, 1)
	go func() {
		pulse, err := q.Heartbeat(t.Context(), beat)
		if err != nil && t.Context().Err() == nil {
			t.Errorf("Heartbeat() = %v, want nil", err)
		}
		answer <- pulse
	}()
	return answer
}

// wantHeld waits until the gateway holds so many calls.
func wantHeld(t *testing.T, g gatewaytest.Gateway, calls int) {
	t.Helper()
	patience.Await(t, "the gateway to hold calls", func() bool { return g.Served.Held().Calls == calls })
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

// What happens to an agent reaches it through the heartbeat that is held.
func TestHeldHeartbeat(t *testing.T) {
	t.Parallel()
	w := queuetest.NewWorld(t)
	g := gatewaytest.Serve(t, w)
	q := dial(t, rpcqueue.Options{URL: g.URL, APIKey: g.APIKey, CAFile: g.CAFile, Token: w.Token, Agent: queuetest.NewAgent("one")})
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, err := q.Heartbeat(t.Context(), queue.Beat{Wait: true})
	if err != nil || !first.Held {
		t.Fatalf("the first heartbeat = %+v, %v, want one to follow at once: the database can be asked to tell", first, err)
	}

	answer := heldBeat(t, q, queue.Beat{Free: true})
	wantHeld(t, g, 1)
	w.Deploy(t, "acme/prod")
	if pulse := receive(t, answer, "work"); !pulse.Work || !pulse.Held {
		t.Errorf("heartbeat when something is deployed = %+v, want work", pulse)
	}
	select {
	case <-q.Work():
	default:
		t.Error("Work() has not received")
	}
	a, err := q.Claim(t.Context(), uuid.New())
	if a == nil || err != nil {
		t.Fatalf("Claim() = %v, %v, want the provision", a, err)
	}

	answer = heldBeat(t, q, queue.Beat{Claims: []uuid.UUID{a.ClaimID}, Free: true})
	wantHeld(t, g, 1)
	w.Exec(t, "SELECT public.cancel_provision($1)", a.ProvisionID)
	if pulse := receive(t, answer, "a cancel"); len(pulse.Cancel) != 1 || !pulse.Held {
		t.Errorf("heartbeat when it is cancelled = %+v, want the claim", pulse)
	}

	// A newer one ends the older, and what is known already is no news.
	older := heldBeat(t, q, queue.Beat{Claims: []uuid.UUID{a.ClaimID}, Cancelled: []uuid.UUID{a.ClaimID}})
	wantHeld(t, g, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, _ = q.Heartbeat(ctx, queue.Beat{Wait: true, Claims: []uuid.UUID{a.ClaimID}, Cancelled: []uuid.UUID{a.ClaimID}, Free: true})
	}()
	receive(t, older, "the end of the older one")
	wantHeld(t, g, 1)
	cancel()
	wantHeld(t, g, 0)
}
