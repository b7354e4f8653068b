package sql_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
)

// unsavedOn is the instance that keeps a state of the only workspace.
func (w *world) unsavedOn(t *testing.T) uuid.UUID {
	t.Helper()
	return one[uuid.NullUUID](t, w.conn, "SELECT unsaved_state_on FROM public.workspaces").UUID
}

// A state that could not be stored keeps the workspace with its agent until
// that one has stored it.
func TestUnsavedStateStaysWithItsAgent(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	keeper, other := w.newAgent(t, "one"), w.newAgent(t, "two")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := keeper.mustClaim(t)
	keeper.mustReport(t, claim, "PROCESSING", applying)
	keeper.mustReport(t, claim, "FAILED", `{"error_code": "state_unsaved", "state_unsaved": true}`)
	next := w.deploy(t, w.operator, snapshot("a"))
	if got, err := other.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Fatalf("claim by another agent = %s, %v, want nothing", got, err)
	}
	// Its next run stores the state, as a new boot.
	keeper.boot = uuid.New()
	if err := keeper.register(t); err != nil {
		t.Fatal(err)
	}
	claim, got := keeper.mustClaim(t)
	if got != next {
		t.Fatalf("claim = %s, want %s", got, next)
	}
	keeper.mustReport(t, claim, "PROCESSING", `{"stage": "plan"}`) // says nothing of it
	if got := w.unsavedOn(t); got != keeper.instance {
		t.Errorf("unsaved_state_on = %s, want %s still", got, keeper.instance)
	}
	keeper.mustReport(t, claim, "PROCESSING", `{"state_unsaved": false}`)
	keeper.mustReport(t, claim, "SUCCESS", `{}`)
	last := w.deploy(t, w.operator, snapshot("a"))
	if _, got := other.mustClaim(t); got != last {
		t.Errorf("claim by another agent = %s, want %s: the state is stored", got, last)
	}
}

// Only who keeps a state can say that it is stored.
func TestAnotherAgentCannotForgetAState(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	keeper := uuid.New()
	mustExec(t, w.conn, "UPDATE public.workspaces SET unsaved_state_on = $1", keeper)
	agent.mustReport(t, claim, "PROCESSING", `{"state_unsaved": false}`)
	agent.mustReport(t, claim, "SUCCESS", `{"state_unsaved": false}`)
	if got := w.unsavedOn(t); got != keeper {
		t.Errorf("unsaved_state_on = %s, want %s still", got, keeper)
	}
}

// The agent was killed and its claim given up; its next start tells of the
// state that the child left behind, and then sweeps.
func TestUnsavedStateOfALostRun(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	h.agent.boot = uuid.New()
	if err := h.agent.register(t); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, h.agent.report(t, h.claim, "PROCESSING", `{"stage": "apply", "state_unsaved": true}`), "PT409", "claim_lost")
	h.agent.mustReport(t, h.claim, "PROCESSING", `{"n": 6, "state_unsaved": false}`)
	h.agent.mustReport(t, h.claim, "PROCESSING", `{"n": 7, "state_unsaved": true, "percent": 99}`)
	h.agent.mustReport(t, h.claim, "PROCESSING", `{"n": 6, "state_unsaved": false}`) // again, after a lost reply
	if swept := h.agent.sweep(t); len(swept) != 0 || h.unsavedOn(t) != h.agent.instance {
		t.Errorf("sweep = %v, unsaved_state_on %s, want no verdict and the state remembered", swept, h.unsavedOn(t))
	}
	next := h.deploy(t, h.operator, snapshot("a"))
	if got, err := h.newAgent(t, "two").claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("claim by another agent = %s, %v, want nothing", got, err)
	}
	if _, got := h.agent.mustClaim(t); got != next {
		t.Errorf("claim = %s, want %s: the hold has ended", got, next)
	}
}

func TestLateSettlementTellsOfTheState(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	h.agent.mustReport(t, h.claim, "FAILED", `{"error_code": "state_unsaved", "state_unsaved": true}`)
	if got := h.statusAndCode(t, h.provision); got != "FAILED/state_unsaved" || h.unsavedOn(t) != h.agent.instance {
		t.Errorf("status = %s, unsaved_state_on %s, want the late result and the state remembered", got, h.unsavedOn(t))
	}
}

// The agent that keeps the state is gone for good.
func TestReleaseForgetsAnUnsavedState(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	keeper, other := w.newAgent(t, "one"), w.newAgent(t, "two")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := keeper.mustClaim(t)
	keeper.mustReport(t, claim, "FAILED", `{"error_code": "state_unsaved", "state_unsaved": true}`)
	next := w.deploy(t, w.operator, snapshot("a"))
	w.mustRelease(t, one[uuid.UUID](t, w.conn, "SELECT id FROM public.workspaces"))
	if _, got := other.mustClaim(t); got != next {
		t.Errorf("claim by another agent = %s, want %s", got, next)
	}
	if got, want := w.log(t, id), "1 SYSTEM An admin released the workspace. The agent on one.example may still have a state that was not stored.\n"; got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
}

// A workspace becomes runnable for all: agents are woken.
func TestStoredStateWakes(t *testing.T) {
	t.Parallel()
	h := newHeld(t)
	h.agent.mustReport(t, h.claim, "PROCESSING", `{"state_unsaved": true}`)
	h.deploy(t, h.operator, snapshot("a"))
	mustExec(t, h.conn, "UPDATE public.workspaces SET held_by_claim = NULL")
	mustExec(t, h.conn, "LISTEN tendril_work")
	mustExec(t, h.conn, "SELECT tendril.note_unsaved_state(c, false) FROM tendril.claims c")
	if got, want := h.notification(t), h.cluster.String(); got != want {
		t.Errorf("notification = %s, want %s: the cluster woken", got, want)
	}
}

// A result asks for no acknowledgement: what could not be given is not refused.
func TestResultInStageApplyIsRecorded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	mustExec(t, w.conn, "SELECT public.cancel_provision($1)", id)
	agent.mustReport(t, claim, "CANCELLED", `{"stage": "apply", "error_code": "cancelled"}`)
	if got := w.statusAndCode(t, id); got != "CANCELLED/cancelled" {
		t.Errorf("status = %s, want CANCELLED/cancelled", got)
	}
}

// What an agent of the contract before can do, it can do still.
func TestOlderContract(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	agent.contract = 1
	if err := agent.register(t); err != nil {
		t.Fatalf("register with contract 1: %v", err)
	}
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	if _, err := agent.heartbeat(t, claim); err != nil {
		t.Error(err)
	}
	if _, err := agent.lines(t, claim, 1, "a\n"); err != nil {
		t.Error(err)
	}
	agent.mustReport(t, claim, "PROCESSING", applying)
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	if got := w.status(t, id); got != "SUCCESS" || w.unsavedOn(t) != uuid.Nil {
		t.Errorf("status = %s, unsaved_state_on %s, want SUCCESS and none", got, w.unsavedOn(t))
	}
	agent.contract = queue.Contract + 1
	wantRefusal(t, agent.register(t), "PT426", "contract_too_new")
}
