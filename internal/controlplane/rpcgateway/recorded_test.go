package rpcgateway_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
)

// What PostgREST's documentation shows, asked of the gateway, which is told to
// serve the documentation's functions.
func TestDocumentedExchanges(t *testing.T) {
	t.Parallel()
	exchanges, functions := recorded.Documented(t)
	db := pgtest.New(t, queuetest.Migrated)
	conn := db.Conn(t)
	mustExec(t, conn, functions)
	rows, err := conn.Query(t.Context(), "SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND NOT prosecdef")
	if err != nil {
		t.Fatal(err)
	}
	served, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Contains(served, "greeting_for") {
		t.Fatalf("functions = %v, %v, want those of the documentation", served, err)
	}
	// What a migration does for ours.
	mustExec(t, conn, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO anon")
	url := serve(t, rpcgateway.Options{DatabaseURL: db.URL, Functions: served})
	for _, e := range exchanges {
		t.Run(e.Name, func(t *testing.T) {
			check(t, send(t, url, e.Request), e.Response)
		})
	}
}

// One agent's story, call by call.
func TestAgentExchanges(t *testing.T) {
	t.Parallel()
	tellAgentStory(t, "")
}

// The same where a pooler stands between that cannot have prepared statements.
func TestAgentExchangesUnprepared(t *testing.T) {
	t.Parallel()
	tellAgentStory(t, "&default_query_exec_mode=exec")
}

func tellAgentStory(t *testing.T, settings string) {
	t.Helper()
	exchanges, world := recorded.Agent(t)
	db := pgtest.New(t, queuetest.Migrated)
	mustExec(t, db.Conn(t), world)
	url := serve(t, rpcgateway.Options{DatabaseURL: db.URL + settings})
	for _, e := range exchanges {
		t.Run(e.Name, func(t *testing.T) {
			e.Response.Body = today(e.Response.Body)
			check(t, send(t, url, e.Request), e.Response)
		})
	}
}

// today is a recorded answer without what has changed since: the contract's
// version, and the time.
func today(body []byte) []byte {
	body = bytes.Replace(body, []byte(`"contract": 2`), fmt.Appendf(nil, `"contract": %d`, queue.Contract), 1)
	return bytes.Replace(body, []byte(`"now": "2026-01-02T03:04:05.678901+00:00", `), nil, 1)
}

func mustExec(t testing.TB, conn *pgx.Conn, statement string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%.200s: %v", statement, err)
	}
}
