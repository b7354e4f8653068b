package sql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// attemptOf is the automatic attempt that was made of a provision; uuid.Nil for
// none.
func (w *world) attemptOf(t *testing.T, provision uuid.UUID) (id uuid.UUID) {
	t.Helper()
	err := w.conn.QueryRow(t.Context(), "SELECT id FROM public.provisions WHERE retry_of = $1 AND attempt > 1", provision).Scan(&id)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	return id
}

// comeDue lets everything be due, and somebody see it.
func (w *world) comeDue(t *testing.T) {
	t.Helper()
	mustExec(t, w.conn, "UPDATE public.workspaces SET due_at = now() - interval '1 second' WHERE due_at IS NOT NULL")
	w.reap(t)
}

// What failed before its apply began, through no fault of the template's, is
// tried again as often as the snapshot says, each time by a provision of its own.
func TestAttempts(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.policy(t, `{"approval": "destructive"}`)
	first := mustAs[uuid.UUID](t, w, w.operator, "INSERT INTO public.provisions (cluster_id, config_snapshot, operation, priority) VALUES ($1, $2, 'destroy', 3) RETURNING id",
		w.cluster, snapshotWith("a", `"max_attempts": 3`))
	behind := w.deploy(t, w.adminID, snapshot("a"))
	last := first
	for attempt := 1; attempt <= 3; attempt++ {
		claim := uuid.New()
		var got string
		if err := agent.call(t, &got, "SELECT concat_ws(' ', provision_id, attempt, operation) FROM public.fetch_next_provision($1, $2, $3, $4)", w.tokenHash, agent.instance, agent.boot, claim); err != nil || got != fmt.Sprintf("%s %d destroy", last, attempt) {
			t.Fatalf("claim = %s, %v, want attempt %d, %s", got, err, attempt, last)
		}
		agent.mustReport(t, claim, "FAILED", `{"error_code": "init_failed", "error_message": "no answer"}`)
		if got := w.statusAndCode(t, last); got != "FAILED/init_failed" {
			t.Errorf("attempt %d = %s, want FAILED/init_failed", attempt, got)
		}
		next := w.attemptOf(t, last)
		if attempt == 3 {
			if next != uuid.Nil {
				t.Errorf("attempts = one more, %s, want three", next)
			}
			break
		}
		wait := []string{"", "30 seconds", "1 minute"}[attempt]
		if got := one[string](t, w.conn, `SELECT concat_ws(' ', p.status, p.operation, p.priority, p.attempt, p.requested_by = $2, p.config_snapshot = o.config_snapshot,
				p.not_before - p.created_at BETWEEN $3::interval AND $3::interval + interval '20 seconds', w.due_at = p.not_before, w.reserved_by = p.id, w.head_id IS NULL)
			FROM public.provisions p JOIN public.provisions o ON o.id = p.retry_of JOIN public.workspaces w ON w.id = p.workspace_id WHERE p.id = $1`, next, w.operator, wait); got != fmt.Sprintf("QUEUED destroy 3 %d t t t t t t", attempt+1) {
			t.Errorf("attempt %d = %s, want the same again, %s later, its workspace kept for it", attempt+1, got, wait)
		}
		// Nothing goes before it, however urgent, and it does not go before its time.
		if got, err := agent.claim(t, uuid.New()); err != nil || got != uuid.Nil {
			t.Errorf("claim while attempt %d waits = %s, %v, want nothing", attempt+1, got, err)
		}
		w.reap(t)
		if got, err := agent.claim(t, uuid.New()); err != nil || got != uuid.Nil {
			t.Errorf("claim before attempt %d is due = %s, %v, want nothing", attempt+1, got, err)
		}
		mustExec(t, w.conn, "LISTEN tendril_work")
		w.comeDue(t)
		if got := w.notification(t); got != w.cluster.String() {
			t.Errorf("notification = %s, want the cluster: agents are woken", got)
		}
		mustExec(t, w.conn, "UNLISTEN tendril_work")
		last = next
	}
	if _, got := agent.mustClaim(t); got != behind {
		t.Errorf("claim = %s, want %s: the workspace is free", got, behind)
	}
	if got := w.log(t, first); !strings.Contains(got, "Retry in 30.0 s as run 3 (attempt 2 of 3)") {
		t.Errorf("log = %q, want it to tell of the next attempt", got)
	}
	if got := w.log(t, last); !strings.Contains(got, "Attempt 3 of 3: run 3 failed (init_failed)") {
		t.Errorf("log = %q, want it to tell of the one before", got)
	}
}

