package sql_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/realtimetest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// supabaseRoles are a project's: its postgres is no superuser, the one who is
// belongs to the platform.
const supabaseRoles = `
	CREATE ROLE postgres LOGIN CREATEDB CREATEROLE REPLICATION BYPASSRLS PASSWORD 'pw-for-the-test';
	ALTER ROLE postgres SET search_path = "$user", public, extensions;
	CREATE ROLE anon NOLOGIN;
	CREATE ROLE authenticated NOLOGIN;
	CREATE ROLE service_role NOLOGIN BYPASSRLS;
	CREATE ROLE authenticator LOGIN NOINHERIT PASSWORD 'pw-for-the-test';
	GRANT anon, authenticated, service_role TO authenticator;
	CREATE ROLE supabase_auth_admin LOGIN NOINHERIT CREATEROLE;
	CREATE ROLE supabase_storage_admin LOGIN NOINHERIT CREATEROLE;
	CREATE ROLE supabase_realtime_admin NOLOGIN NOINHERIT;
	ALTER ROLE anon SET statement_timeout = '3s';
	ALTER ROLE authenticated SET statement_timeout = '8s';
	GRANT anon, authenticated, service_role TO postgres WITH ADMIN OPTION;`

// supabaseDatabase is what lies in a project's database.
const supabaseDatabase = `
	GRANT ALL ON DATABASE %[1]s TO postgres;
	GRANT ALL ON SCHEMA public TO postgres;
	GRANT USAGE ON SCHEMA public TO anon, authenticated, service_role;
	CREATE SCHEMA extensions;
	GRANT USAGE ON SCHEMA extensions TO postgres, anon, authenticated, service_role;
	CREATE EXTENSION pgcrypto SCHEMA extensions;
	CREATE EXTENSION pg_stat_statements SCHEMA extensions;
	CREATE SCHEMA storage AUTHORIZATION supabase_storage_admin;
	CREATE SCHEMA realtime AUTHORIZATION supabase_realtime_admin;
	CREATE SCHEMA auth AUTHORIZATION supabase_auth_admin;
	GRANT USAGE ON SCHEMA auth, storage, realtime TO postgres, anon, authenticated, service_role;
	CREATE TABLE auth.users (id uuid PRIMARY KEY, email text);
	ALTER TABLE auth.users OWNER TO supabase_auth_admin;
	GRANT ALL ON auth.users TO postgres;
	INSERT INTO auth.users VALUES (gen_random_uuid(), 'ada@example.com');
	CREATE FUNCTION auth.uid() RETURNS uuid LANGUAGE sql STABLE AS
	  $f$ SELECT (current_setting('request.jwt.claims', true)::jsonb ->> 'sub')::uuid $f$;
	ALTER FUNCTION auth.uid() OWNER TO supabase_auth_admin;
	CREATE FUNCTION extensions.watch_ddl() RETURNS event_trigger LANGUAGE plpgsql AS
	  $f$ BEGIN NOTIFY pgrst, 'reload schema'; END $f$;
	CREATE EVENT TRIGGER watch_ddl ON ddl_command_end EXECUTE FUNCTION extensions.watch_ddl();`

// older projects give new objects away; newer ones give nothing.
var supabasePrivileges = map[string]string{
	"giving all": `
	ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON TABLES TO anon, authenticated, service_role;
	ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON FUNCTIONS TO anon, authenticated, service_role;
	ALTER DEFAULT PRIVILEGES FOR ROLE postgres IN SCHEMA public GRANT ALL ON SEQUENCES TO anon, authenticated, service_role;`,
	"giving nothing": `
	ALTER DEFAULT PRIVILEGES FOR ROLE postgres REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;`,
}

// supabase is a server with a project's roles; it hands out databases laid out
// as a project's is. The URL connects as the platform's superuser.
type supabase struct {
	*pgtest.Own
	admin *pgx.Conn
}

func newSupabase(t *testing.T, options ...pgtest.OwnOption) *supabase {
	t.Helper()
	server := pgtest.OwnServer(t, options...)
	first := open(t, server.URL)
	mustExec(t, first, "CREATE ROLE for_a_moment SUPERUSER LOGIN PASSWORD 'pw-for-the-test'")
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := open(t, asRole(t, server, "for_a_moment", "postgres"))
	mustExec(t, second, "ALTER ROLE postgres RENAME TO supabase_admin")
	mustExec(t, second, "ALTER ROLE supabase_admin PASSWORD 'pw-for-the-test'")
	if err := second.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := &supabase{Own: server, admin: open(t, asRole(t, server, "supabase_admin", "postgres"))}
	mustExec(t, s.admin, "DROP ROLE for_a_moment")
	mustExec(t, s.admin, supabaseRoles)
	return s
}

