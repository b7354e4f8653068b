package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// rowsKept is what a backup must bring back, row by row.
const rowsKept = `SELECT (SELECT count(*) FROM public.provisions), (SELECT count(*) FROM public.provision_logs) + (SELECT coalesce(sum(cardinality(log_chunks)), 0) FROM public.provision_log_archives),
	(SELECT count(*) FROM public.audit_events), (SELECT count(*) FROM tendril.blobs)`

// What docs/OPERATIONS.md says of backing up and restoring, done word by word: to
// a server that has never heard of Tendril, by a dump that has no roles.
func TestBackUpAndRestore(t *testing.T) {
	t.Parallel()
	s, repo, identity := keptSite(t)
	if got := s.AwaitEnd(s.DeployTemplate(repo, "acme/prod", map[string]any{"word": "a"})); got != "SUCCESS" {
		t.Fatalf("deploy = %s, want SUCCESS", got)
	}
	var before, after [4]int
	from := newTypist(t, "TRELLIS_DATABASE_URL="+s.URL)
	from.run(pages.Block(t, "docs/OPERATIONS.md", "trellis gc"))
	from.run(pages.Block(t, "docs/OPERATIONS.md", "pg_dump"))
	if err := s.Conn.QueryRow(t.Context(), rowsKept).Scan(&before[0], &before[1], &before[2], &before[3]); err != nil {
		t.Fatal(err)
	}

	other := pgtest.OwnServer(t)
	url := other.Server().URL("tendril")
	conn, err := pgx.Connect(t.Context(), other.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE tendril"); err != nil {
		t.Fatal(err)
	}
	// The migrations make the roles, and what the dump leaves to the server.
	out := from.with("TRELLIS_DATABASE_URL=" + url).run(pages.Block(t, "docs/OPERATIONS.md", "pg_restore"))
	if strings.Count(out, "applied") != 1 {
		t.Errorf("the commands that restore say %s, want migrations applied by the first only", out)
	}

	restored, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = restored.Close(context.Background()) }()
	if err := restored.QueryRow(t.Context(), rowsKept).Scan(&after[0], &after[1], &after[2], &after[3]); err != nil {
		t.Fatal(err)
	}
	if before != after || after[1] == 0 {
		t.Errorf("provisions, lines, deeds and blobs = %v, want %v", after, before)
	}
	// The cluster's token and identity are good there, and its state is known.
	w := *s.World
	w.URL, w.Conn = url, restored
	there := *s
	there.World, there.QueueURL = &w, w.AgentURL(t)
	a := there.NewAgent("two", 4, "")
	a.ManageState(identity)
	a.Start()
	id := there.DeployTemplate(repo, "acme/prod", map[string]any{"word": "a"})
	if got := there.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("deploy after the restore = %s %s, want SUCCESS", got, there.Message(id))
	}
	var changes string
	if err := restored.QueryRow(t.Context(), "SELECT plan_summary ->> 'add' || ' ' || (plan_summary ->> 'change') || ' ' || (plan_summary ->> 'destroy') FROM public.provisions WHERE id = $1", id).Scan(&changes); err != nil || changes != "0 0 0" {
		t.Errorf("the plan after the restore = %q, %v, want what is there to be known: 0 0 0", changes, err)
	}
}
