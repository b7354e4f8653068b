package sql_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"
)

// A run that was given up during its apply goes on telling what it does: what
// comes before its result would be missing otherwise.
func TestHeldRunGoesOnTelling(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	wantRefusal(t, h.agent.report(t, h.claim, "PROCESSING", `{"n": 6, "stage": "apply"}`), "PT409", "claim_lost")
	h.agent.mustReport(t, h.claim, "PROCESSING", `{"n": 6, "percent": 80, "events": [{"kind": "resource_finished", "at": "2026-01-01T00:00:00Z", "address": "a.b"}]}`)
	h.agent.mustReport(t, h.claim, "PROCESSING", `{"n": 6, "percent": 10}`) // again, after a lost reply
	h.agent.mustReport(t, h.claim, "PROCESSING", `{"n": 7, "stage": "outputs", "outputs": {"greeting": {"value": "hello"}}}`)
	if got := h.statusAndCode(t, h.provision); got != "FAILED/agent_lost" {
		t.Errorf("status = %s, want FAILED/agent_lost until the result is there", got)
	}
	h.agent.mustReport(t, h.claim, "SUCCESS", `{"n": 8}`)
	got := one[string](t, h.conn, `SELECT concat_ws(' ', p.status, p.outputs -> 'greeting' ->> 'value', g.percent,
		(SELECT count(*) FROM public.provision_events e WHERE e.provision_id = p.id AND e.kind = 'resource_finished'))
		FROM public.provisions p JOIN public.provision_progress g ON g.provision_id = p.id WHERE p.id = $1`, h.provision)
	if want := "SUCCESS hello 100 1"; got != want {
		t.Errorf("recorded = %q, want %q", got, want)
	}
}

// So does one that an admin has released, and nothing of it is stored twice.
func TestReleasedRunTellsOnce(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	h.mustRelease(t, h.workspace)
	for range 2 { // the second after a lost reply
		h.agent.mustReport(t, h.claim, "PROCESSING", `{"n": 6, "events": [{"kind": "resource_finished", "at": "2026-01-01T00:00:00Z", "address": "a.b"}]}`)
	}
	if got := one[int](t, h.conn, "SELECT count(*) FROM public.provision_events WHERE kind = 'resource_finished'"); got != 1 {
		t.Errorf("events = %d, want 1", got)
	}
}

// An agent cut off for more than a day still has what ends its hold to tell. One
// that holds nothing is too late.
func TestLinesOfMoreThanADayAgo(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	mustExec(t, h.conn, "UPDATE tendril.claims SET ended_at = clock_timestamp() - interval '25 hours'")
	if next, err := h.agent.lines(t, h.claim, 1, "done\n"); err != nil || next != 2 {
		t.Errorf("line of a claim that holds its workspace = %d, %v, want 2", next, err)
	}
	h.agent.mustReport(t, h.claim, "SUCCESS", `{"n": 6}`)
	if got := h.status(t, h.provision); got != "SUCCESS" {
		t.Errorf("status = %s, want SUCCESS", got)
	}
	_, err := h.agent.lines(t, h.claim, 2, "more\n")
	wantRefusal(t, err, "PT409", "claim_lost")
}

// A lost claim that another follows on its workspace has nothing more to settle.
func TestLostClaimEndsWithTheNext(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	lost, _ := agent.mustClaim(t)
	w.expire(t, lost)
	if n := w.reap(t); n != 1 {
		t.Fatalf("reap() = %d, want 1", n)
	}
	next := w.deploy(t, w.operator, snapshot("a"))
	if _, got := w.newAgent(t, "two").mustClaim(t); got != next {
		t.Fatalf("claim = %s, want %s", got, next)
	}
	if got := one[string](t, w.conn, "SELECT state FROM tendril.claims WHERE id = $1", lost); got != "ended" {
		t.Errorf("the lost claim is %s, want it ended", got)
	}
	if p, err := agent.heartbeat(t, lost); err != nil || !slices.Contains(p.Lost, lost) {
		t.Errorf("heartbeat = %+v, %v, want the claim lost", p, err)
	}
	wantRefusal(t, agent.report(t, lost, "SUCCESS", `{}`), "PT409", "claim_lost")
}

// An agent that still waits for a child of an earlier boot sweeps all but what
// that child runs.
func TestSweepLeavesOutWhatStillRuns(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	w.deploy(t, w.operator, snapshot("b"))
	alive, waiting := agent.mustClaim(t)
	_, dead := agent.mustClaim(t)
	agent.boot = uuid.New()
	if err := agent.register(t); err != nil {
		t.Fatal(err)
	}
	if got := agent.sweepBut(t, alive); !slices.Equal(got, []uuid.UUID{dead}) {
		t.Errorf("sweep but %s = %v, want only %s", alive, got, dead)
	}
	if got := w.statusAndCode(t, waiting); got != "PROCESSING" {
		t.Errorf("status of what was left out = %s, want PROCESSING", got)
	}
	var swept []uuid.UUID
	err := agent.call(t, &swept, "SELECT coalesce(array_agg(s), '{}') FROM public.fail_orphaned_provisions($1, $2, $3, '{NULL}') s", w.tokenHash, agent.instance, agent.boot)
	if err != nil || !slices.Equal(swept, []uuid.UUID{waiting}) {
		t.Errorf("sweep but a null = %v, %v, want %s", swept, err, waiting)
	}
}