// database makes one, and returns the URL for postgres and a connection of the
// platform's superuser.
func (s *supabase) database(t *testing.T, name, privileges string) (url string, admin *pgx.Conn) {
	t.Helper()
	mustExec(t, s.admin, "CREATE DATABASE "+name)
	admin = open(t, asRole(t, s.Own, "supabase_admin", name))
	mustExec(t, admin, fmt.Sprintf(supabaseDatabase, name)+supabasePrivileges[privileges])
	mustExec(t, admin, realtimetest.Schema)
	mustExec(t, admin, `ALTER TABLE realtime.messages OWNER TO supabase_realtime_admin; ALTER FUNCTION realtime.send OWNER TO supabase_realtime_admin;
		GRANT SELECT, INSERT ON realtime.messages TO postgres`)
	return asRole(t, s.Own, "postgres", name), admin
}

var realtimeTables = []string{"public.clusters", "public.provision_events", "public.provision_logs", "public.provision_progress", "public.provision_stages", "public.provisions"}

// published lists the tables in Realtime's publication.
func published(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	return one[[]string](t, conn, `SELECT coalesce(array_agg(schemaname || '.' || tablename ORDER BY tablename), '{}') FROM pg_publication_tables
		WHERE pubname = 'supabase_realtime'`)
}

func TestMigrateOnSupabase(t *testing.T) {
	t.Parallel()
	mine := "ALTER PUBLICATION supabase_realtime OWNER TO postgres"
	layouts := []struct {
		name, privileges, before string
		as                       string // who migrates; "": postgres
		printed                  bool   // by the script rather than by trellis
		want                     []string
		left                     string // what only others may run
	}{
		{name: "no_publication", privileges: "giving all", want: realtimeTables},
		{name: "empty_publication", privileges: "giving nothing", before: "CREATE PUBLICATION supabase_realtime;" + mine, want: realtimeTables},
		{name: "printed", privileges: "giving all", printed: true, before: "CREATE PUBLICATION supabase_realtime;" + mine, want: realtimeTables},
		{name: "somebody_elses", privileges: "giving all", before: "CREATE PUBLICATION supabase_realtime",
			left: "ALTER PUBLICATION supabase_realtime ADD TABLE " + strings.Join(realtimeTables, ", "), want: []string{}},
		{name: "printed_somebody_elses", privileges: "giving nothing", printed: true, before: "CREATE PUBLICATION supabase_realtime",
			left: "ALTER PUBLICATION supabase_realtime ADD TABLE " + strings.Join(realtimeTables, ", "), want: []string{}},
		{name: "all_tables", privileges: "giving nothing", before: "CREATE PUBLICATION supabase_realtime FOR ALL TABLES"},
		{name: "all_of_public", privileges: "giving all", before: "CREATE PUBLICATION supabase_realtime FOR TABLES IN SCHEMA public"},
		{name: "by_the_superuser", privileges: "giving all", as: "supabase_admin", before: "CREATE PUBLICATION supabase_realtime", want: realtimeTables},
	}
	// Each layout on one of the majors, on which one is drawn; with TENDRIL_TEST_FAULTS=all on both.
	all, drawn := os.Getenv("TENDRIL_TEST_FAULTS") == "all", rand.N(2)
	for major, options := range majors(t) {
		drawn = 1 - drawn
		half := drawn
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			s := newSupabase(t, options...)
			var mu = make(chan *pgx.Conn, 1) // the databases are made one after the other
			mu <- s.admin
			for i, l := range layouts {
				if i%2 != half && !all {
					continue
				}
				t.Run(l.name, func(t *testing.T) {
					t.Parallel()
					s.admin = <-mu
					url, admin := s.database(t, l.name, l.privileges)
					mu <- s.admin
					if l.before != "" {
						mustExec(t, admin, l.before)
					}
					if l.as != "" {
						url = asRole(t, s.Own, l.as, l.name)
					}
					untouched := authSchema(t, admin)
					switch {
					case l.printed:
						told := runScript(t, url)
						if want := "still to be run by supabase_admin: " + l.left + ";"; slices.Contains(told, want) != (l.left != "") {
							t.Errorf("the script says %q, want %q = %t", told, want, l.left != "")
						}
						if n, err := tendrilsql.Migrate(t.Context(), url); err != nil || n != 0 {
							t.Errorf("Migrate(after the script) = %d, %v, want nothing to do", n, err)
						}
					default:
						if _, err := tendrilsql.Migrate(t.Context(), url); err != nil {
							t.Fatalf("Migrate() = %v, want nil", err)
						}
					}
					if got := authSchema(t, admin); got != untouched {
						t.Errorf("schema auth is now %s, was %s", got, untouched)
					}
					wantLeft(t, url, l.left)
					if got := published(t, admin); l.want != nil && !slices.Equal(got, l.want) {
						t.Errorf("published = %v, want %v", got, l.want)
					} else if l.want == nil && (len(got) < 13 || one[int](t, admin, "SELECT count(*)::int FROM pg_publication_rel") > 0) {
						t.Errorf("published = %v, want all, and none added by name", got)
					}
					documentedSQL(t, open(t, url))
					deploysThere(t, url)
					if n := one[int](t, admin, "SELECT count(*) FROM realtime.messages WHERE event = 'work' AND topic LIKE 'tendril-%' AND NOT private"); n == 0 {
						t.Error("Realtime was sent nothing of a deploy")
					}
					if l.left != "" { // whoever may runs it
						mustExec(t, admin, l.left)
						wantLeft(t, url, "")
					}
					if l.want == nil {
						mustExec(t, admin, pages.Block(t, "docs/SUPABASE.md", "DROP PUBLICATION"))
						if got := published(t, admin); !slices.Equal(got, realtimeTables) {
							t.Errorf("published after the documented commands = %v, want %v", got, realtimeTables)
						}
					}
				})
			}
		})
	}
}

