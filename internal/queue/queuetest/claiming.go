package queuetest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

func claimOnceAndAgain(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	claim := uuid.New()
	first, err := q.Claim(t.Context(), claim)
	if err != nil || first == nil || first.ProvisionID != id || first.ClaimID != claim || first.Workspace != "a" || first.Operation != provision.OperationApply {
		t.Fatalf("Claim() = %+v, %v, want provision %s on workspace a", first, err, id)
	}
	if waited := first.Waited(); waited < 0 || waited > time.Minute {
		t.Errorf("Claim() has waited %s, want what the database says: a moment", waited)
	}
	again, err := q.Claim(t.Context(), claim)
	if err != nil || again == nil || again.ProvisionID != id {
		t.Errorf("Claim(same id) = %+v, %v, want the same provision", again, err)
	}
	other, err := q.Claim(t.Context(), uuid.New())
	if err != nil || other != nil {
		t.Errorf("Claim(new id) = %+v, %v, want nothing: one row, one claim", other, err)
	}
}

func claimNothing(t *testing.T, w *World, open Open) {
	a, err := registered(t, w, open, "one").Claim(t.Context(), uuid.New())
	if a != nil || err != nil {
		t.Errorf("Claim(empty queue) = %v, %v, want nil, nil", a, err)
	}
}

func cancelComesByHeartbeat(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	w.Exec(t, "SELECT public.cancel_provision($1)", id)
	p, err := q.Heartbeat(t.Context(), []uuid.UUID{a.ClaimID})
	if err != nil || len(p.Cancel) != 1 || p.Cancel[0] != a.ClaimID || len(p.Lost) != 0 {
		t.Errorf("Heartbeat() = %+v, %v, want the claim to be cancelled", p, err)
	}
	err = q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: applying})
	_ = wantKind(t, "Report(apply after cancel)", err, queue.CancelRequested)
	mustReport(t, q, a.ClaimID, provision.Cancelled, provision.Detail{ErrorCode: provision.CodeCancelled})
	if got := w.Status(t, id); got != "CANCELLED/cancelled" {
		t.Errorf("status = %s, want CANCELLED/cancelled", got)
	}
}

func lostClaimIsTold(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	w.Exec(t, "UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '1 s'")
	w.Exec(t, "SELECT tendril.reap()")
	p, err := q.Heartbeat(t.Context(), []uuid.UUID{a.ClaimID, uuid.New()})
	if err != nil || len(p.Lost) != 2 {
		t.Errorf("Heartbeat() = %+v, %v, want both claims lost", p, err)
	}
	err = q.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Processing, Detail: provision.Detail{Stage: provision.StagePlan}})
	_ = wantKind(t, "Report(lost)", err, queue.ClaimLost)
	if _, err := q.AppendLog(t.Context(), a.ClaimID, 1, []provision.LogChunk{line("late\n")}); err != nil {
		t.Errorf("AppendLog(lost, newest) = %v, want the late line taken", err)
	}
	mustReport(t, q, a.ClaimID, provision.Success, provision.Detail{}) // nothing has used the workspace since
	if got := w.Status(t, id); got != "SUCCESS" {
		t.Errorf("status after late settlement = %s, want SUCCESS", got)
	}
}

func otherClustersClaimIsLost(t *testing.T, w *World, open Open) {
	q := registered(t, w, open, "one")
	w.Deploy(t, "a")
	a := mustClaim(t, q)
	_, token := w.NewCluster(t, "other")
	thief := open(t, w, token, NewAgent("two"))
	mustRegister(t, thief)
	_, err := thief.AppendLog(t.Context(), a.ClaimID, 1, []provision.LogChunk{line("x")})
	_ = wantKind(t, "AppendLog(another cluster's claim)", err, queue.ClaimLost)
	err = thief.Report(t.Context(), a.ClaimID, provision.Report{Status: provision.Success})
	_ = wantKind(t, "Report(another cluster's claim)", err, queue.ClaimLost)
	if got, err := thief.Claim(t.Context(), uuid.New()); got != nil || err != nil {
		t.Errorf("Claim() = %v, %v, want nothing of another cluster's", got, err)
	}
}

func orphansEndAtTheNextStart(t *testing.T, w *World, open Open) {
	agent := NewAgent("one")
	q := open(t, w, w.Token, agent)
	mustRegister(t, q)
	id := w.Deploy(t, "a")
	a := mustClaim(t, q)
	mustReport(t, q, a.ClaimID, provision.Processing, applying)
	agent.Boot = uuid.New()
	next := open(t, w, w.Token, agent)
	mustRegister(t, next)
	orphans, err := next.FailOrphans(t.Context(), nil)
	if err != nil || len(orphans) != 1 || orphans[0] != id {
		t.Fatalf("FailOrphans() = %v, %v, want [%s]", orphans, err, id)
	}
	if got := w.Status(t, id); got != "FAILED/agent_restarted" {
		t.Errorf("status = %s, want FAILED/agent_restarted", got)
	}
	if got := w.Log(t, id); !strings.Contains(got, "Apply had begun") {
		t.Errorf("log = %q, want it to say that apply had begun", got)
	}
}
