package main

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// The way of somebody who has an editor and a role that is no superuser.
func TestMigratePrint(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t)
	admin, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close(context.Background()) })
	run := func(text string) {
		t.Helper()
		if _, err := admin.PgConn().Exec(t.Context(), text).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	run(`CREATE ROLE owner LOGIN CREATEROLE PASSWORD 'pw-for-the-test'; GRANT CREATE ON DATABASE postgres TO owner;
		GRANT ALL ON SCHEMA public TO owner WITH GRANT OPTION; CREATE PUBLICATION supabase_realtime`)
	env := []string{"TRELLIS_DATABASE_URL=" + regexp.MustCompile(`//.*@`).ReplaceAllString(server.URL, "//owner:pw-for-the-test@")}

	whole := trellis(t, "migrate", "--print", "--data-dir", t.TempDir())
	whole.want(t, "migrate --print without a database", exitOK, "$migration_40$", "fit_platform();")
	left := trellisEnv(t, env, "migrate", "--print")
	if left != whole {
		t.Errorf("migrate --print for an empty database differs from the whole script; it says %q", left.stderr)
	}
	run("SET ROLE owner; " + left.out + "; RESET ROLE")

	const statement = "ALTER PUBLICATION supabase_realtime ADD TABLE public.clusters, public.provision_events, public.provision_logs, public.provision_progress, public.provision_stages, public.provisions;\n"
	r := trellisEnv(t, env, "migrate")
	r.want(t, "migrate after the script", exitOK)
	if want := "Only postgres may run this; then migrate again:\n  " + statement; r.out != "The database is up to date.\n" || r.stderr != want {
		t.Errorf("migrate after the script says %q and %q, want that it is up to date, and %q", r.out, r.stderr, want)
	}
	r = trellisEnv(t, env, "migrate", "--print")
	r.want(t, "migrate --print when up to date", exitOK, "-- The database is at migration ", "\n-- Only postgres may run this:\n"+statement)
	run(statement)
	if r = trellisEnv(t, env, "migrate"); r.stderr != "" {
		t.Errorf("migrate after all has been run says %q, want nothing more", r.stderr)
	}

	run("CREATE PUBLICATION everything FOR ALL TABLES")
	trellisEnv(t, env, "migrate").want(t, "migrate beside a publication of all tables", exitOK, `"everything" covers all tables`, "docs/SUPABASE.md")
	trellisEnv(t, env, "migrate", "-o", "json").want(t, "migrate -o json beside a publication of all tables", exitOK, `"broad_publications"`, `"everything"`)
	run("DROP PUBLICATION everything")

	run("CREATE ROLE weak LOGIN PASSWORD 'pw-for-the-test'")
	weak := []string{strings.Replace(env[0], "//owner:", "//weak:", 1)}
	for _, verb := range [][]string{{"migrate"}, {"migrate", "--print"}} {
		trellisEnv(t, weak, verb...).want(t, strings.Join(verb, " ")+" as somebody else", exitFailed, "permission denied", "later ones the role that ran the first")
	}
	run("INSERT INTO tendril.schema_migrations (version_id, is_applied) VALUES (9999, true)")
	trellisEnv(t, env, "migrate", "--print").want(t, "migrate --print of a newer database", exitFailed, "the database is at migration 9999")
	trellisEnv(t, env, "migrate").want(t, "migrate of a newer database", exitFailed, "the database is at migration 9999")
	trellisEnv(t, env, "migrate", "--accept-newer").want(t, "migrate --accept-newer", exitOK, "The database is at migration 9999, newer than this program's ")
	trellisEnv(t, env, "migrate", "--accept-newer", "-o", "json").want(t, "migrate --accept-newer -o json", exitOK, `"newer": 9999`)
	trellisEnv(t, []string{"TRELLIS_DATABASE_URL=postgres://me:s3cret@127.0.0.1:1/x"}, "migrate", "--print").want(t, "migrate --print without a server", exitUnreachable, "could not ask the database")
}
