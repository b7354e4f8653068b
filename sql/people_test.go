package sql_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// person calls a function of the contract as somebody and returns its answer.
func person[T any](t *testing.T, w *world, user uuid.UUID, query string, args ...any) (answer T, err error) {
	t.Helper()
	err = w.try(t, "authenticated", user, func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), query, args...).Scan(&answer) })
	return answer, err
}

// does calls a function that returns nothing.
func (w *world) does(t *testing.T, user uuid.UUID, query string, args ...any) error {
	t.Helper()
	return w.try(t, "authenticated", user, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), query, args...)
		return err
	})
}

// audited is the newest entry about an object: who, what, and why.
func (w *world) audited(t *testing.T, object uuid.UUID) string {
	t.Helper()
	return one[string](t, w.conn, `SELECT concat_ws(' ', CASE actor WHEN $2 THEN 'viewer' WHEN $3 THEN 'operator' WHEN $4 THEN 'admin' END, action, detail)
		FROM public.audit_events WHERE object_id = $1 ORDER BY id DESC LIMIT 1`, object, w.viewer, w.operator, w.adminID)
}

// newAwaiting is a provision whose plan awaits approval, with another deploy of
// the workspace behind it.
func newAwaiting(t *testing.T) (w *world, a *agent, awaiting, behind uuid.UUID) {
	t.Helper()
	w = newContract(t)
	a = w.newAgent(t, "one")
	awaiting = w.deploy(t, w.operator, snapshot("a"))
	claim, _ := a.mustClaim(t)
	mustExec(t, w.conn, "SELECT tendril.await_approval($1, $2)", claim, aPlan)
	return w, a, awaiting, one[uuid.UUID](t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, 100) RETURNING id", w.cluster, snapshot("a"))
}

func TestApprove(t *testing.T) {
	t.Parallel()
	w, agent, id, behind := newAwaiting(t)
	const approve = "SELECT public.approve_provision($1, $2)"
	for _, plan := range []any{strings.Repeat("e", 64), "", nil} {
		_, err := person[string](t, w, w.operator, approve, id, plan)
		wantRefusal(t, err, "PT409", "plan_changed")
	}
	if claimed, err := agent.claim(t, uuid.New()); err != nil || claimed != uuid.Nil {
		t.Errorf("claim before the approval = %s, %v, want nothing", claimed, err)
	}
	mustExec(t, w.conn, "LISTEN tendril_work")
	for range 2 { // the second is a repeat after a lost reply
		if got, err := person[string](t, w, w.operator, approve, id, aPlan); err != nil || got != "QUEUED" {
			t.Errorf("approve_provision = %s, %v, want QUEUED", got, err)
		}
	}
	if got := w.notification(t); got != w.cluster.String() {
		t.Errorf("woken = %s, want the cluster's agents", got)
	}
	if got := one[string](t, w.conn, "SELECT concat_ws(' ', approved_plan, approved_by = $2, approved_at > created_at) FROM public.provisions WHERE id = $1", id, w.operator); got != aPlan+" t t" {
		t.Errorf("recorded = %s, want the plan, who and when", got)
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE action = 'approve_provision'"); got != 1 || !strings.Contains(w.audited(t, id), "operator approve_provision") || !strings.Contains(w.audited(t, id), aPlan) {
		t.Errorf("audited %d times, last %s, want once: who approved which plan", got, w.audited(t, id))
	}
	claim, claimed := agent.mustClaim(t)
	if claimed != id {
		t.Errorf("claim = %s, want the approved %s before what is more urgent", claimed, id)
	}
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	if got, err := person[string](t, w, w.operator, approve, id, aPlan); err != nil || got != "SUCCESS" {
		t.Errorf("approve_provision once more = %s, %v, want SUCCESS", got, err)
	}
	_, err := person[string](t, w, w.operator, approve, behind, aPlan)
	wantRefusal(t, err, "PT409", "not_awaiting_approval")
	if _, claimed := agent.mustClaim(t); claimed != behind {
		t.Errorf("claim = %s, want %s now that the plan is applied", claimed, behind)
	}
}

func TestReject(t *testing.T) {
	t.Parallel()
	w, agent, id, behind := newAwaiting(t)
	mustExec(t, w.conn, "LISTEN tendril_work")
	for range 2 {
		if got, err := person[string](t, w, w.operator, "SELECT public.reject_provision($1, $2)", id, "too \n expensive"); err != nil || got != "CANCELLED" {
			t.Errorf("reject_provision = %s, %v, want CANCELLED", got, err)
		}
	}
	if got := w.notification(t); got != w.cluster.String() {
		t.Errorf("woken = %s, want the cluster's agents", got)
	}
	if got, want := w.statusAndCode(t, id), "CANCELLED/rejected"; got != want {
		t.Errorf("status = %s, want %s", got, want)
	}
	for what, text := range map[string]string{
		"log": w.log(t, id), "message": one[string](t, w.conn, "SELECT error_message FROM public.provisions WHERE id = $1", id), "audit": w.audited(t, id),
	} {
		if !strings.Contains(text, "too expensive") {
			t.Errorf("%s = %q, want the reason in it", what, text)
		}
	}
	if _, got := agent.mustClaim(t); got != behind {
		t.Errorf("claim = %s, want %s: the reservation has ended", got, behind)
	}
	_, err := person[string](t, w, w.operator, "SELECT public.reject_provision($1)", behind)
	wantRefusal(t, err, "PT409", "not_awaiting_approval")
	_, err = person[string](t, w, w.operator, "SELECT public.approve_provision($1, $2)", id, aPlan)
	wantRefusal(t, err, "PT409", "not_awaiting_approval")
}

