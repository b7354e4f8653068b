package sql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// Databases differ in what new objects give away. Both kinds end up the same.
var regimes = map[string]string{
	"grants nothing": "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC",
	"grants all": `ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO anon, authenticated, service_role;
		ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO anon, authenticated, service_role;
		ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO anon, authenticated, service_role`,
}

var (
	memberTables = []string{"orgs", "org_members", "clusters", "agents", "audit_events", "templates", "template_pins", "workspaces",
		"provisions", "provision_progress", "provision_logs", "provision_events", "resources", "cluster_overview"}
	agentFunctions  = []string{"register_agent", "agent_heartbeat", "fetch_next_provision", "insert_provision_log", "update_provision_status", "fail_orphaned_provisions"}
	peopleFunctions = []string{"create_cluster", "rotate_cluster_token", "revoke_cluster_token", "cancel_provision", "release_workspace"}
	policyFunctions = []string{"tendril.orgs_with_role", "tendril.current_user_id"}
)

// Every privilege that the outsiders' roles have on any object of ours, by name.
func TestGrants(t *testing.T) {
	t.Parallel()
	for name, regime := range regimes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			conn := db.Conn(t)
			mustExec(t, conn, "DO $$ BEGIN CREATE ROLE anon; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
			mustExec(t, conn, "DO $$ BEGIN CREATE ROLE authenticated; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
			mustExec(t, conn, "DO $$ BEGIN CREATE ROLE service_role; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
			mustExec(t, conn, regime)
			want := map[string]bool{"authenticated INSERT(cluster_id,config_snapshot,id,priority) provisions": true}
			for _, table := range memberTables {
				want["authenticated SELECT "+table] = true
			}
			for _, f := range peopleFunctions {
				want["authenticated EXECUTE "+f] = true
			}
			for _, f := range policyFunctions {
				want["authenticated EXECUTE "+f] = true
			}
			for _, f := range agentFunctions {
				want["anon EXECUTE "+f], want["tendril_agent EXECUTE "+f] = true, true
			}
			// Nothing is open between two migrations either: one may break off.
			var got map[string]bool
			for version := int64(1); ; version++ {
				n, err := tendrilsql.MigrateTo(t.Context(), db.URL, version)
				if err != nil {
					t.Fatal(err)
				}
				if n == 0 {
					break
				}
				got = grants(t, conn)
				for g := range got {
					if !want[g] {
						t.Errorf("after migration %d, granted beyond what is meant: %s", version, g)
					}
				}
			}
			for g := range want {
				if !got[g] {
					t.Errorf("missing: %s", g)
				}
			}
		})
	}
}

