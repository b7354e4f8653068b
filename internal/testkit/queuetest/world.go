// Package queuetest holds every transport of package queue to the same cases:
// what an agent may count on, whichever way its calls go.
//
// It must know nothing of any transport; the one under test is handed in.
package queuetest

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// stamped has a copy begin with a pulse of its own: with its template's it would
// take itself for one that was away, and put reaping off for a lease.
var stamped = pgtest.WithStart("UPDATE tendril.pulse SET stamped_at = clock_timestamp()")

// Migrated fills a test's database with the contract.
var Migrated = pgtest.All(stamped, pgtest.WithSetup("contract", func(ctx context.Context, url string) error {
	_, err := tendrilsql.Migrate(ctx, url)
	return err
}))

// World is a database with one organisation and one cluster.
type World struct {
	// Signs says that the transport under test signs, with RunnerKey for a runner.
	Signs   bool
	URL     string // as superuser
	Conn    *pgx.Conn
	Org     uuid.UUID
	Cluster uuid.UUID
	Token   string
}

// NewWorld makes a World in a database of the test's own.
func NewWorld(t testing.TB) *World {
	t.Helper()
	return Populate(t, pgtest.New(t, Migrated).URL)
}

// Populate makes a World in the given, migrated database.
func Populate(t testing.TB, url string) *World {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("queuetest: connecting: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	w := &World{URL: url, Conn: conn}
	if err := conn.QueryRow(t.Context(), "INSERT INTO public.orgs (name) VALUES ('acme') RETURNING id").Scan(&w.Org); err != nil {
		t.Fatalf("queuetest: %v", err)
	}
	w.Cluster, w.Token = w.NewCluster(t, "prod")
	return w
}

// AgentURL returns the database's URL for a new login role that is in
// tendril_agent and has nothing else.
func (w *World) AgentURL(t testing.TB) string {
	t.Helper()
	return w.Login(t, "tendril_agent")
}

// Login returns the database's URL for a new login role that is in group and has
// nothing else.
func (w *World) Login(t testing.TB, group string) string {
	t.Helper()
	config, err := pgx.ParseConfig(w.URL)
	if err != nil {
		t.Fatalf("queuetest: %v", err)
	}
	role := "login_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	w.Exec(t, "CREATE ROLE "+role+" LOGIN PASSWORD 'test' IN ROLE "+group)
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), w.URL)
		if err != nil {
			t.Errorf("queuetest: connecting: %v", err)
			return
		}
		defer conn.Close(context.Background()) //nolint:errcheck // the test is over
		if _, err := conn.Exec(context.Background(), "DROP ROLE "+role); err != nil {
			t.Errorf("queuetest: %v", err)
		}
	})
	return "postgres://" + role + ":test@/" + config.Database + "?host=" + config.Host
}

// NewCluster adds a cluster and returns its id and first token.
func (w *World) NewCluster(t testing.TB, name string) (cluster uuid.UUID, token string) {
	t.Helper()
	if err := w.Conn.QueryRow(t.Context(), "SELECT cluster_id, token FROM public.create_cluster($1, $2)", name, w.Org).Scan(&cluster, &token); err != nil {
		t.Fatalf("queuetest: create cluster: %v", err)
	}
	return cluster, token
}

// Join returns a new key of an agent that has joined the token's cluster, or none where the token
// is nobody's.
func (w *World) Join(t testing.TB, token, name string) ed25519.PrivateKey {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatalf("queuetest: %v", err)
	}
	w.Exec(t, `INSERT INTO tendril.agent_keys (cluster_id, public_key, name)
		SELECT cluster_id, $2, $3 FROM tendril.cluster_tokens WHERE digest = sha256(sha256(convert_to($1, 'UTF8')))`, token, []byte(public), name)
	return private
}

// Deploy queues a provision on the named workspace.
func (w *World) Deploy(t testing.TB, workspace string) uuid.UUID {
	t.Helper()
	return w.DeploySnapshot(t, fmt.Sprintf(
		`{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "workspace": %q}`, workspace))
}

// DeploySnapshot queues a provision of the given snapshot.
func (w *World) DeploySnapshot(t testing.TB, snapshot string) uuid.UUID {
	t.Helper()
	var id uuid.UUID
	if err := w.Conn.QueryRow(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id", w.Cluster, snapshot).Scan(&id); err != nil {
		t.Fatalf("queuetest: deploy: %v", err)
	}
	return id
}

// Exec runs a statement as superuser.
func (w *World) Exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	if _, err := w.Conn.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("queuetest: %s: %v", statement, err)
	}
}

// Text answers a query of one text value.
func (w *World) Text(t testing.TB, query string, args ...any) string {
	t.Helper()
	var text string
	if err := w.Conn.QueryRow(t.Context(), query, args...).Scan(&text); err != nil {
		t.Fatalf("queuetest: %s: %v", query, err)
	}
	return text
}

// Status answers "STATUS" or "STATUS/error_code".
func (w *World) Status(t testing.TB, provision uuid.UUID) string {
	t.Helper()
	return w.Text(t, "SELECT status || coalesce('/' || error_code, '') FROM public.provisions WHERE id = $1", provision)
}

// Log answers a provision's log as one text, and fails the test when its rows
// are not numbered 1, 2, 3, …
func (w *World) Log(t testing.TB, provision uuid.UUID) string {
	t.Helper()
	var text string
	var rows, last int64
	err := w.Conn.QueryRow(t.Context(), `SELECT coalesce(string_agg(log_chunk, '' ORDER BY seq), ''), count(*), coalesce(max(seq), 0)
		FROM public.provision_logs WHERE provision_id = $1`, provision).Scan(&text, &rows, &last)
	if err != nil {
		t.Fatalf("queuetest: reading the log: %v", err)
	}
	if rows != last {
		t.Errorf("log of %s has %d rows and ends at %d, want no gap", provision, rows, last)
	}
	return text
}

// NewAgent describes an agent of that name, of a new instance and boot.
func NewAgent(name string) queue.Agent {
	return queue.Agent{
		Instance: uuid.New(), Boot: uuid.New(), Name: name, Host: name + ".example",
		Version: "test", Contract: queue.Contract, Slots: 2,
	}
}
