package sql_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/olddb"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

var contract10 = pgtest.WithSetup("migration 10", olddb.At("10"))

// ways to bring a database from migration 10 to the newest while it is in use.
var ways = map[string]func(t *testing.T, url string, conn *pgx.Conn) error{
	"trellis migrate": func(t *testing.T, url string, _ *pgx.Conn) error {
		_, err := tendrilsql.Migrate(t.Context(), url)
		return err
	},
	"the printed script": func(t *testing.T, _ string, conn *pgx.Conn) error {
		return send(t.Context(), conn, script(t, 10))
	},
}

// Whoever has one table, and comes to want another, has neither us nor a deadlock
// in the way.
func TestMigrateWhileACallIsUnderWay(t *testing.T) {
	t.Parallel()
	for name, migrate := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, contract10)
			w := newWorld(t, db.Conn(t))
			w.deploy(t, w.operator, snapshot("a"))
			call, other := w.inFlight(t, "LOCK TABLE tendril.claims, tendril.log_heads IN ROW EXCLUSIVE MODE"), db.Conn(t)
			migrated := make(chan error, 1)
			go func() { migrated <- migrate(t, db.URL, other) }()
			w.awaitBlocked(t)
			_, err := call.Exec(t.Context(), "UPDATE public.provisions SET priority = 1")
			if _, end := call.Exec(t.Context(), "COMMIT"); err != nil || end != nil {
				t.Errorf("the call that was under way: %v", errors.Join(err, end))
			}
			if err := <-migrated; err != nil {
				t.Errorf("the migration: %v", err)
			}
		})
	}
}

// A VACUUM by hand may take hours. Agents need not wait with us for its end.
func TestMigrateDuringAVacuum(t *testing.T) {
	t.Parallel()
	for name, migrate := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, contract10)
			w := newWorld(t, db.Conn(t))
			agent := w.newAgent(t, "one")
			w.deploy(t, w.operator, snapshot("a"))
			claim, _ := agent.mustClaim(t)
			vacuum, other := w.inFlight(t, "LOCK TABLE public.provision_logs IN SHARE UPDATE EXCLUSIVE MODE"), db.Conn(t)
			migrated := make(chan error, 1)
			go func() { migrated <- migrate(t, db.URL, other) }()
			w.awaitBlocked(t)
			for range 3 {
				if p, err := agent.heartbeat(t, claim); err != nil || len(p.Lost) > 0 {
					t.Errorf("heartbeat meanwhile = %+v, %v, want it answered", p, err)
				}
			}
			mustExec(t, vacuum, "COMMIT")
			if err := <-migrated; err != nil {
				t.Errorf("the migration: %v", err)
			}
		})
	}
}

// Nothing that grows is read or written from end to end while everybody waits.
func TestMigrationsReadNoLargeTable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, contract10)
	w := newWorld(t, db.Conn(t))
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	if _, err := agent.lines(t, claim, 1, "a line\n"); err != nil {
		t.Fatal(err)
	}
	const grow = "'public.provisions', 'public.provision_logs', 'public.provision_events', 'public.provision_progress', 'tendril.claims', 'tendril.log_heads'"
	const files = "SELECT string_agg(pg_relation_filenode(t::regclass)::text, ' ') FROM unnest(ARRAY[" + grow + "]) t"
	const scans = "SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_xact_all_tables WHERE relid = ANY (ARRAY[" + grow + "]::regclass[]::oid[])"
	const indexes = "SELECT string_agg(indexrelid::regclass::text, ' ' ORDER BY indexrelid) FROM pg_index WHERE indrelid = ANY (ARRAY[" + grow + "]::regclass[]::oid[])"
	filesBefore, indexesBefore := one[string](t, w.conn, files), one[string](t, w.conn, indexes)
	mustExec(t, w.conn, "BEGIN")
	if err := send(t.Context(), w.conn, script(t, 10)); err != nil {
		t.Fatal(err)
	}
	if got := one[int](t, w.conn, scans); got != 0 {
		t.Errorf("tables read from end to end, %d times, want none", got)
	}
	mustExec(t, w.conn, "COMMIT")
	if got := one[string](t, w.conn, files); got != filesBefore {
		t.Errorf("files = %s, want %s: none is written anew", got, filesBefore)
	}
	if got := one[string](t, w.conn, indexes); got != indexesBefore {
		t.Errorf("indexes = %s, want %s: none is made", got, indexesBefore)
	}
	agent.mustReport(t, claim, "SUCCESS", `{}`)
}

// What an agent of before has under way goes on in the new contract.
func TestMigrateTo17WithRows(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, contract10)
	w := newWorld(t, db.Conn(t))
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	if _, err := agent.lines(t, claim, 1, "before\n"); err != nil {
		t.Fatal(err)
	}
	agent.mustReport(t, claim, "PROCESSING", `{"n": 1, "stage": "plan", "percent": 5}`)
	if _, err := tendrilsql.Migrate(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	if next, err := agent.lines(t, claim, 2, "after\n"); err != nil || next != 3 {
		t.Errorf("lines = %d, %v, want 3", next, err)
	}
	agent.mustReport(t, claim, "PROCESSING", applying)
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	if got := w.log(t, id); w.status(t, id) != "SUCCESS" || !strings.Contains(got, "before\n") || !strings.Contains(got, "after\n") {
		t.Errorf("afterwards: %s, log %q, want what was said before and after", w.status(t, id), got)
	}
	if got, err := agent.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("a further claim = %s, %v, want nothing", got, err)
	}
}