// grants lists what the outsiders' roles may do, PUBLIC's grants included.
func grants(t *testing.T, conn *pgx.Conn) map[string]bool {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		WITH roles AS (SELECT oid, rolname FROM pg_roles WHERE rolname IN ('anon', 'authenticated', 'service_role', 'tendril_agent'))
		SELECT rolname || ' ' || privilege || ' ' || object FROM (
		  SELECT r.rolname, p.privilege, CASE n.nspname WHEN 'public' THEN '' ELSE n.nspname || '.' END || c.relname AS object
		  FROM roles r, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
		       unnest(CASE c.relkind WHEN 'S' THEN ARRAY['USAGE', 'SELECT', 'UPDATE'] ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'] END) AS p (privilege)
		  WHERE n.nspname IN ('public', 'tendril') AND c.relkind IN ('r', 'v', 'S')
		    AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege(r.oid, c.oid, p.privilege) ELSE has_table_privilege(r.oid, c.oid, p.privilege) END
		  UNION ALL
		  SELECT r.rolname, p.privilege || '(' || string_agg(a.attname, ',' ORDER BY a.attname) || ')', CASE n.nspname WHEN 'public' THEN '' ELSE n.nspname || '.' END || c.relname
		  FROM roles r, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0,
		       unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) AS p (privilege)
		  WHERE n.nspname IN ('public', 'tendril') AND c.relkind IN ('r', 'v')
		    AND has_column_privilege(r.oid, c.oid, a.attnum, p.privilege) AND NOT has_table_privilege(r.oid, c.oid, p.privilege)
		  GROUP BY r.rolname, p.privilege, n.nspname, c.relname
		  UNION ALL
		  SELECT r.rolname, 'EXECUTE', CASE n.nspname WHEN 'public' THEN '' ELSE n.nspname || '.' END || f.proname
		  FROM roles r, pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace
		  WHERE n.nspname IN ('public', 'tendril') AND has_function_privilege(r.oid, f.oid, 'EXECUTE')
		  UNION ALL
		  SELECT r.rolname, p.privilege, 'schema tendril' FROM roles r, unnest(ARRAY['USAGE', 'CREATE']) AS p (privilege)
		  WHERE has_schema_privilege(r.oid, 'tendril', p.privilege)
		) all_grants`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	set := make(map[string]bool, len(list))
	for _, g := range list {
		set[g] = true
	}
	return set
}

// Everybody sees what is their organisation's and nothing else.
func TestMembersSeeTheirOwn(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	if _, err := agent.lines(t, claim, 1, "a line\n"); err != nil {
		t.Fatal(err)
	}
	agent.mustReport(t, claim, "PROCESSING", `{"stage": "plan", "commit": "`+strings.Repeat("a", 40)+`"}`)
	count := func(claims, table string) (n int, err error) {
		err = pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', $1, true)", claims); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE authenticated"); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), "SELECT count(*) FROM public."+table).Scan(&n)
		})
		return n, err
	}
	for _, table := range memberTables {
		total := one[int](t, w.conn, "SELECT count(*) FROM public."+table)
		for _, user := range []uuid.UUID{w.viewer, w.operator, w.adminID} {
			n, err := count(fmt.Sprintf(`{"sub": %q}`, user), table)
			want := total
			switch table {
			case "orgs":
				want = 1 // of two
			case "org_members":
				want = 3 // of four
			}
			if err != nil || n != want {
				t.Errorf("member sees %d rows of %s, %v, want %d", n, table, err, want)
			}
		}
		for _, claims := range []string{fmt.Sprintf(`{"sub": %q}`, uuid.New()), `{"sub": "not a uuid"}`, `{"sub": 7}`, `{}`, `[]`, `"x"`, `not json`, ``} {
			if n, err := count(claims, table); err != nil || n != 0 {
				t.Errorf("claims %q see %d rows of %s, %v, want 0 and no error", claims, n, table, err)
			}
		}
	}
	if n, err := count(fmt.Sprintf(`{"sub": %q}`, w.stranger), "provisions"); err != nil || n != 0 {
		t.Errorf("stranger sees %d provisions, %v, want 0", n, err)
	}
}

// Nobody but the functions changes a row.
func TestPeopleCannotWriteTables(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	w.deploy(t, w.operator, snapshot("a"))
	for _, statement := range []string{
		"UPDATE public.provisions SET status = 'SUCCESS'",
		"DELETE FROM public.provisions",
		"UPDATE public.workspaces SET locked_at = now()",
		"INSERT INTO public.org_members (org_id, user_id, role) SELECT id, gen_random_uuid(), 'admin' FROM public.orgs",
		"INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at) SELECT id, 1, org_id, 'STDOUT', 'x', now() FROM public.provisions",
		"SELECT * FROM tendril.claims", "SELECT * FROM tendril.cluster_tokens", "SELECT tendril.reap()",
		"SELECT tendril.issue_token(gen_random_uuid())", "SELECT public.register_agent('x', '{}')",
	} {
		err := w.try(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), statement)
			return err
		})
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
			t.Errorf("%s: %v, want permission denied (42501)", statement, err)
		}
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	if !strings.HasPrefix(w.token, "tnd_") || len(w.token) != len("tnd_")+43 {
		t.Errorf("token has %d characters and begins %q, want tnd_ and 32 bytes in base64url", len(w.token), w.token[:4])
	}
	agent := w.newAgent(t, "one")
	stored := one[[]byte](t, w.conn, "SELECT digest FROM tendril.cluster_tokens")
	if strings.Contains(fmt.Sprintf("%x", stored), w.tokenHash) {
		t.Error("the table holds what the agent sends; want only a digest of it")
	}

	var newID uuid.UUID
	var newToken string
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT token_id, token FROM public.rotate_cluster_token($1, '1 hour')", w.cluster).Scan(&newID, &newToken)
	})
	old := w.tokenHash
	for _, hash := range []string{old, hashOf(newToken)} { // both, so that a rotation has no gap
		w.tokenHash = hash
		if _, err := agent.heartbeat(t); err != nil {
			t.Errorf("heartbeat during rotation: %v", err)
		}
	}
	mustExec(t, w.conn, "UPDATE tendril.cluster_tokens SET expires_at = clock_timestamp() - interval '1 second' WHERE id <> $1", newID)
	w.tokenHash = old
	_, err := agent.heartbeat(t)
	wantRefusal(t, err, "PT401", "token_invalid")
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.revoke_cluster_token($1, $2)", w.cluster, newID)
		return err
	})
	w.tokenHash = hashOf(newToken)
	_, err = agent.heartbeat(t)
	wantRefusal(t, err, "PT401", "token_invalid")
	_, err = w.conn.Exec(t.Context(), "SELECT public.rotate_cluster_token($1, '31 days')", w.cluster)
	wantRefusal(t, err, "PT422", "bad_overlap")
	for _, user := range []uuid.UUID{w.operator, w.stranger} {
		err := w.try(t, "authenticated", user, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "SELECT public.rotate_cluster_token($1)", w.cluster)
			return err
		})
		wantRefusal(t, err, "PT404", "cluster_not_found")
	}
	for _, hash := range []string{"", "x", strings.Repeat("0", 64), w.token, strings.ToUpper(old)} {
		w.tokenHash = hash
		_, err := agent.heartbeat(t)
		wantRefusal(t, err, "PT401", "token_invalid")
	}
}

func TestAuditIsAppendOnly(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, statement := range []string{"UPDATE public.audit_events SET action = 'x'", "DELETE FROM public.audit_events", "TRUNCATE public.audit_events"} {
		_, err := w.conn.Exec(t.Context(), statement)
		wantRefusal(t, err, "PT403", "append_only")
	}
}

func TestRegisterRefusesTheSameTwice(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	first := w.newAgent(t, "one")
	second := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "one", host: "elsewhere.example"}
	wantRefusal(t, second.register(t), "PT409", "agent_name_taken")
	copied := &agent{w: w, instance: first.instance, boot: uuid.New(), name: "copy", host: "elsewhere.example"}
	if got := wantRefusal(t, copied.register(t), "PT409", "agent_instance_elsewhere"); !strings.Contains(got, "one.example") {
		t.Errorf("error = %q, want it to name the host", got)
	}
	mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = clock_timestamp() - interval '31 seconds'")
	if err := second.register(t); err != nil {
		t.Errorf("register the name of an agent long gone: %v", err)
	}
}
