package container

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// template is the database that trellis has migrated.
const template = "migrated"

// inside is a database's URL for containers, outside for the test.
func (s *stage) inside(role, database string) string {
	return fmt.Sprintf("postgres://%s:%s@%s/%s", role, password, databaseHost, database)
}

func (s *stage) outside(database string) string {
	return fmt.Sprintf("postgres://owner:%s@%s/%s", password, s.address, database)
}

// sql runs statements as the owner, each on its own.
func (s *stage) sql(ctx context.Context, database string, statements ...string) error {
	conn, err := pgx.Connect(ctx, s.outside(database))
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // what was to be done is done, or has failed
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// world is one test's database, with a cluster in it.
type world struct {
	*queuetest.World
	t    testing.TB
	name string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, name: "test_" + strings.ToLower(rand.Text()[:10])}
	if err := shared.sql(t.Context(), "postgres", "CREATE DATABASE "+w.name+" TEMPLATE "+template,
		fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s' IN ROLE tendril_agent", w.name, password)); err != nil {
		t.Fatal(err)
	}
	w.World = queuetest.Populate(t, shared.outside(w.name))
	// Else a copy takes itself for one that was away.
	w.Exec(t, "UPDATE tendril.pulse SET stamped_at = clock_timestamp()")
	return w
}

// agentURL is the database's URL for a login that is in tendril_agent and has
// nothing else.
func (w *world) agentURL() string { return shared.inside(w.name, w.name) }

func (w *world) ownerURL() string { return shared.inside("owner", w.name) }

// deploy inserts the row that is a whole deploy.
func (w *world) deploy(repo, path, workspace string, vars map[string]any) uuid.UUID {
	w.t.Helper()
	snapshot, err := json.Marshal(map[string]any{
		"template_source": map[string]any{"repo": repo, "version": "v1", "path": path}, "workspace": workspace, "terraform_vars": vars,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.DeploySnapshot(w.t, string(snapshot))
}

// await waits until the query, which answers one boolean, says true.
func (w *world) await(what, query string, args ...any) {
	w.t.Helper()
	limit := patience.Begin(usual)
	for w.Text(w.t, "SELECT ("+query+")::text", args...) != "true" {
		if limit.Over() {
			w.t.Fatalf("timed out waiting for %s; provisions are %s", what,
				w.Text(w.t, "SELECT coalesce(string_agg(concat_ws(' ', status, error_code, error_message), '; '), 'none') FROM public.provisions"))
		}
		limit.Pause()
	}
}

// awaitEnd waits for a provision's end and answers its status with its message.
func (w *world) awaitEnd(id uuid.UUID) string {
	w.t.Helper()
	w.await("the provision's end", "SELECT status IN ('SUCCESS', 'FAILED', 'CANCELLED') FROM public.provisions WHERE id = $1", id)
	return w.Text(w.t, "SELECT concat_ws('/', status, error_code) || coalesce(': ' || error_message, '') FROM public.provisions WHERE id = $1", id)
}

// awaitLine waits until a text is in a provision's log, as it can be read.
func (w *world) awaitLine(id uuid.UUID, text string) {
	w.t.Helper()
	w.await(fmt.Sprintf("the line %q", text), "SELECT EXISTS (SELECT FROM public.provision_logs WHERE provision_id = $1 AND log_chunk LIKE '%' || $2 || '%')", id, text)
}

// agents says what is known of the cluster's agents: instance and version.
func (w *world) agents() string {
	w.t.Helper()
	return w.Text(w.t, "SELECT coalesce(string_agg(instance_id || ' ' || version, ', ' ORDER BY instance_id), '') FROM public.agents")
}
