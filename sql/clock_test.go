package sql_test

import (
	"testing"

	"github.com/google/uuid"
)

// A test cannot step the server's clock. It moves the stamps instead: when the
// clock was an hour ahead and is put right, they lie an hour in the future.

// ahead is how far; any time longer than a lease will do.
const ahead = "interval '1 hour'"

func (w *world) stepBack(t *testing.T) {
	t.Helper()
	for _, statement := range []string{
		"UPDATE tendril.pulse SET stamped_at = stamped_at + " + ahead,
		"UPDATE tendril.claims SET lease_until = lease_until + " + ahead + ", ended_at = ended_at + " + ahead,
		"UPDATE public.agents SET last_heartbeat_at = last_heartbeat_at + " + ahead,
		"UPDATE public.clusters SET last_seen_at = last_seen_at + " + ahead,
		"UPDATE tendril.log_heads SET notified_at = notified_at + " + ahead,
	} {
		mustExec(t, w.conn, statement)
	}
}

// leasePasses makes the time pass for which reaping was put off, and every
// lease with it.
func (w *world) leasePasses(t *testing.T) {
	t.Helper()
	mustExec(t, w.conn, "UPDATE tendril.pulse SET reap_not_before = reap_not_before - interval '121 seconds'")
	mustExec(t, w.conn, "UPDATE tendril.claims SET lease_until = lease_until - interval '121 seconds'")
}

// After a step back the dead are reaped one lease later, not an hour later, and
// the living lose nothing.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	living, dead := w.newAgent(t, "living"), w.newAgent(t, "dead")
	w.deploy(t, w.operator, snapshot("a"))
	w.deploy(t, w.operator, snapshot("b"))
	_, lost := dead.mustClaim(t)
	kept, _ := living.mustClaim(t)
	for range 2 { // several steps: each heals
		w.stepBack(t)
		if _, err := living.heartbeat(t, kept); err != nil {
			t.Fatal(err)
		}
		for what, query := range map[string]string{
			"pulse":           "SELECT stamped_at <= clock_timestamp() FROM tendril.pulse",
			"leases":          "SELECT bool_and(lease_until <= clock_timestamp() + interval '2 minutes') FROM tendril.claims",
			"agents":          "SELECT bool_and(last_heartbeat_at <= clock_timestamp()) FROM public.agents",
			"clusters":        "SELECT bool_and(last_seen_at <= clock_timestamp()) FROM public.clusters",
			"reaping put off": "SELECT reap_not_before BETWEEN clock_timestamp() + interval '1 minute' AND clock_timestamp() + interval '2 minutes' FROM tendril.pulse",
		} {
			if !one[bool](t, w.conn, query) {
				t.Errorf("%s: not brought back by one heartbeat", what)
			}
		}
	}
	if n := w.reap(t); n != 0 {
		t.Fatalf("reap() right after the step = %d, want 0: every agent gets one lease", n)
	}
	w.leasePasses(t)
	if _, err := living.heartbeat(t, kept); err != nil {
		t.Fatal(err)
	}
	if got := w.statusAndCode(t, lost); got != "FAILED/agent_lost" {
		t.Errorf("the dead agent's run is %s one lease later, want FAILED/agent_lost", got)
	}
	if got := one[string](t, w.conn, "SELECT state FROM tendril.claims WHERE id = $1", kept); got != "running" {
		t.Errorf("the living agent's claim is %s, want running", got)
	}
}

// Forward: leases have run out through nobody's fault.
func TestClockSetForward(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	mustExec(t, w.conn, "UPDATE tendril.pulse SET stamped_at = stamped_at - "+ahead)
	mustExec(t, w.conn, "UPDATE tendril.claims SET lease_until = lease_until - "+ahead)
	if n := w.reap(t); n != 0 {
		t.Fatalf("reap() after the step = %d, want 0", n)
	}
	wantRefusal(t, agent.report(t, claim, "PROCESSING", applying), "PT503", "lease_expired")
	if _, err := agent.heartbeat(t, claim); err != nil {
		t.Fatal(err)
	}
	agent.mustReport(t, claim, "PROCESSING", applying)
	if n := w.reap(t); n != 0 || w.status(t, id) != "PROCESSING" {
		t.Errorf("reap() = %d, status %s, want the run to go on", n, w.status(t, id))
	}
}

// Reaping that was put off by a clock that was ahead is not put off till then.
func TestReapingPutOffInTheFuture(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	w.expire(t, claim)
	mustExec(t, w.conn, "UPDATE tendril.pulse SET reap_not_before = clock_timestamp() + "+ahead)
	if n := w.reap(t); n != 0 {
		t.Fatalf("reap() = %d, want 0", n)
	}
	w.leasePasses(t)
	if n := w.reap(t); n != 1 || w.statusAndCode(t, id) != "FAILED/agent_lost" {
		t.Errorf("reap() one lease later = %d, status %s, want the run given up", n, w.statusAndCode(t, id))
	}
}

// A heartbeat in the future is no sign of life: the name and the data
// directory of an agent that is gone are free.
func TestRegisterAfterAStepBack(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	gone := w.newAgent(t, "one")
	w.stepBack(t)
	heir := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "one", host: "elsewhere.example"}
	if err := heir.register(t); err != nil {
		t.Errorf("register the name: %v", err)
	}
	moved := &agent{w: w, instance: gone.instance, boot: uuid.New(), name: "moved", host: "elsewhere.example"}
	if err := moved.register(t); err != nil {
		t.Errorf("register the data directory: %v", err)
	}
	if got := one[bool](t, w.conn, "SELECT last_seen_at <= clock_timestamp() FROM public.clusters"); !got {
		t.Error("the cluster is still seen in the future")
	}
}

// A cluster seen in the future, by an agent that is gone, is not online.
func TestConnectivityAfterAStepBack(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for interval, want := range map[string]string{
		"0": "ONLINE", "-40 s": "ONLINE", "40 s": "ONLINE", "-50 s": "STALE", "50 s": "STALE", "-6 min": "OFFLINE", "1 h": "OFFLINE",
	} {
		mustExec(t, w.conn, "BEGIN") // in which now() stays
		mustExec(t, w.conn, "UPDATE public.clusters SET last_seen_at = now() + $1::interval", interval)
		if got := one[string](t, w.conn, "SELECT connectivity FROM public.cluster_overview"); got != want {
			t.Errorf("connectivity of a cluster seen at %s from now = %s, want %s", interval, got, want)
		}
		mustExec(t, w.conn, "ROLLBACK")
	}
}

// Lines are told of although the last notification lies in the future.
func TestLogIsToldAfterAStepBack(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	if _, err := agent.lines(t, claim, 1, "before\n"); err != nil {
		t.Fatal(err)
	}
	w.stepBack(t)
	mustExec(t, w.conn, "LISTEN tendril_provision")
	if _, err := agent.lines(t, claim, 2, "after\n"); err != nil {
		t.Fatal(err)
	}
	if got, want := w.notification(t), id.String(); got != want {
		t.Errorf("notification = %s, want %s: the provision's", got, want)
	}
	if got := one[bool](t, w.conn, "SELECT notified_at <= clock_timestamp() FROM tendril.log_heads"); !got {
		t.Error("the next notification is withheld till the clock is ahead again")
	}
}

// A run that ended in the future takes its late lines.
func TestLateLinesAfterAStepBack(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	w.stepBack(t)
	if next, err := agent.lines(t, claim, 1, "late\n"); err != nil || next != 2 {
		t.Errorf("late line = %d, %v, want 2", next, err)
	}
}
