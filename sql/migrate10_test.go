package sql_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/olddb"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

var contract9 = pgtest.WithSetup("migration 9", olddb.At("9"))

// What is queued, running and kept apart stays so.
func TestMigrateTo10WithRows(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, contract9)
	w := newWorld(t, db.Conn(t))
	agent := w.newAgent(t, "one")
	for _, name := range []string{"w0", "w1", "w2", "w3"} {
		w.deploy(t, w.operator, snapshot(name))
		w.deploy(t, w.operator, snapshot(name))
	}
	claim, _ := agent.mustClaim(t)
	home, unsaved := agent.instance, uuid.New()
	mustExec(t, w.conn, "UPDATE public.workspaces SET home_instance = $1 WHERE name IN ('w1', 'w3')", home)
	mustExec(t, w.conn, "UPDATE public.workspaces SET unsaved_state_on = $1 WHERE name IN ('w2', 'w3')", unsaved)
	if _, err := tendrilsql.Migrate(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	got := one[[]uuid.UUID](t, w.conn, "SELECT array_agg(only_instance ORDER BY name) FROM public.workspaces")
	if want := []uuid.UUID{uuid.Nil, home, unsaved, uuid.Max}; !slices.Equal(got, want) {
		t.Errorf("only_instance = %v, want %v", got, want)
	}
	if p, err := agent.heartbeat(t, claim); err != nil || len(p.Lost) > 0 {
		t.Errorf("heartbeat of a claim from before = %+v, %v, want nothing lost", p, err)
	}
	agent.mustClaim(t) // w1
	if got, err := agent.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("a further claim = %s, %v, want nothing: one workspace runs, two are not for this agent", got, err)
	}
}

// A call that is under way has a lock and wants another: neither it nor the
// migration may fail for that.
func TestMigrateTo10UnderLoad(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, contract9)
	w := newWorld(t, db.Conn(t))
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	call := w.inFlight(t, "SELECT FROM public.workspaces FOR NO KEY UPDATE")
	migrated := make(chan error, 1)
	go func() {
		_, err := tendrilsql.Migrate(t.Context(), db.URL)
		migrated <- err
	}()
	for !one[bool](t, w.conn, "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() AND NOT granted AND mode = 'AccessExclusiveLock')") {
		mustExec(t, w.conn, "SELECT pg_sleep(0.01)")
	}
	if _, err := call.Exec(t.Context(), "UPDATE tendril.claims SET cancel_requested_at = now() WHERE id = $1", claim); err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
	if _, err := call.Exec(t.Context(), "COMMIT"); err != nil {
		t.Error(err)
	}
	if err := <-migrated; err != nil {
		t.Errorf("Migrate() = %v, want nil", err)
	}
}
