package sql_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// hostileLogin is a session of an agent's login, on a server of its own.
func hostileLogin(t *testing.T, server *pgtest.Own) *pgx.Conn {
	t.Helper()
	return open(t, asRole(t, server, "hostile", "postgres"))
}

const makeHostile = "CREATE ROLE hostile LOGIN IN ROLE tendril_agent PASSWORD 'pw-for-the-test'"

// An agent's login can take advisory locks, and cannot hold up a migration by one.
func TestAgentsLoginHoldsUpNoMigration(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t)
	conn := open(t, server.URL)
	if _, err := tendrilsql.Migrate(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	mustExec(t, conn, makeHostile)
	hostile := hostileLogin(t, server)
	const goose = 4097083626 // the key that the programs of before the baseline locked, which anybody can compute
	mustExec(t, hostile, fmt.Sprintf("SELECT pg_advisory_lock(%d)", goose))
	if _, err := hostile.Exec(t.Context(), "LOCK TABLE tendril.schema_migrations IN ACCESS SHARE MODE"); err == nil {
		t.Error("an agent's login locks the table of migrations, want it denied")
	}
	mustExec(t, conn, "DELETE FROM tendril.function_files") // so that there is something to do
	for name, run := range map[string]func(context.Context) error{
		"trellis migrate":    func(ctx context.Context) error { _, err := tendrilsql.Migrate(ctx, server.URL); return err },
		"the printed script": func(ctx context.Context) error { return send(ctx, conn, script(t, 40)) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := run(ctx); err != nil {
			t.Errorf("%s while an agent's login has an advisory lock = %v, want nil", name, err)
		}
		cancel()
	}
}

// Who waits for another's migration for long is told whose it is.
func TestMigrationLockNamesItsHolder(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t)
	if _, err := tendrilsql.Migrate(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	holder := open(t, server.URL)
	mustExec(t, holder, "DELETE FROM tendril.function_files") // so that there is something to do
	mustExec(t, holder, "SET application_name = 'somebody''s migration'")
	mustExec(t, holder, "BEGIN")
	mustExec(t, holder, "LOCK TABLE tendril.schema_migrations IN SHARE UPDATE EXCLUSIVE MODE")
	err := tendrilsql.MigrateWithin(t.Context(), server.URL, 50*time.Millisecond)
	if want := fmt.Sprintf("process %d of role ", holder.PgConn().PID()); err == nil || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "somebody's migration") || !strings.Contains(err.Error(), "pg_terminate_backend") {
		t.Errorf("the lock while another has it = %v, want %q and what to do", err, want)
	}
	mustExec(t, holder, "COMMIT")
	if err := tendrilsql.MigrateWithin(t.Context(), server.URL, time.Minute); err != nil {
		t.Errorf("the lock after the other's end = %v, want nil", err)
	}
}

// What fills a disk is taken from agents' logins.
func TestAgentsLoginMakesNothing(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t)
	conn := open(t, server.URL)
	if _, err := tendrilsql.Migrate(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	// No agent has a login: nothing is taken from anybody.
	wantLeftover := func(when string, want ...string) {
		t.Helper()
		left, err := tendrilsql.UsePlatform(t.Context(), server.URL)
		var got []string
		for _, l := range left {
			got = append(got, l.RunAs+": "+l.Statement)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: left to others = %q, %v, want %q", when, got, err, want)
		}
	}
	mustExec(t, conn, "CREATE ROLE other LOGIN PASSWORD 'pw-for-the-test'")
	wantLeftover("without an agent's login")
	other := open(t, asRole(t, server, "other", "postgres"))
	mustExec(t, other, "CREATE TEMP TABLE mine (x int)")

	mustExec(t, conn, makeHostile)
	// Somebody else's tables are here: what PUBLIC has is theirs to give up.
	mustExec(t, conn, "CREATE SCHEMA theirs AUTHORIZATION other; SET ROLE other; CREATE TABLE theirs.things (x int); RESET ROLE")
	const temporary = "a superuser: REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC"
	const large = "a superuser: REVOKE EXECUTE ON FUNCTION pg_catalog.lo_creat(integer), pg_catalog.lo_create(oid), pg_catalog.lo_from_bytea(oid,bytea) FROM PUBLIC"
	wantLeftover("with somebody else's tables", temporary, large)
	hostile := hostileLogin(t, server)
	mustExec(t, hostile, "CREATE TEMP TABLE before (x int)")
	mustExec(t, conn, "DROP SCHEMA theirs CASCADE")
	wantLeftover("in a database of our own")
	for _, denied := range []string{
		"CREATE TEMP TABLE settings (lease interval)", "CREATE TEMP SEQUENCE s", "CREATE TEMP VIEW v AS SELECT 1", "SELECT 1 INTO TEMP t",
		"SELECT lo_creat(-1)", "SELECT lo_create(0)", "SELECT lo_from_bytea(0, repeat('x', 1000)::bytea)", "SELECT lo_import('/etc/hostname')", "SELECT lo_export(1, '/tmp/x')",
	} {
		if _, err := hostile.Exec(t.Context(), denied); !isCode(err, "42501") {
			t.Errorf("an agent's login: %q = %v, want permission denied", denied, err)
		}
	}
	wantLeftover("once more")
}

func isCode(err error, code string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == code
}

// Everybody who may connect can fill the server's queue of notifications. The
// contract goes on.
func TestNotificationFlood(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, pgtest.WithPrograms(pgtest.Programs18(t)), pgtest.WithSetting("max_notify_queue_pages", "64"))
	if _, err := tendrilsql.Migrate(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	conn := open(t, server.URL)
	mustExec(t, conn, makeHostile)
	w := newWorld(t, conn)
	agent := w.newAgent(t, "one")
	sleeper, flooder := hostileLogin(t, server), hostileLogin(t, server)
	mustExec(t, sleeper, "LISTEN anything")
	mustExec(t, sleeper, "BEGIN") // the queue keeps what it has not read
	full := false
	for i := 0; i < 1000 && !full; i++ {
		_, err := flooder.Exec(t.Context(), "SELECT pg_notify('anything', $1 || repeat('x', 7000))", fmt.Sprint(i))
		if err != nil && !isCode(err, "54000") {
			t.Fatal(err)
		}
		full = err != nil
	}
	if !full {
		t.Fatal("the queue is not full")
	}
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", `{"stage": "plan"}`)
	if _, err := agent.lines(t, claim, 1, "a line\n"); err != nil {
		t.Errorf("lines while the queue of notifications is full = %v, want them taken", err)
	}
	agent.mustReport(t, claim, "SUCCESS", "{}")
	// No other function notifies, and what is told has one size.
	if names := one[[]string](t, conn, `SELECT coalesce(array_agg(proname ORDER BY proname), '{}') FROM pg_proc
		WHERE pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND prosrc ~* 'pg_notify|\mNOTIFY\M "?tendril'`); !slices.Equal(names, []string{"notify"}) {
		t.Errorf("functions that notify = %q, want tendril.notify alone", names)
	}
}
