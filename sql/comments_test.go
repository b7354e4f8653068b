package sql_test

import (
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// Every table and column says in one sentence what it is for: docs/CONTRACT.md is made
// from the comments.
func TestContractTablesHaveComments(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t, migrated).Conn(t)
	rows, _ := conn.Query(t.Context(), `
		SELECT c.oid::regclass::text, coalesce(obj_description(c.oid, 'pg_class'), '')
		FROM pg_class c WHERE c.relnamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND c.relkind IN ('r', 'p', 'v')
		UNION ALL
		SELECT c.oid::regclass || '.' || a.attname, coalesce(col_description(c.oid, a.attnum), '')
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		WHERE c.relnamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND c.relkind IN ('r', 'p', 'v')`)
	var name, comment string
	seen := 0
	sentence := regexp.MustCompile(`^[A-Za-z0-9].*\.$`)
	if _, err := pgx.ForEachRow(rows, []any{&name, &comment}, func() error {
		seen++
		if !sentence.MatchString(comment) {
			t.Errorf("the comment on %s is %q, want a sentence", name, comment)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if seen < 300 {
		t.Errorf("%d tables and columns seen, want all", seen)
	}
}
