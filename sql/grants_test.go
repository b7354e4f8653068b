package sql_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// Databases differ in what new objects give away. Both kinds end up the same.
var regimes = map[string]string{
	"grants nothing": "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC",
	"grants all": `ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO anon, authenticated, service_role;
		ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO anon, authenticated, service_role;
		ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO anon, authenticated, service_role`,
}

// newRegime is an empty database of that kind.
func newRegime(t *testing.T, statements string) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	db := pgtest.New(t)
	conn := db.Conn(t)
	for _, role := range []string{"anon", "authenticated", "service_role"} {
		mustExec(t, conn, "DO $$ BEGIN CREATE ROLE "+role+"; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
	}
	mustExec(t, conn, statements)
	return db, conn
}

// Every privilege that the outsiders' roles have on any object of ours, by name.
func TestGrants(t *testing.T) {
	t.Parallel()
	for name, regime := range regimes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, conn := newRegime(t, regime)
			want := map[string]bool{
				"authenticated INSERT(cluster_id,config_snapshot,id,operation,priority) provisions":             true,
				"service_role INSERT(cluster_id,config_snapshot,id,operation,priority,requested_by) provisions": true,
				"authenticated EXECUTE tendril.orgs_with_role":                                                  true,
				"authenticated EXECUTE tendril.current_user_id":                                                 true,
			}
			for table := range tables {
				want["authenticated SELECT "+table], want["service_role SELECT "+table] = true, true
			}
			for f, who := range functions {
				for _, role := range who.roles() {
					want[role+" EXECUTE "+f] = true
				}
			}
			if _, err := tendrilsql.Migrate(t.Context(), db.URL); err != nil {
				t.Fatal(err)
			}
			got := grants(t, conn)
			for g := range got {
				if !want[g] {
					t.Errorf("granted beyond what is meant: %s", g)
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
