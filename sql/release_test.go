package sql_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// held is a workspace whose agent was lost while it applied.
type held struct {
	*world
	agent            *agent
	claim, provision uuid.UUID
	workspace        uuid.UUID
}

func newHeld(t *testing.T) *held {
	t.Helper()
	h := &held{world: newContract(t)}
	h.agent = h.newAgent(t, "one")
	h.deploy(t, h.operator, snapshot("a"))
	h.claim, h.provision = h.agent.mustClaim(t)
	h.agent.mustReport(t, h.claim, "PROCESSING", applying)
	h.lose(t)
	h.workspace = one[uuid.UUID](t, h.conn, "SELECT id FROM public.workspaces WHERE held_by_claim = $1", h.claim)
	return h
}

func (h *held) lose(t *testing.T) {
	t.Helper()
	h.expire(t, h.claim)
	if n := h.reap(t); n != 1 {
		t.Fatalf("reap() = %d, want 1", n)
	}
}

func (w *world) release(t *testing.T, user, workspace uuid.UUID, reason string) error {
	t.Helper()
	return w.try(t, "authenticated", user, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.release_workspace($1, $2)", workspace, reason)
		return err
	})
}

func (w *world) mustRelease(t *testing.T, workspace uuid.UUID) {
	t.Helper()
	if err := w.release(t, w.adminID, workspace, ""); err != nil {
		t.Fatalf("release_workspace: %v", err)
	}
}

func TestReleaseFreesAHeldWorkspace(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	next := h.deploy(t, h.operator, snapshot("a"))
	mustExec(t, h.conn, "LISTEN tendril_work")
	for name, user := range map[string]uuid.UUID{"viewer": h.viewer, "operator": h.operator, "stranger": h.stranger} {
		mine := wantRefusal(t, h.release(t, user, h.workspace, ""), "PT404", "workspace_not_found")
		none := wantRefusal(t, h.release(t, user, uuid.Nil, ""), "PT404", "workspace_not_found")
		if strings.ReplaceAll(mine, h.workspace.String(), uuid.Nil.String()) != none {
			t.Errorf("%s is told %q of a workspace and %q of none, want one answer", name, mine, none)
		}
	}
	wantRefusal(t, h.release(t, h.adminID, h.workspace, strings.Repeat("x", 1001)), "PT422", "bad_reason")

	if err := h.release(t, h.adminID, h.workspace, "the node\nis gone "); err != nil {
		t.Fatalf("release_workspace: %v", err)
	}
	if got, want := h.notification(t), h.cluster.String(); got != want {
		t.Errorf("notification = %s, want %s: the cluster woken", got, want)
	}
	if got := h.log(t, h.provision); !strings.HasSuffix(got, "SYSTEM An admin released the workspace (the node is gone).\n") {
		t.Errorf("log = %q, want it to end with who released the workspace and why", got)
	}
	audit := one[json.RawMessage](t, h.conn, "SELECT detail FROM public.audit_events WHERE action = 'release_workspace' AND actor = $1 AND object_id = $2", h.adminID, h.workspace)
	if !strings.Contains(string(audit), "the node is gone") || !strings.Contains(string(audit), h.claim.String()) {
		t.Errorf("audit detail = %s, want the reason and the claim", audit)
	}
	if _, got := h.newAgent(t, "two").mustClaim(t); got != next {
		t.Errorf("claim after the release = %s, want %s", got, next)
	}
	p, err := h.agent.heartbeat(t, h.claim)
	if err != nil || !slices.Contains(p.Lost, h.claim) || !slices.Contains(p.Cancel, h.claim) {
		t.Errorf("heartbeat = %+v, %v, want the claim lost and to be stopped although another has begun", p, err)
	}
	wantRefusal(t, h.agent.report(t, h.claim, "SUCCESS", `{}`), "PT409", "claim_lost")
	if got := h.statusAndCode(t, h.provision); got != "FAILED/agent_lost" {
		t.Errorf("status = %s, want FAILED/agent_lost: newer work has begun", got)
	}
}

// The lost agent comes back after all, before anything newer has begun: its
// result is recorded, it is told to stop, and the workspace is left alone.
func TestLateSettlementAfterRelease(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	h.mustRelease(t, h.workspace)
	p, err := h.agent.heartbeat(t, h.claim)
	if err != nil || !slices.Contains(p.Lost, h.claim) || !slices.Contains(p.Cancel, h.claim) {
		t.Errorf("heartbeat = %+v, %v, want the claim lost and to be stopped", p, err)
	}
	before := one[json.RawMessage](t, h.conn, "SELECT to_jsonb(w) FROM public.workspaces w WHERE id = $1", h.workspace)
	h.agent.mustReport(t, h.claim, "PROCESSING", `{"state_unsaved": true, "local_state": true, "outputs": {"a": {"value": 1}}}`)
	h.agent.mustReport(t, h.claim, "SUCCESS", `{"state_unsaved": true, "local_state": true}`)
	if got := h.statusAndCode(t, h.provision); got != "SUCCESS" {
		t.Errorf("status = %s, want SUCCESS", got)
	}
	if got := h.log(t, h.provision); !strings.Contains(got, "reported after all: SUCCESS") {
		t.Errorf("log = %q, want the late report told", got)
	}
	if after := one[json.RawMessage](t, h.conn, "SELECT to_jsonb(w) FROM public.workspaces w WHERE id = $1", h.workspace); string(after) != string(before) {
		t.Errorf("workspace = %s, was %s, want it untouched", after, before)
	}
	next := h.deploy(t, h.operator, snapshot("a"))
	if _, got := h.newAgent(t, "two").mustClaim(t); got != next {
		t.Errorf("claim = %s, want %s", got, next)
	}
}

