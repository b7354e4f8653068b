package main

import (
	"context"
	"encoding/json"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// First it is told how much there is, then all of it is done, by a role that owns
// the contract and is no superuser.
func TestGC(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t)
	conn, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	exec := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for _, statement := range []string{
		"CREATE ROLE owner LOGIN CREATEROLE PASSWORD 'pw-for-the-test'", "GRANT CREATE ON DATABASE postgres TO owner", "GRANT ALL ON SCHEMA public TO owner WITH GRANT OPTION",
		"CREATE ROLE other LOGIN PASSWORD 'pw-for-the-test'",
	} {
		exec(statement)
	}
	as := func(role string) string {
		return regexp.MustCompile(`//.*@`).ReplaceAllString(server.URL, "//"+role+":pw-for-the-test@")
	}
	trellis(t, "migrate", "--database-url", as("owner")).want(t, "migrate", exitOK)
	exec(`WITH o AS (INSERT INTO public.orgs (name) VALUES ('acme') RETURNING id)
		INSERT INTO public.clusters (org_id, name) SELECT id, 'prod' FROM o`)
	exec(`INSERT INTO public.provisions (cluster_id, config_snapshot) SELECT id,
		'{"template_source": {"repo": "https://git.example/a/b", "version": "v1"}, "workspace": "a"}' FROM public.clusters, generate_series(1, 2)`)
	exec("SELECT tendril.system_line(id, repeat('x', 1000) || n) FROM public.provisions, generate_series(1, 500) n")
	exec("UPDATE public.provisions SET status = 'CANCELLED', finished_at = clock_timestamp() - interval '10 days'")
	exec("UPDATE tendril.settings SET log_archive_after = '9 days' WHERE only_row")

	gc := func(args ...string) result {
		t.Helper()
		return trellis(t, append([]string{"gc", "--database-url", as("owner"), "--data-dir", t.TempDir()}, args...)...)
	}
	gc("--dry-run").want(t, "gc --dry-run", exitOK, "2 logs with 1000 rows (about 980.3 KiB of text) would be archived")
	gc("--dry-run", "--older-than", "11 days").want(t, "gc --dry-run of older ones", exitOK, "0 logs with 0 rows")
	gc("--older-than", "a while").want(t, "gc of no time", exitUsage, `--older-than: invalid input syntax for type interval: "a while"; give a time such as 48h`)
	gc("--compact", "--dry-run").want(t, "gc of both", exitUsage, "give one of them")
	gc("more").want(t, "gc more", exitUsage)
	trellis(t, "gc", "--database-url", "postgres://me:s3cret@127.0.0.1:1/x").want(t, "gc without a server", exitUnreachable, "could not clean up old logs")

	trellis(t, "gc", "--database-url", as("other")).want(t, "gc as somebody else", exitFailed, "connect as the role that has migrated the database")

	r := gc("-o", "json", "--compact")
	r.want(t, "gc -o json", exitOK)
	var said collected
	if err := json.Unmarshal([]byte(r.out), &said); err != nil || said.Archived.Logs != 2 || said.Archived.Rows != 1000 || said.Deleted != 0 ||
		said.After.Rows != 0 || said.Before.Rows == 0 || said.After.Archive == 0 || said.Seconds <= 0 {
		t.Errorf("gc -o json = %s, %v, want both logs archived and no row left", r.out, err)
	}
	exec("UPDATE tendril.settings SET log_delete_after = '9 days' WHERE only_row")
	gc("--full").want(t, "gc of what is to be deleted", exitOK, "Archived 0 logs with 0 rows (0 B of text), deleted 2 logs, in ", "Logs took ")
	exec("DROP FUNCTION tendril.archive_logs")
	gc().want(t, "gc of another schema", exitFailed, "run `trellis migrate` first")
}
