package sql_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// schemaOf lists what the catalogue says of our objects, an entry a line.
// OIDs and times are left out.
func schemaOf(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		WITH ours AS (SELECT oid, nspname, nspacl, nspowner FROM pg_namespace WHERE nspname IN ('public', 'tendril', 'auth'))
		SELECT line FROM (
		  SELECT concat_ws(' ', 'schema', nspname, nspowner::regrole, nspacl) FROM ours WHERE nspname <> 'public'
		  UNION ALL
		  SELECT concat_ws(' ', 'relation', c.oid::regclass, c.relkind, c.relowner::regrole, c.relacl, c.relrowsecurity, c.relreplident, c.reloptions,
		    pg_get_viewdef(c.oid), pg_get_indexdef(c.oid))
		  FROM pg_class c JOIN ours ON ours.oid = c.relnamespace WHERE c.relkind <> 'c'
		  UNION ALL
		  SELECT concat_ws(' ', 'column', a.attrelid::regclass, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
		    a.attcompression, a.attacl, pg_get_expr(d.adbin, d.adrelid))
		  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN ours ON ours.oid = c.relnamespace
		  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE a.attnum > 0
		  UNION ALL
		  SELECT concat_ws(' ', 'constraint', conrelid::regclass, conname, replace(pg_get_constraintdef(c.oid), ' NOT VALID', '')) FROM pg_constraint c JOIN ours ON ours.oid = c.connamespace
		  UNION ALL
		  SELECT concat_ws(' ', 'trigger', pg_get_triggerdef(g.oid), g.tgenabled) FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN ours ON ours.oid = c.relnamespace
		  WHERE NOT g.tgisinternal
		  UNION ALL
		  SELECT concat_ws(' ', 'policy', p.polrelid::regclass, p.polname, p.polcmd, p.polroles::regrole[], pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
		  FROM pg_policy p
		  UNION ALL
		  SELECT concat_ws(' ', 'function', p.oid::regprocedure, p.proowner::regrole, p.proacl, pg_get_functiondef(p.oid)) FROM pg_proc p JOIN ours ON ours.oid = p.pronamespace
		  UNION ALL
		  SELECT concat_ws(' ', 'comment', obj_description(oid, 'pg_namespace')) FROM ours
		  UNION ALL
		  SELECT concat_ws(' ', 'publication', p.pubname, p.puballtables, t.schemaname, t.tablename) FROM pg_publication p LEFT JOIN pg_publication_tables t USING (pubname)
		  UNION ALL
		  SELECT concat_ws(' ', 'privileges', d.defaclrole::regrole, d.defaclnamespace::regnamespace, d.defaclobjtype, d.defaclacl) FROM pg_default_acl d
		) all_lines (line)`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "comment" || line == "comment standard public schema" })
	slices.Sort(lines)
	return lines
}

// difference lists what only one of two has.
func difference(a, b []string) []string {
	var only []string
	for _, line := range a {
		if !slices.Contains(b, line) {
			only = append(only, "- "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			only = append(only, "+ "+line)
		}
	}
	return only
}