// An agent that listens is told to stop at once.
func TestReleaseCallsTheAgent(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	mustExec(t, h.conn, "LISTEN tendril_attention")
	h.mustRelease(t, h.workspace)
	if got, want := h.notification(t), h.cluster.String(); got != want {
		t.Errorf("notification = %s, want %s: the cluster's agents called", got, want)
	}
}

func TestReleaseRefusesWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	workspace := one[uuid.UUID](t, w.conn, "SELECT id FROM public.workspaces")
	if got := wantRefusal(t, w.release(t, w.adminID, workspace, ""), "PT409", "workspace_not_held"); !strings.Contains(got, `"a" is not held`) {
		t.Errorf("error = %q, want it to name the workspace", got)
	}
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", `{"state_unsaved": true}`)
	wantRefusal(t, w.release(t, w.adminID, workspace, ""), "PT409", "workspace_running")
	if got := one[uuid.UUID](t, w.conn, "SELECT unsaved_state_on FROM public.workspaces"); got != agent.instance {
		t.Errorf("unsaved_state_on = %s, want it kept", got)
	}
}

// What an approved run had reserved is free after its release.
func TestReleaseEndsTheReservation(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	mustExec(t, h.conn, "UPDATE public.workspaces SET reserved_by = $1", h.provision)
	next := h.deploy(t, h.operator, snapshot("a"))
	h.mustRelease(t, h.workspace)
	if _, got := h.agent.mustClaim(t); got != next {
		t.Errorf("claim = %s, want %s", got, next)
	}
}

// Who waits for a lock is told to try again, not left waiting.
func TestReleaseOfALockedWorkspaceIsBusy(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	other, err := pgx.ConnectConfig(t.Context(), h.conn.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context()) //nolint:errcheck // a test's
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // a test's
	if _, err := tx.Exec(t.Context(), "SELECT FROM public.workspaces FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, h.release(t, h.adminID, h.workspace, ""), "PT503", "busy")
}

// A cancel of a held run reaches its agent, whose result is then CANCELLED.
func TestCancelOfAHeldRun(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	if got := one[string](t, h.conn, "SELECT public.cancel_provision($1)", h.provision); got != "FAILED" {
		t.Errorf("cancel_provision(held run) = %s, want FAILED", got)
	}
	p, err := h.agent.heartbeat(t, h.claim)
	if err != nil || !slices.Contains(p.Cancel, h.claim) {
		t.Errorf("heartbeat = %+v, %v, want the cancel", p, err)
	}
	h.agent.mustReport(t, h.claim, "CANCELLED", `{"error_code": "cancelled"}`)
	if got := h.statusAndCode(t, h.provision); got != "CANCELLED/cancelled" {
		t.Errorf("status = %s, want CANCELLED/cancelled", got)
	}
}

// An agent that was told to end settles what it drained, in time or late.
func TestDrainedRunsSettle(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	h.deploy(t, h.operator, snapshot("b"))
	inTime, other := h.agent.mustClaim(t)
	for claim, provision := range map[uuid.UUID]uuid.UUID{h.claim: h.provision, inTime: other} {
		h.agent.mustReport(t, claim, "FAILED", `{"error_code": "agent_drained"}`)
		if got := h.statusAndCode(t, provision); got != "FAILED/agent_drained" {
			t.Errorf("status = %s, want FAILED/agent_drained", got)
		}
	}
	if got := one[int](t, h.conn, "SELECT count(*) FROM public.workspaces WHERE running_claim IS NOT NULL OR held_by_claim IS NOT NULL"); got != 0 {
		t.Errorf("workspaces still taken = %d, want 0", got)
	}
}

// A status set by hand does not keep a held workspace from its late settlement.
func TestHeldRunSurvivesMeddling(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	mustExec(t, h.conn, "UPDATE public.provisions SET status = 'CANCELLED' WHERE id = $1", h.provision)
	h.agent.mustReport(t, h.claim, "SUCCESS", `{}`)
	if got := h.status(t, h.provision); got != "CANCELLED" {
		t.Errorf("status set by hand = %s, want it to stay", got)
	}
	if got := one[int](t, h.conn, "SELECT count(*) FROM public.workspaces WHERE held_by_claim IS NOT NULL"); got != 0 {
		t.Error("the workspace is held still")
	}
}
