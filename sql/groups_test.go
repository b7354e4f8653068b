package sql_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
)

// busy holds a workspace's lock in a transaction of its own until the test ends,
// as one with many deploys does.
func (w *world) busy(t *testing.T, workspace string) {
	t.Helper()
	w.inFlight(t, "SELECT FROM public.workspaces WHERE name = $1 FOR NO KEY UPDATE", workspace)
}

// What only this agent may do keeps its place beside what anybody may, also
// while the most urgent of one kind is locked.
func TestPriorityAcrossKindsOfWork(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	insert := func(workspace string, priority int) uuid.UUID {
		return one[uuid.UUID](t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, $3) RETURNING id",
			w.cluster, snapshot(workspace), priority)
	}
	insert("locked", 10)
	own := insert("own", 5)
	for i := range 5 {
		insert(fmt.Sprint("shared", i), 0)
	}
	mustExec(t, w.conn, "UPDATE public.workspaces SET home_instance = $1 WHERE name = 'own'", agent.instance)
	w.busy(t, "locked")
	if _, got := agent.mustClaim(t); got != own {
		t.Errorf("first claim = %s, want the own work of priority 5 (%s) before what has 0", got, own)
	}
	if _, got := agent.mustClaim(t); got == uuid.Nil {
		t.Error("second claim = nothing, want what was passed over")
	}
}

// All that anybody may do is locked: what only this agent may do is claimed.
func TestOwnWorkWhileTheRestIsLocked(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("shared"))
	own := w.deploy(t, w.operator, snapshot("own"))
	mustExec(t, w.conn, "UPDATE public.workspaces SET home_instance = $1 WHERE name = 'own'", agent.instance)
	w.busy(t, "shared")
	if _, got := agent.mustClaim(t); got != own {
		t.Errorf("claim = %s, want %s", got, own)
	}
}

// The ids that stand for any agent and for none are no agent's.
func TestReservedInstances(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, instance := range []uuid.UUID{uuid.Nil, uuid.Max} {
		a := &agent{w: w, instance: instance, boot: uuid.New(), name: instance.String(), host: "host"}
		if err := a.register(t); err == nil {
			t.Errorf("register as %s = nil, want a refusal", instance)
		}
	}
}