// Which failures are tried again, and from which stage on no more.
func TestWhatIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	fails := func(code, snapshot string, before func(claim, id uuid.UUID)) (retried bool) {
		t.Helper()
		id := w.deploy(t, w.operator, snapshot)
		claim, got := agent.mustClaim(t)
		if got != id {
			t.Fatalf("claim = %s, want %s", got, id)
		}
		before(claim, id)
		agent.mustReport(t, claim, "FAILED", fmt.Sprintf(`{"error_code": %q}`, code))
		next := w.attemptOf(t, id)
		if next != uuid.Nil {
			mustAs[string](t, w, w.operator, "SELECT public.cancel_provision($1)", next)
		}
		return next != uuid.Nil
	}
	nothing := func(_, _ uuid.UUID) {}
	twice := snapshotWith("a", `"max_attempts": 2`)
	for code, want := range map[string]bool{
		"agent_drained": true, "exec_died": true, "spool_failed": true, "checkout_failed": true, "init_failed": true, "engine_missing": true, "state_locked": true, "internal": true,
		"plan_failed": false, "apply_failed": false, "timed_out": false, "variables_invalid": false, "tag_moved": false, "policy_refused": false, "state_unsaved": false, "": false,
	} {
		if got := fails(code, twice, nothing); got != want {
			t.Errorf("%q is tried again: %t, want %t", code, got, want)
		}
	}
	if fails("init_failed", snapshot("a"), nothing) || fails("init_failed", snapshotWith("a", `"max_attempts": 1`), nothing) {
		t.Error("tried again, want it only where the snapshot says so")
	}
	if fails("exec_died", twice, func(claim, _ uuid.UUID) { agent.mustReport(t, claim, "PROCESSING", applying) }) {
		t.Error("tried again after its apply began")
	}
	if fails("exec_died", twice, func(_, id uuid.UUID) { mustAs[string](t, w, w.operator, "SELECT public.cancel_provision($1)", id) }) {
		t.Error("tried again although it was to be cancelled")
	}
}

// Leases that run out and agents that start anew are failures like the others.
func TestLostRunIsTriedAgain(t *testing.T) {
	t.Parallel()
	twice := snapshotWith("a", `"max_attempts": 2`)
	for name, lose := range map[string]func(*testing.T, *agent, uuid.UUID){
		"lease": func(t *testing.T, a *agent, claim uuid.UUID) { a.w.expire(t, claim); a.w.reap(t) },
		"restart": func(t *testing.T, a *agent, _ uuid.UUID) {
			a.boot = uuid.New()
			if err := a.register(t); err != nil {
				t.Fatal(err)
			}
			a.sweep(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newContract(t)
			agent := w.newAgent(t, "one")
			id := w.deploy(t, w.operator, twice)
			claim, _ := agent.mustClaim(t)
			lose(t, agent, claim)
			next := w.attemptOf(t, id)
			if got := w.status(t, id); got != "FAILED" || next == uuid.Nil {
				t.Fatalf("provision = %s, attempt %s, want FAILED and another", got, next)
			}
			w.comeDue(t)
			if claim, got := agent.mustClaim(t); got != next {
				t.Errorf("claim = %s, want the attempt %s", got, next)
			} else {
				agent.mustReport(t, claim, "PROCESSING", applying)
				lose(t, agent, claim)
			}
			if got := w.attemptOf(t, next); got != uuid.Nil {
				t.Errorf("another attempt, %s, after an apply began", got)
			}
		})
	}
}

// What a run that was given up reports after all ends the attempt that waits,
// unless it has failed in a way that may pass.
func TestLateReportAndAttempt(t *testing.T) {
	t.Parallel()
	for report, want := range map[string]string{
		`SUCCESS {}`: "CANCELLED", `FAILED {"error_code": "plan_failed"}`: "CANCELLED", `CANCELLED {"error_code": "cancelled"}`: "CANCELLED",
		`FAILED {"error_code": "init_failed"}`: "QUEUED",
	} {
		t.Run(report, func(t *testing.T) {
			t.Parallel()
			w := newContract(t)
			agent := w.newAgent(t, "one")
			id := w.deploy(t, w.operator, snapshotWith("a", `"max_attempts": 5`))
			claim, _ := agent.mustClaim(t)
			w.expire(t, claim)
			w.reap(t)
			next := w.attemptOf(t, id)
			wantRefusal(t, agent.report(t, claim, "AWAITING_APPROVAL", `{"plan_digest": "`+aPlan+`"}`), "PT409", "claim_lost")
			status, detail, _ := strings.Cut(report, " ")
			agent.mustReport(t, claim, status, detail)
			if got := w.status(t, id); got != status {
				t.Errorf("provision = %s, want %s", got, status)
			}
			if got := w.status(t, next); got != want {
				t.Errorf("attempt = %s, want %s", got, want)
			}
			if got := one[int](t, w.conn, "SELECT count(*) FROM public.provisions"); got != 2 {
				t.Errorf("provisions = %d, want 2: it is tried once more, not twice", got)
			}
			behind := w.deploy(t, w.operator, snapshot("a"))
			w.comeDue(t)
			if _, got := agent.mustClaim(t); want == "QUEUED" && got != next || want != "QUEUED" && got != behind {
				t.Errorf("claim = %s, want what is left: attempt %s, behind it %s", got, next, behind)
			}
		})
	}
}

