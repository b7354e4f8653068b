package sql_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/provision"
)

// Every pair of states, against the machine that the Go side draws.
func TestStatusMachine(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	id := w.deploy(t, w.operator, snapshot("a"))
	all := []provision.Status{provision.Queued, provision.Processing, provision.AwaitingApproval, provision.Success, provision.Failed, provision.Cancelled}
	for _, from := range all {
		for _, to := range all {
			for _, with := range []struct{ code, plan, approved string }{{code: "apply_failed"}, {code: "agent_lost"}, {plan: aPlan}, {plan: aPlan, approved: aPlan}, {plan: aPlan, approved: "another"}} {
				// These arrows depend on more than the states.
				late := from == provision.Failed && with.code == "agent_lost" && to.Terminal()
				unplanned := from == provision.Processing && to == provision.AwaitingApproval && with.plan == ""
				unapproved := from == provision.AwaitingApproval && to == provision.Queued && with.approved != aPlan
				taken := from == provision.Processing && to == provision.Queued // nobody has set it down
				allowed := from == to || from.CanBecome(to) && !unplanned && !unapproved && !taken || late
				err := pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
					if _, err := tx.Exec(t.Context(), "SET LOCAL session_replication_role = replica"); err != nil { // to get to the state at all
						return err
					}
					if _, err := tx.Exec(t.Context(), "UPDATE public.provisions SET status = $2, error_code = nullif($3, ''), plan_digest = nullif($4, ''), approved_plan = nullif($5, '') WHERE id = $1",
						id, from, with.code, with.plan, with.approved); err != nil {
						return err
					}
					if _, err := tx.Exec(t.Context(), "SET LOCAL session_replication_role = origin"); err != nil {
						return err
					}
					_, err := tx.Exec(t.Context(), "UPDATE public.provisions SET status = $2 WHERE id = $1", id, to)
					return err
				})
				if (err == nil) != allowed {
					t.Errorf("%s (%+v) → %s: error %v, want allowed %t", from, with, to, err, allowed)
				} else if err != nil {
					wantRefusal(t, err, "PT409", "illegal_transition")
				}
			}
		}
	}
}

func TestCancelQueued(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	first, second := w.deploy(t, w.operator, snapshot("a")), w.deploy(t, w.operator, snapshot("a"))
	cancel := func(user uuid.UUID) (status string, err error) {
		err = w.try(t, "authenticated", user, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), "SELECT public.cancel_provision($1)", first).Scan(&status)
		})
		return status, err
	}
	for _, user := range []uuid.UUID{w.viewer, w.stranger} {
		_, err := cancel(user)
		wantRefusal(t, err, "PT404", "provision_not_found")
	}
	if status, err := cancel(w.operator); err != nil || status != "CANCELLED" {
		t.Fatalf("cancel_provision(queued) = %s, %v, want CANCELLED", status, err)
	}
	if status, err := cancel(w.operator); err != nil || status != "CANCELLED" {
		t.Errorf("cancel_provision(again) = %s, %v, want CANCELLED: the reply may have been lost", status, err)
	}
	if _, got := agent.mustClaim(t); got != second {
		t.Errorf("claim = %s, want %s: the head moved on", got, second)
	}
	if got := w.log(t, first); got != "1 SYSTEM Cancelled before it began.\n" {
		t.Errorf("log = %q, want one SYSTEM line", got)
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE action = 'cancel_provision' AND actor = $1", w.operator); got != 1 {
		t.Errorf("audit events = %d, want 1", got)
	}
}

// A success reported first wins over a cancel, and a cancel refuses the apply.
func TestCancelRunning(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	if got := one[string](t, w.conn, "SELECT public.cancel_provision($1)", id); got != "PROCESSING" {
		t.Errorf("cancel_provision(running) = %s, want PROCESSING", got)
	}
	one[string](t, w.conn, "SELECT public.cancel_provision($1)", id) // again: harmless
	if got := strings.Count(w.log(t, id), "Cancel requested."); got != 1 {
		t.Errorf("log says so %d times, want once", got)
	}
	p, err := agent.heartbeat(t, claim)
	if err != nil || !slices.Contains(p.Cancel, claim) || len(p.Lost) != 0 {
		t.Errorf("heartbeat = %+v, %v, want the cancel", p, err)
	}
	wantRefusal(t, agent.report(t, claim, "PROCESSING", applying), "PT409", "cancel_requested")
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	if got := w.status(t, id); got != "SUCCESS" {
		t.Errorf("status = %s, want SUCCESS", got)
	}
}

func TestAwaitingApprovalReservesTheWorkspace(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	mustExec(t, w.conn, "SELECT tendril.await_approval($1, $2)", claim, aPlan)
	other := w.deploy(t, w.operator, snapshot("a"))
	mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, 100)", w.cluster, snapshot("a"))
	if got, err := agent.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("claim on a reserved workspace = %s, %v, want nothing", got, err)
	}
	if got := one[string](t, w.conn, "SELECT public.cancel_provision($1)", id); got != "CANCELLED" {
		t.Errorf("cancel_provision(awaiting approval) = %s, want CANCELLED", got)
	}
	if _, got := agent.mustClaim(t); got == other || got == uuid.Nil {
		t.Errorf("claim after the reservation = %s, want the urgent one", got)
	}
}

