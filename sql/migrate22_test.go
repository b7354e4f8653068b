package sql_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/olddb"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

var contract22 = pgtest.WithSetup("migration 22", olddb.At("22"))

// Whoever has the last of the tables that these migrations need, and comes to want
// the first, has neither us nor a deadlock in the way.
func TestMigrateFrom22WhileCallsAreUnderWay(t *testing.T) {
	t.Parallel()
	ways := map[string]func(t *testing.T, url string, conn *pgx.Conn) error{
		"trellis migrate": ways["trellis migrate"],
		"the printed script": func(t *testing.T, _ string, conn *pgx.Conn) error {
			return send(t.Context(), conn, script(t, 22))
		},
	}
	for name, migrate := range ways {
		for has, wants := range map[string]string{
			"LOCK TABLE public.provisions IN ROW EXCLUSIVE MODE": "SELECT count(*) FROM tendril.settings, public.org_members", // a report, a list under RLS
			"LOCK TABLE public.orgs IN ROW EXCLUSIVE MODE":       "LOCK TABLE public.org_members IN ROW EXCLUSIVE MODE",       // a new organisation
			"LOCK TABLE public.clusters IN ROW EXCLUSIVE MODE":   "LOCK TABLE public.orgs IN ROW SHARE MODE",
		} {
			t.Run(name+"/"+has, func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t, contract22)
				w := newWorld(t, db.Conn(t))
				call, other := w.inFlight(t, has), db.Conn(t)
				migrated := make(chan error, 1)
				go func() { migrated <- migrate(t, db.URL, other) }()
				w.awaitBlocked(t)
				mustExec(t, call, "SET LOCAL lock_timeout = '5s'")
				_, err := call.Exec(t.Context(), wants)
				if _, end := call.Exec(t.Context(), "COMMIT"); err != nil || end != nil {
					t.Errorf("the call that was under way: %v", errors.Join(err, end))
				}
				if err := <-migrated; err != nil {
					t.Errorf("the migration: %v", err)
				}
			})
		}
	}
}

// An agent of contract 3 goes on with what it has, is given more, and never an
// inspection, though the catalogue of before is to be looked at.
func TestMigrateFrom22WithRows(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, contract22)
	w := newWorld(t, db.Conn(t))
	agent := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "old", host: "old", contract: 3}
	if err := agent.register(t); err != nil {
		t.Fatal(err)
	}
	w.save(t, "https://git.example/a/b.git", "v1")
	w.save(t, "https://git.example/a/b", "v2")
	running := w.deploy(t, w.operator, snapshot("running"))
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", applying)
	queued := w.deploy(t, w.operator, snapshot("queued"))
	if _, err := tendrilsql.Migrate(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}

	if p, err := agent.heartbeat(t, claim); err != nil || len(p.Lost) != 0 {
		t.Errorf("heartbeat = %+v, %v, want nothing lost", p, err)
	}
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.template_inspections WHERE status = 'wanted'"); got != 2 {
		t.Errorf("inspections that are wanted = %d, want one for each version of the catalogue", got)
	}
	mustExec(t, w.conn, "UPDATE public.template_inspections SET requested_at = requested_at - interval '2 minutes'") // there is no trellis
	if got := w.hand(t); got != 0 {
		t.Errorf("hand_inspections() = %d, want none: the only agent is too old", got)
	}
	claim, got := agent.mustClaim(t)
	if got != queued {
		t.Errorf("claimed %s, want what was queued", got)
	}
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	for _, id := range []uuid.UUID{running, queued} {
		if got := w.status(t, id); got != "SUCCESS" {
			t.Errorf("status = %s, want SUCCESS", got)
		}
	}
}
