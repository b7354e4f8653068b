package queuetest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// RunnerKey is the key of a runner whose token that would be.
func RunnerKey(token string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(token))
	return ed25519.NewKeyFromSeed(seed[:])
}

// runner is what DelegateClaim is given for a runner.
func (w *World) runner(token string) string {
	if w.Signs {
		return queue.RunnerKey(RunnerKey(token).Public().(ed25519.PublicKey))
	}
	return queue.RunnerToken(token)
}

// A runner may do for its claim what the agent may, until the claim has ended, and nothing else.
func runnerHasItsClaim(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	q := open(t, w, w.Token, agent)
	registration := mustRegister(t, q)
	id, other := w.Deploy(t, "a"), w.Deploy(t, "b")
	a, b := mustClaim(t, q), mustClaim(t, q)

	as := func(token string, claim uuid.UUID) queue.Queue {
		agent.Runner = &queue.Runner{Claim: claim, Registered: registration}
		r := open(t, w, token, agent)
		if got := mustRegister(t, r); got != registration {
			t.Errorf("Register() = %+v, want what the agent was told, %+v", got, registration)
		}
		return r
	}
	// The digest that DelegateClaim gets is no secret: nobody can call with it.
	var known string
	if !w.Signs {
		known = w.runner("the runner's")
	}
	early := as("the runner's", a.ClaimID)
	_, err := early.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{a.ClaimID}})
	_ = wantKind(t, "Heartbeat(not delegated)", err, queue.Unauthorized)
	for range 2 { // a repeat is harmless
		if err := q.DelegateClaim(t.Context(), a.ClaimID, w.runner("the runner's")); err != nil {
			t.Fatalf("DelegateClaim() = %v, want nil", err)
		}
	}
	err = q.DelegateClaim(t.Context(), a.ClaimID, w.runner("another's"))
	_ = wantKind(t, "DelegateClaim(another runner)", err, queue.Refused)

	if known != "" {
		if _, err := w.Conn.Exec(t.Context(), "SELECT public.renew_claim($1, $2)", known, a.ClaimID); err == nil {
			t.Error("what names the runner counts as its credential")
		}
	}
	r := as("the runner's", a.ClaimID)
	w.Exec(t, "UPDATE tendril.claims SET lease_until = clock_timestamp() + interval '1 s' WHERE id = $1", a.ClaimID)
	if p, err := r.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{a.ClaimID}}); err != nil || len(p.Lost)+len(p.Cancel) > 0 {
		t.Fatalf("Heartbeat() = %+v, %v, want the lease renewed", p, err)
	}
	if got := w.Text(t, "SELECT (lease_until > clock_timestamp() + (SELECT lease FROM tendril.settings) / 2)::text FROM tendril.claims WHERE id = $1", a.ClaimID); got != "true" {
		t.Error("the heartbeat has not renewed the lease")
	}

	// The agent starts again and sweeps: what is delegated goes on, what is not ends.
	agent.Boot, agent.Runner = uuid.New(), nil
	next := open(t, w, w.Token, agent)
	mustRegister(t, next)
	if orphans, err := next.FailOrphans(t.Context(), nil); err != nil || len(orphans) != 1 || orphans[0] != other {
		t.Errorf("FailOrphans() = %v, %v, want [%s] alone", orphans, err, other)
	}

	_, err = as("the runner's", b.ClaimID).AppendLog(t.Context(), b.ClaimID, 1, []provision.LogChunk{line("x")})
	_ = wantKind(t, "AppendLog(another claim)", err, queue.Unauthorized)
	_, err = r.Claim(t.Context(), uuid.New())
	_ = wantKind(t, "Claim(by a runner)", err, queue.Unauthorized)
	err = r.DelegateClaim(t.Context(), a.ClaimID, w.runner("another's"))
	_ = wantKind(t, "DelegateClaim(by a runner)", err, queue.Unauthorized)
	_, err = r.FailOrphans(t.Context(), nil)
	_ = wantKind(t, "FailOrphans(by a runner)", err, queue.Unauthorized)

	mustReport(t, r, a.ClaimID, provision.Processing, applying)
	data := []byte("a state")
	blob := stateBlob(1, data)
	if err := r.PutBlob(t.Context(), a.ClaimID, blob, data); err != nil {
		t.Errorf("PutBlob() = %v, want nil", err)
	}
	if _, got, err := r.GetBlob(t.Context(), a.ClaimID, queue.BlobState, 0); err != nil || string(got) != string(data) {
		t.Errorf("GetBlob() = %q, %v, want the state", got, err)
	}
	if next, err := r.AppendLog(t.Context(), a.ClaimID, 1, []provision.LogChunk{line("hello\n")}); err != nil || next != 2 {
		t.Errorf("AppendLog() = %d, %v, want 2", next, err)
	}
	w.Exec(t, "UPDATE tendril.claims SET cancel_requested_at = now() WHERE id = $1", a.ClaimID)
	if p, err := r.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{a.ClaimID}}); err != nil || len(p.Cancel) != 1 {
		t.Errorf("Heartbeat() = %+v, %v, want to be told of the cancel", p, err)
	}
	for range 2 { // a repeat after a lost answer
		mustReport(t, r, a.ClaimID, provision.Success, provision.Detail{})
	}
	if got := w.Status(t, id); got != "SUCCESS" {
		t.Errorf("status = %s, want SUCCESS", got)
	}
	err = q.DelegateClaim(t.Context(), a.ClaimID, w.runner("another's"))
	if e := wantKind(t, "DelegateClaim(ended, with a runner)", err, queue.Refused); e.Reason != "already_delegated" {
		t.Errorf("DelegateClaim(ended, with a runner) = %q, want that it has one", e.Reason)
	}
	err = next.DelegateClaim(t.Context(), b.ClaimID, w.runner("another's"))
	_ = wantKind(t, "DelegateClaim(ended, without a runner)", err, queue.ClaimLost)
	if p, err := r.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{a.ClaimID}}); err != nil || len(p.Lost) != 1 {
		t.Errorf("Heartbeat(ended) = %+v, %v, want the claim lost", p, err)
	}
	w.Exec(t, "UPDATE tendril.claims SET ended_at = ended_at - $2::interval WHERE id = $1", a.ClaimID, 48*time.Hour)
	_, err = r.Heartbeat(t.Context(), queue.Beat{Claims: []uuid.UUID{a.ClaimID}})
	_ = wantKind(t, "Heartbeat(long after its end)", err, queue.Unauthorized)
}
