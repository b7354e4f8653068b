package sql_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// majors are the PostgreSQL versions that the contract is held to: the oldest
// that it is written for, or what the machine has, and the newest.
func majors(t *testing.T) map[string][]pgtest.OwnOption {
	t.Helper()
	return map[string][]pgtest.OwnOption{
		"PostgreSQL of this machine": nil,
		"PostgreSQL 18":              {pgtest.WithPrograms(pgtest.Programs18(t))},
	}
}

// open connects until the test is over.
func open(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// asRole is a server's URL for another role and database.
func asRole(t *testing.T, server *pgtest.Own, role, database string) string {
	t.Helper()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User, u.Path = url.UserPassword(role, "pw-for-the-test"), "/"+database
	return u.String()
}

// deploysThere shows that the contract works for the role that has migrated.
func deploysThere(t *testing.T, url string) {
	t.Helper()
	w := newWorld(t, open(t, url))
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("hello"))
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "SUCCESS", "{}")
	if got := w.status(t, id); got != "SUCCESS" {
		t.Errorf("status of a deploy there = %s, want SUCCESS", got)
	}
	for _, claims := range []string{"", "{}", `{"sub": "nobody"}`, `{"sub": 7}`, "no JSON"} {
		err := pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', $1, true), set_config('role', 'authenticated', true)", claims); err != nil {
				return err
			}
			var n int
			if err := tx.QueryRow(t.Context(), "SELECT count(*) FROM public.provisions").Scan(&n); err != nil || n != 0 {
				t.Errorf("provisions seen with the claims %q = %d, %v, want none", claims, n, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A managed Postgres gives out no superuser.
func TestMigrateOnPlainPostgres(t *testing.T) {
	t.Parallel()
	for name, options := range majors(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A server of its own: on a shared one the roles are there already.
			server := pgtest.OwnServer(t, options...)
			admin := open(t, server.URL)
			mustExec(t, admin, "CREATE ROLE owner LOGIN CREATEROLE PASSWORD 'pw-for-the-test'")
			mustExec(t, admin, "CREATE DATABASE managed")
			mustExec(t, admin, "CREATE DATABASE own")
			managed := open(t, server.Server().URL("managed"))
			mustExec(t, managed, "GRANT CREATE ON DATABASE managed TO owner")
			mustExec(t, managed, "GRANT USAGE, CREATE ON SCHEMA public TO owner WITH GRANT OPTION")
			// The superuser comes second, or the roles would be its own.
			for _, url := range []string{asRole(t, server, "owner", "managed"), server.Server().URL("own")} {
				if _, err := tendrilsql.Migrate(t.Context(), url); err != nil {
					t.Fatalf("Migrate(%s) = %v, want nil", url, err)
				}
				left, err := tendrilsql.UsePlatform(t.Context(), url)
				if err != nil || len(left) > 0 {
					t.Errorf("UsePlatform(%s) = %v, %v, want nothing left", url, left, err)
				}
				mustExec(t, open(t, url), "GRANT anon TO CURRENT_USER") // to act as PostgREST does
				deploysThere(t, url)
				functionsWorkThere(t, url)
			}
		})
	}
}