// However a provision ends, and by whose hand, the workspace is not reserved for it
// any more.
func TestReservationsEndWithTheirProvision(t *testing.T) {
	t.Parallel()
	const byHand = "UPDATE public.provisions SET status = 'CANCELLED', finished_at = now() WHERE id = $1"
	for name, end := range map[string]func(t *testing.T, w *world, id uuid.UUID){
		"cancelled": func(t *testing.T, w *world, id uuid.UUID) {
			one[string](t, w.conn, "SELECT public.cancel_provision($1)", id)
		},
		"rejected": func(t *testing.T, w *world, id uuid.UUID) {
			one[string](t, w.conn, "SELECT public.reject_provision($1)", id)
		},
		"by hand": func(t *testing.T, w *world, id uuid.UUID) { mustExec(t, w.conn, byHand, id) },
		"by hand, approved": func(t *testing.T, w *world, id uuid.UUID) {
			one[string](t, w.conn, "SELECT public.approve_provision($1, $2)", id, aPlan)
			mustExec(t, w.conn, byHand, id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, agent, id, behind := newAwaiting(t)
			end(t, w, id)
			if _, got := agent.mustClaim(t); got != behind {
				t.Errorf("claim = %s, want %s, which waited behind it", got, behind)
			}
			mustExec(t, w.conn, "DELETE FROM public.provisions WHERE id = $1", id) // nothing refers to it
		})
	}
}

// What ends a run before its plan is seen ends it altogether.
func TestNothingAwaitsApprovalAfterACancel(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	one[string](t, w.conn, "SELECT public.cancel_provision($1)", id)
	_, err := w.conn.Exec(t.Context(), "SELECT tendril.await_approval($1, $2)", claim, aPlan)
	wantRefusal(t, err, "PT409", "cancel_requested")
	agent.mustReport(t, claim, "CANCELLED", `{"error_code": "cancelled"}`)
	_, err = w.conn.Exec(t.Context(), "SELECT tendril.await_approval($1, $2)", claim, aPlan)
	wantRefusal(t, err, "PT409", "claim_lost")
}

// Who asks once more has it sealed to their own key, never to that of who asked first.
func TestRetrySealsToWhoAsks(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	first, other := "age1"+strings.Repeat("q", 58), "age1"+strings.Repeat("p", 58)
	id := w.deploy(t, w.operator, snapshotWith("a", `"requester_key": "`+first+`"`))
	for _, c := range []struct {
		by        uuid.UUID
		key, want string
	}{{w.operator, "", first}, {w.adminID, "", ""}, {w.adminID, other, other}, {w.operator, other, other}} {
		claim, _ := agent.mustClaim(t)
		agent.mustReport(t, claim, "FAILED", `{"error_code": "apply_failed"}`)
		next, err := person[uuid.UUID](t, w, c.by, "SELECT public.retry_provision($1, nullif($2, ''))", id, c.key)
		if err != nil {
			t.Fatal(err)
		}
		if got := one[string](t, w.conn, "SELECT coalesce(config_snapshot ->> 'requester_key', '') FROM public.provisions WHERE id = $1", next); got != c.want {
			t.Errorf("retried by %s with the key %q: the run names %q, want %q", c.by, c.key, got, c.want)
		}
	}
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "FAILED", `{"error_code": "apply_failed"}`)
	_, err := person[uuid.UUID](t, w, w.operator, "SELECT public.retry_provision($1, 'nobody')", id)
	wantRefusal(t, err, "PT422", "bad_snapshot")
}

