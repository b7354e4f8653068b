package sql_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// away lets a time pass in which nobody reaches the database. A test cannot
// move the clock, so it moves every stamp into the past.
func (w *world) away(t *testing.T, interval string) {
	t.Helper()
	for _, statement := range awayFor {
		mustExec(t, w.conn, statement, interval)
	}
}

var awayFor = []string{
	"UPDATE tendril.pulse SET stamped_at = stamped_at - $1::interval, reap_not_before = reap_not_before - $1::interval",
	"UPDATE tendril.claims SET lease_until = lease_until - $1::interval WHERE state = 'running'",
	"UPDATE public.agents SET last_heartbeat_at = last_heartbeat_at - $1::interval",
	"UPDATE public.workspaces SET due_at = due_at - $1::interval",
}

// reapers are all ways in which a lease may come to be given up.
var reapers = map[string]func(t *testing.T, w *world, other *agent){
	"timer": func(t *testing.T, w *world, _ *agent) { w.reap(t) },
	"heartbeat of another agent": func(t *testing.T, _ *world, other *agent) {
		if _, err := other.heartbeat(t); err != nil {
			t.Fatal(err)
		}
	},
}

// Outages that are each too short to put reaping off must not add up to a lost
// run: the agent had no chance to renew its lease.
func TestShortOutagesDoNotAddUp(t *testing.T) {
	t.Parallel()
	for name, reap := range reapers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newContract(t)
			agent, other := w.newAgent(t, "one"), w.newAgent(t, "two")
			id := w.deploy(t, w.operator, snapshot("a"))
			claim, _ := agent.mustClaim(t)
			for range 3 {
				w.away(t, "85 seconds") // less than three quarters of the lease
				reap(t, w, other)
				if got := w.statusAndCode(t, id); got != "PROCESSING" {
					t.Fatalf("status = %s, want PROCESSING: the agent had no chance to renew its lease", got)
				}
			}
			if p, err := agent.heartbeat(t, claim); err != nil || slices.Contains(p.Lost, claim) {
				t.Fatalf("heartbeat = %+v, %v, want the claim kept", p, err)
			}
			// Whoever never comes back is given up all the same.
			for n := 0; w.status(t, id) == "PROCESSING"; n++ {
				if n == 8 {
					t.Fatal("the lost run is never given up")
				}
				w.away(t, "60 seconds") // pg_cron's pace, where no agent is left
				reap(t, w, other)
			}
		})
	}
}

// A claim that another call has locked just when the database is back gets its
// time as well.
func TestOutageWhileAClaimIsLocked(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	other, err := pgx.ConnectConfig(t.Context(), w.conn.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context()) //nolint:errcheck // the test is over
	for range 3 {
		w.away(t, "85 seconds")
		mustExec(t, other, "BEGIN")
		mustExec(t, other, "SELECT FROM tendril.claims WHERE id = $1 FOR NO KEY UPDATE", claim)
		w.reap(t)
		mustExec(t, other, "ROLLBACK")
		w.reap(t)
		if got := w.statusAndCode(t, id); got != "PROCESSING" {
			t.Fatalf("status = %s, want PROCESSING: the agent had no chance to renew its lease", got)
		}
	}
}

// A reaper that stood still after its decision (a machine that was suspended)
// gives up only what was over when it decided.
func TestReaperThatStoodStill(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	w.expire(t, claim)
	const giveUp = "SELECT tendril.reap_claim(id, workspace_id, lease_until + $2::interval) FROM tendril.claims WHERE id = $1"
	if n := one[int](t, w.conn, giveUp, claim, "-1 second"); n != 0 || w.status(t, id) != "PROCESSING" {
		t.Errorf("reap_claim, decided before the lease ran out = %d, status %s, want the run left alone", n, w.status(t, id))
	}
	if n := one[int](t, w.conn, giveUp, claim, "1 second"); n != 1 {
		t.Errorf("reap_claim, decided after the lease ran out = %d, want 1", n)
	}
}

// Nobody could approve while the database was away, so the approval is not
// refused as too late before the pulse says that time counts again.
func TestApprovalAfterAnOutage(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	agent.awaits(t)
	w.away(t, "91 days")
	if err := w.approve(t, w.operator, id); err != nil {
		t.Errorf("approve_provision = %v, want the approval taken", err)
	}
}

// Reaping happens in one place: nothing but reap() gives a claim up, and
// nothing but the one decision lets it.
func TestOneFunctionDecidesAboutLeases(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for what, want := range map[string][]string{
		"agent_lost":          {"end_provision", "guard_status", "inspection_over", "may_pass", "reap_claim", "update_provision_status"},
		"tendril.reap_claim(": {"reap"},
		"tendril.beat(":       {"approve_provision", "reap"},
		"tendril.settle_due(": {"reap"},
	} {
		rows, err := w.conn.Query(t.Context(), "SELECT p.proname FROM pg_proc p WHERE p.pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND strpos(p.prosrc, $1) > 0 ORDER BY 1", what)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, function := range got {
			if !slices.Contains(want, function) {
				t.Errorf("%s is in %s, want it in none but %v", what, function, want)
			}
		}
		if len(got) == 0 {
			t.Errorf("%s is in no function", what)
		}
	}
}