func wantLeft(t *testing.T, url, want string) {
	t.Helper()
	left, err := tendrilsql.UsePlatform(t.Context(), url)
	switch {
	case err != nil:
		t.Errorf("UsePlatform() = %v, want nil", err)
	case want == "" && len(left) > 0:
		t.Errorf("UsePlatform() = %v, want nothing left", left)
	case want != "" && !slices.Equal(left, []tendrilsql.Left{{RunAs: "supabase_admin", Statement: want}}):
		t.Errorf("UsePlatform() = %v, want %s by supabase_admin", left, want)
	}
	p, err := tendrilsql.Inspect(context.WithoutCancel(t.Context()), url)
	if err != nil || !slices.Equal(p.Left, left) {
		t.Errorf("Inspect().Left = %v, %v, want %v", p.Left, err, left)
	}
}

// runScript runs the printed script as an editor does and returns what was said
// meanwhile.
func runScript(t *testing.T, url string) (notices []string) {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if err := send(t.Context(), conn, script(t, 0)+"SELECT * FROM tendril.fit_platform();"); err != nil {
		t.Fatalf("the script: %v", err)
	}
	return notices
}

// documentedSQL runs what docs/SUPABASE.md and docs/OPERATIONS.md have people run.
func documentedSQL(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for _, block := range []string{
		pages.Block(t, "docs/SUPABASE.md", "SELECT run_as, statement"),
		pages.Block(t, "docs/SUPABASE.md", "SELECT public.create_org"),
		pages.Block(t, "docs/SUPABASE.md", "UPDATE tendril.settings SET poll"),
		pages.Block(t, "docs/SUPABASE.md", "UPDATE tendril.settings SET log_archive_after"),
		pages.Block(t, "docs/OPERATIONS.md", "UPDATE tendril.settings SET provision_delete_after"),
		pages.Code(t, "docs/OPERATIONS.md", "SELECT set_cluster_key(id, 'age1…') FROM clusters WHERE name = 'prod'", "age1…", "age1"+strings.Repeat("q", 58)),
		pages.Code(t, "docs/SCALE.md", "UPDATE tendril.settings SET poll = '15 seconds'"),
		pages.Code(t, "docs/ALERTS.md", "SELECT tendril.reap()"),
	} {
		if err := send(t.Context(), conn, block); err != nil {
			t.Errorf("%s: %v", block, err)
		}
	}
	got := one[string](t, conn, `SELECT concat_ws(' ', o.name, u.email, m.role, c.name, (SELECT count(*) FROM tendril.cluster_tokens WHERE cluster_id = c.id))
		FROM public.orgs o JOIN public.org_members m ON m.org_id = o.id JOIN auth.users u ON u.id = m.user_id JOIN public.clusters c ON c.org_id = o.id`)
	if want := "acme ada@example.com admin prod 1"; got != want {
		t.Errorf("what the documented SQL makes = %s, want %s", got, want)
	}
}

// authSchema is what there is in the schema that is Supabase's own.
func authSchema(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return one[string](t, conn, `SELECT concat(n.nspowner::regrole, n.nspacl, (SELECT string_agg(concat(p.oid::regprocedure, p.proowner::regrole, p.proacl, p.prosrc), ';') FROM pg_proc p
		WHERE p.pronamespace = n.oid), (SELECT string_agg(concat(c.relname, c.relacl), ';') FROM pg_class c WHERE c.relnamespace = n.oid)) FROM pg_namespace n WHERE nspname = 'auth'`)
}