func TestRetry(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := one[uuid.UUID](t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot, operation, priority) VALUES ($1, $2, 'destroy', 3) RETURNING id", w.cluster, snapshot("a"))
	const retry = "SELECT public.retry_provision($1)"
	_, err := person[uuid.UUID](t, w, w.operator, retry, id)
	wantRefusal(t, err, "PT409", "not_ended")
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "FAILED", `{"error_code": "apply_failed"}`)

	first, err := person[uuid.UUID](t, w, w.operator, retry, id)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := person[uuid.UUID](t, w, w.operator, retry, id); err != nil || again != first {
		t.Errorf("retry_provision twice = %s, %v, want the same %s: two clicks are one deploy", again, err, first)
	}
	if got := one[string](t, w.conn, `SELECT concat_ws(' ', n.status, n.operation, n.priority, n.requested_by = $2, n.retry_of = o.id, n.config_snapshot = o.config_snapshot, n.workspace_id = o.workspace_id)
		FROM public.provisions n, public.provisions o WHERE n.id = $1 AND o.id = $3`, first, w.operator, id); got != "QUEUED destroy 3 t t t t" {
		t.Errorf("the retry = %s, want the same asked for once more, by who asked", got)
	}
	if got := w.audited(t, id); !strings.Contains(got, "operator retry_provision") || !strings.Contains(got, first.String()) {
		t.Errorf("audited = %s, want who retried it, and as what", got)
	}
	claim, _ = agent.mustClaim(t)
	agent.mustReport(t, claim, "FAILED", `{"error_code": "apply_failed"}`)
	if next, err := person[uuid.UUID](t, w, w.operator, retry, id); err != nil || next == first {
		t.Errorf("retry_provision after the retry has ended = %s, %v, want a new one", next, err)
	}
	// What no longer holds is checked anew.
	mustExec(t, w.conn, "UPDATE public.workspaces SET repo = 'https://git.example/other', path = ''")
	_, err = person[uuid.UUID](t, w, w.operator, retry, first)
	wantRefusal(t, err, "PT409", "workspace_bound")
	mustExec(t, w.conn, "DELETE FROM public.provisions WHERE id = $1", id) // takes no retry with it
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.provisions WHERE retry_of = $1", id); got != 2 {
		t.Errorf("retries of what was deleted = %d, want 2", got)
	}
}

func TestLockWorkspace(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	workspace := one[uuid.UUID](t, w.conn, "SELECT id FROM public.workspaces")
	const lock, unlock = "SELECT public.lock_workspace($1, $2)", "SELECT public.unlock_workspace($1, $2)"
	for _, reason := range []any{nil, "", " \n ", strings.Repeat("x", 1001), strings.Repeat(" ", 20_000)} {
		wantRefusal(t, w.does(t, w.operator, lock, workspace, reason), "PT422", "bad_reason")
	}
	for range 2 {
		if err := w.does(t, w.operator, lock, workspace, "a freeze"); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.audited(t, workspace); got != `operator lock_workspace {"reason": "a freeze"}` {
		t.Errorf("audited = %s, want who locked it and why", got)
	}
	if got := wantRefusal(t, w.does(t, w.adminID, lock, workspace, "another"), "PT409", "workspace_locked"); !strings.Contains(got, "a freeze") {
		t.Errorf("error = %q, want why it is locked", got)
	}
	if got, err := agent.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("claim on a locked workspace = %s, %v, want nothing", got, err)
	}

	mustExec(t, w.conn, "INSERT INTO public.org_members VALUES ($1, $2, 'operator')", w.org, w.stranger)
	if got := wantRefusal(t, w.does(t, w.stranger, unlock, workspace, ""), "PT403", "locked_by_another"); !strings.Contains(got, "a freeze") {
		t.Errorf("error = %q, want why it is locked", got)
	}
	mustExec(t, w.conn, "LISTEN tendril_work")
	if err := w.does(t, w.operator, unlock, workspace, "it is over"); err != nil {
		t.Errorf("unlock_workspace by who locked it: %v", err)
	}
	w.notification(t)
	if got := w.audited(t, workspace); !strings.Contains(got, "operator unlock_workspace") || !strings.Contains(got, "it is over") || !strings.Contains(got, "a freeze") {
		t.Errorf("audited = %s, want who unlocked it and why", got)
	}
	if _, got := agent.mustClaim(t); got != id {
		t.Errorf("claim = %s, want %s", got, id)
	}
	if err := w.does(t, w.operator, unlock, workspace, ""); err != nil {
		t.Errorf("unlock_workspace of what is not locked: %v, want nil", err)
	}
	if err := w.does(t, w.operator, lock, workspace, "while it runs"); err != nil {
		t.Errorf("lock_workspace while it runs: %v", err)
	}
	if err := w.does(t, w.adminID, unlock, workspace, ""); err != nil {
		t.Errorf("unlock_workspace by an admin: %v", err)
	}
}

func TestPauseCluster(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	for range 2 {
		if err := w.does(t, w.adminID, "SELECT public.pause_cluster($1, p_reason => 'maintenance')", w.cluster); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.audited(t, w.cluster); got != `admin pause_cluster {"reason": "maintenance"}` {
		t.Errorf("audited = %s, want who paused it and why", got)
	}
	if got, err := agent.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("claim while paused = %s, %v, want nothing", got, err)
	}
	wantRefusal(t, w.does(t, w.adminID, "SELECT public.pause_cluster($1, NULL)", w.cluster), "PT422", "bad_paused")
	mustExec(t, w.conn, "LISTEN tendril_work")
	for range 2 {
		if err := w.does(t, w.adminID, "SELECT public.pause_cluster($1, false)", w.cluster); err != nil {
			t.Fatal(err)
		}
	}
	w.notification(t)
	if _, got := agent.mustClaim(t); got != id {
		t.Errorf("claim after the pause = %s, want %s", got, id)
	}
	if got := one[string](t, w.conn, "SELECT string_agg(action, ' ' ORDER BY id) FROM public.audit_events WHERE object_id = $1", w.cluster); got != "create_cluster pause_cluster resume_cluster" {
		t.Errorf("audited = %s, want each change once", got)
	}
}