// An attempt that cannot be queued does not keep the failure from being stored.
func TestAttemptThatCannotBeMade(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshotWith("a", `"max_attempts": 2`))
	claim, _ := agent.mustClaim(t)
	mustExec(t, w.conn, "UPDATE public.workspaces SET repo = 'https://git.example/another', path = ''")
	agent.mustReport(t, claim, "FAILED", `{"error_code": "init_failed"}`)
	if got := w.statusAndCode(t, id); got != "FAILED/init_failed" {
		t.Errorf("provision = %s, want FAILED/init_failed", got)
	}
	if got := w.log(t, id); !strings.Contains(got, "could not be queued: workspace") {
		t.Errorf("log = %q, want it to say why there is no attempt", got)
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.workspaces WHERE reserved_by IS NOT NULL OR due_at IS NOT NULL"); got != 0 {
		t.Errorf("workspaces kept for something = %d, want 0", got)
	}
}

// Who cannot wait cancels the attempt; retrying what failed answers it.
func TestCancelledAttempt(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshotWith("a", `"max_attempts": 2`))
	claim, _ := agent.mustClaim(t)
	behind := w.deploy(t, w.operator, snapshot("a"))
	agent.mustReport(t, claim, "FAILED", `{"error_code": "state_locked"}`)
	next := w.attemptOf(t, id)
	if got := mustAs[uuid.UUID](t, w, w.operator, "SELECT public.retry_provision($1)", id); got != next {
		t.Errorf("retry_provision = %s, want the attempt that waits, %s", got, next)
	}
	mustAs[string](t, w, w.operator, "SELECT public.cancel_provision($1)", next)
	if _, got := agent.mustClaim(t); got != behind {
		t.Errorf("claim = %s, want %s at once", got, behind)
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.workspaces WHERE due_at IS NOT NULL"); got != 0 {
		t.Errorf("workspaces with something due = %d, want 0", got)
	}
}

// A clock that was ahead has an attempt wait for as long; put right, it is due.
func TestAttemptAfterAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshotWith("a", `"max_attempts": 2`))
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "FAILED", `{"error_code": "state_locked"}`)
	next := w.attemptOf(t, id)
	w.deploy(t, w.operator, snapshot("b"))
	awaiting := agent.awaits(t)
	mustExec(t, w.conn, "UPDATE public.provisions SET not_before = not_before + interval '1 year' WHERE id = $1", next)
	mustExec(t, w.conn, "UPDATE public.workspaces SET due_at = (SELECT not_before FROM public.provisions WHERE id = $1) WHERE reserved_by = $1", next)
	mustExec(t, w.conn, "UPDATE tendril.pulse SET stamped_at = clock_timestamp() + interval '1 year'")
	w.reap(t) // sees that the clock was put right, and puts all off
	if got, err := agent.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("claim = %s, %v, want nothing yet", got, err)
	}
	mustExec(t, w.conn, "UPDATE tendril.pulse SET reap_not_before = '-infinity'")
	w.reap(t)
	if _, got := agent.mustClaim(t); got != next {
		t.Errorf("claim = %s, want the attempt %s", got, next)
	}
	if got := w.status(t, awaiting); got != "AWAITING_APPROVAL" {
		t.Errorf("what awaits approval = %s, want it left alone", got)
	}
}

// What cannot be settled does not keep what is due after it waiting.
func TestWhatIsDueIsNotHeldUp(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.policy(t, `{"approval": "always"}`)
	var awaiting [2]uuid.UUID
	for i := range awaiting {
		w.deploy(t, w.operator, snapshot(fmt.Sprintf("w%d", i)))
		awaiting[i] = agent.awaits(t)
	}
	const due = "UPDATE public.workspaces SET due_at = now() - interval '1 hour' + interval '1 second' * substr(name, 2)::int WHERE due_at IS NOT NULL"
	mustExec(t, w.conn, due)
	mustExec(t, w.conn, fmt.Sprintf(`CREATE FUNCTION public.theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
		CREATE TRIGGER theirs BEFORE UPDATE OF status ON public.provisions FOR EACH ROW WHEN (NEW.id = '%s') EXECUTE FUNCTION public.theirs()`, awaiting[0]))
	for range 2 {
		mustExec(t, w.conn, "SELECT tendril.settle_due(1)")
	}
	if first, second := w.status(t, awaiting[0]), w.status(t, awaiting[1]); first != "AWAITING_APPROVAL" || second != "CANCELLED" {
		t.Errorf("statuses = %s, %s, want the first as it was and the second CANCELLED", first, second)
	}
	mustExec(t, w.conn, "DROP TRIGGER theirs ON public.provisions")
	mustExec(t, w.conn, due)
	mustExec(t, w.conn, "SELECT tendril.settle_due(1)")
	if got := w.status(t, awaiting[0]); got != "CANCELLED" {
		t.Errorf("status once it can be settled = %s, want CANCELLED", got)
	}
}