func TestReportsAreChecked(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	for _, test := range []struct{ status, detail, state, reason string }{
		{"QUEUED", `{}`, "PT422", "bad_status"},
		{"DONE", `{}`, "PT422", "bad_status"},
		{"PROCESSING", `[]`, "PT422", "bad_detail"},
		{"PROCESSING", `{"commit": "main"}`, "PT422", "bad_detail"},
		{"PROCESSING", `{"percent": 101}`, "PT422", "bad_detail"},
		{"PROCESSING", `{"percent": "much"}`, "PT422", "bad_detail"},
		{"PROCESSING", fmt.Sprintf(`{"plan": {"x": %q}}`, strings.Repeat("x", 1<<20)), "PT413", "detail_too_large"},
	} {
		wantRefusal(t, agent.report(t, claim, test.status, test.detail), test.state, test.reason)
	}
	wantRefusal(t, agent.report(t, uuid.New(), "SUCCESS", `{}`), "PT409", "claim_lost")
	if got := w.status(t, id); got != "PROCESSING" {
		t.Errorf("status = %s, want PROCESSING: a refused report changes nothing", got)
	}
}

func TestLogsAreChecked(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	for name, test := range map[string]struct{ first, chunks, state, reason string }{
		"too many":   {"1", "(SELECT jsonb_agg(jsonb_build_object('stream', 'STDOUT', 'text', 'x', 'at', now())) FROM generate_series(1, 129))", "PT413", "too_many_chunks"},
		"too large":  {"1", "(SELECT jsonb_agg(jsonb_build_object('stream', 'STDOUT', 'text', repeat('x', 65000), 'at', now())) FROM generate_series(1, 17))", "PT413", "chunks_too_large"},
		"bad stream": {"1", `'[{"stream": "STDLOG", "text": "x", "at": "2026-01-01T00:00:00Z"}]'`, "PT422", "bad_chunks"},
		"no text":    {"1", `'[{"stream": "STDOUT", "at": "2026-01-01T00:00:00Z"}]'`, "PT422", "bad_chunks"},
		"not a list": {"1", `'{}'`, "PT422", "bad_chunks"},
		"number 0":   {"0", `'[]'`, "PT422", "bad_chunks"},
	} {
		var next int64
		err := agent.call(t, &next, "SELECT public.insert_provision_log($1, $2, "+test.first+", "+test.chunks+")", w.tokenHash, claim)
		pgErr := wantRefusal(t, err, test.state, test.reason)
		if pgErr == "" {
			t.Errorf("%s: no message", name)
		}
	}
	if next, err := agent.lines(t, claim, 1, "a\n"); err != nil || next != 2 {
		t.Errorf("lines = %d, %v, want 2: what was refused took no number", next, err)
	}
	w.log(t, id)
}

func TestCancelEnded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	_, err := w.conn.Exec(t.Context(), "SELECT public.cancel_provision($1)", id)
	wantRefusal(t, err, "PT409", "already_ended")
}

// Apply is acknowledged only where the commit was checked, and never for a plan.
func TestApplyNeedsACommit(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	wantRefusal(t, agent.report(t, claim, "PROCESSING", `{"stage": "apply"}`), "PT409", "commit_missing")
	wantRefusal(t, agent.report(t, claim, "PROCESSING", `{"stage": "elsewhere"}`), "PT422", "bad_detail")
	mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot, operation) VALUES ($1, $2, 'plan')", w.cluster, snapshot("b"))
	plan, _ := agent.mustClaim(t)
	wantRefusal(t, agent.report(t, plan, "PROCESSING", applying), "PT409", "operation_refused")
}

// Numbered reports are stored once.
func TestReportsAreStoredOnce(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	for _, n := range []int{1, 2, 2, 1, 3} {
		agent.mustReport(t, claim, "PROCESSING", fmt.Sprintf(`{"n": %d, "events": [{"kind": "resource_started", "at": "2026-01-02T03:04:05Z"}]}`, n))
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.provision_events WHERE provision_id = $1", id); got != 3 {
		t.Errorf("events = %d, want 3: one for each report", got)
	}
}

// Lines are taken for a day after the end, and never by an older claim.
func TestLateLines(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	if next, err := agent.lines(t, claim, 1, "late\n"); err != nil || next != 2 {
		t.Errorf("late line = %d, %v, want 2", next, err)
	}
	mustExec(t, w.conn, "UPDATE tendril.claims SET ended_at = clock_timestamp() - interval '25 hours'")
	_, err := agent.lines(t, claim, 2, "too late\n")
	wantRefusal(t, err, "PT409", "claim_lost")
}

// A later claim of the same provision has the log; the one before is too late.
func TestNewerClaimHasTheLog(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	older, id := agent.mustClaim(t)
	if _, err := agent.lines(t, older, 1, "before\n"); err != nil {
		t.Fatal(err)
	}
	mustExec(t, w.conn, "SELECT tendril.await_approval($1, $2)", older, aPlan)
	mustExec(t, w.conn, "SELECT public.approve_provision($1, $2)", id, aPlan)
	newer, again := agent.mustClaim(t)
	if again != id {
		t.Fatalf("claimed %s, want %s again", again, id)
	}
	_, err := agent.lines(t, older, 2, "too late\n")
	wantRefusal(t, err, "PT409", "claim_lost")
	if next, err := agent.lines(t, newer, 1, "after\n"); err != nil || next != 2 {
		t.Errorf("lines of the newer claim = %d, %v, want 2", next, err)
	}
	if got := w.log(t, id); got != "1 STDOUT before\n2 SYSTEM The plan needs approval.\n3 SYSTEM The plan was approved.\n4 STDOUT after\n" {
		t.Errorf("log = %q, want both claims' lines in one numbering", got)
	}
}
