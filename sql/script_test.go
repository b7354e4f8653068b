package sql_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// script is what brings a database from a migration to the newest.
func script(t *testing.T, from int64) string {
	t.Helper()
	text, err := tendrilsql.Script(from)
	if err != nil || text == "" {
		t.Fatalf("Script(%d) = %q, %v, want a script", from, text, err)
	}
	return text
}

// send sends a text as an editor does: at once, by the simple protocol.
func send(ctx context.Context, conn *pgx.Conn, text string) error {
	_, err := conn.PgConn().Exec(ctx, text).ReadAll()
	return err
}

func TestScriptDoesWhatMigrateDoes(t *testing.T) {
	t.Parallel()
	normal := schemaOf(t, pgtest.New(t, migrated).Conn(t))
	if len(normal) < 300 {
		t.Fatalf("a migrated database has %d entries in its catalogue, want hundreds", len(normal))
	}
	for name, run := range map[string]func(t *testing.T, url string, conn *pgx.Conn) error{
		"at once": func(t *testing.T, _ string, conn *pgx.Conn) error {
			return send(t.Context(), conn, script(t, 0)+"SELECT * FROM tendril.fit_platform();")
		},
		"in a transaction": func(t *testing.T, _ string, conn *pgx.Conn) error {
			return send(t.Context(), conn, "BEGIN;"+script(t, 0)+"SELECT * FROM tendril.fit_platform(); COMMIT;")
		},
		"as a prepared statement": func(t *testing.T, _ string, conn *pgx.Conn) error {
			_, err := conn.Exec(t.Context(), script(t, 0), pgx.QueryExecModeCacheStatement)
			return err
		},
		"twice": func(t *testing.T, _ string, conn *pgx.Conn) error {
			return errors.Join(send(t.Context(), conn, script(t, 0)), send(t.Context(), conn, script(t, 0)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			conn := db.Conn(t)
			if err := run(t, db.URL, conn); err != nil {
				t.Fatal(err)
			}
			for _, line := range difference(normal, schemaOf(t, conn)) {
				t.Errorf("unlike a database that was migrated: %s", line)
			}
			if n, err := tendrilsql.Migrate(t.Context(), db.URL); err != nil || n != 0 {
				t.Errorf("Migrate(afterwards) = %d, %v, want nothing to do", n, err)
			}
			if p, err := tendrilsql.Inspect(t.Context(), db.URL); err != nil || p.Script != "" || len(p.Left) > 0 {
				t.Errorf("Inspect(afterwards) = %+v, %v, want nothing to do", p, err)
			}
		})
	}
}

// A script for another database does nothing to this one and says so.
func TestScriptOfAnotherDatabase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from   int64
		before string
		want   string
	}{
		"begins with the baseline": {0, "CREATE SCHEMA tendril; CREATE TABLE tendril.schema_migrations (version_id bigint, is_applied bool); INSERT INTO tendril.schema_migrations VALUES (9, true)", "the database is at migration 9, this script begins after 0"},
		"begins later":             {9, "", "the database is at migration 0, this script begins after 9"},
		"knows less than this":     {9, "CREATE SCHEMA tendril; CREATE TABLE tendril.schema_migrations (version_id bigint, is_applied bool); INSERT INTO tendril.schema_migrations VALUES (9999, true)", "the database is at migration 9999"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := pgtest.New(t).Conn(t)
			if c.before != "" {
				mustExec(t, conn, c.before)
			}
			before := schemaOf(t, conn)
			err := send(t.Context(), conn, script(t, c.from))
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || !strings.Contains(pg.Message, c.want) || !strings.Contains(pg.Hint, "print the script") {
				t.Errorf("error = %v, want %q and what to do", err, c.want)
			}
			if left := difference(before, schemaOf(t, conn)); len(left) > 0 {
				t.Errorf("it has left %v", left)
			}
		})
	}
	if _, err := tendrilsql.Script(9999); err == nil {
		t.Error("Script(9999) = nil error, want TooNewError")
	}
}

// Asking what there is to do does nothing.
func TestInspectChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t)
	pending, err := tendrilsql.Inspect(t.Context(), db.URL)
	if err != nil || pending.Version != 0 || pending.Script != script(t, 0) {
		t.Errorf("Inspect(empty) = version %d, %v, want the whole script", pending.Version, err)
	}
	if got := schemaOf(t, conn); len(got) > 0 {
		t.Errorf("Inspect(empty) has left %v", got)
	}
	if _, err := tendrilsql.Migrate(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	mustExec(t, conn, "DROP PUBLICATION supabase_realtime")
	before := schemaOf(t, conn)
	if _, err := tendrilsql.Inspect(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	if got := difference(before, schemaOf(t, conn)); len(got) > 0 {
		t.Errorf("Inspect(up to date) has changed %v", got)
	}
}

// An editor is given what an older database needs, and nothing that it has.
func TestScriptOfAnOldDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, contract9)
	pending, err := tendrilsql.Inspect(t.Context(), db.URL)
	if err != nil || pending.Version != 9 || strings.Contains(pending.Script, "CREATE TABLE public.orgs") {
		t.Errorf("Inspect() = version %d and the first migrations = %t, %v, want 9, false", pending.Version, strings.Contains(pending.Script, "CREATE TABLE public.orgs"), err)
	}
	if err := send(t.Context(), db.Conn(t), pending.Script); err != nil {
		t.Fatal(err)
	}
	if n, err := tendrilsql.Migrate(t.Context(), db.URL); err != nil || n != 0 {
		t.Errorf("Migrate(afterwards) = %d, %v, want nothing to do", n, err)
	}
}
