package sql_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

var (
	notCode = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'[^']*'`)
	writes  = regexp.MustCompile(`(?i)\b(UPDATE\s+(?:ONLY\s+)?(?:public|tendril)\.\w+(?:\s+\w+)?\s+SET|DELETE\s+FROM\s+(?:public|tendril)\.\w+)\b`)
	where   = regexp.MustCompile(`(?i)\bWHERE\b`)
)

// withoutWhere lists the UPDATEs and DELETEs of a function that have no WHERE,
// and says how many it looked at.
func withoutWhere(source string) (bad []string, looked int) {
	source = notCode.ReplaceAllString(source, " ")
	for _, at := range writes.FindAllStringIndex(source, -1) {
		looked++
		depth, top := 0, strings.Builder{} // what stands in no parentheses of its own
	statement:
		for _, r := range source[at[0]:] {
			switch {
			case r == '(':
				depth++
			case r == ')' && depth == 0, r == ';':
				break statement
			case r == ')':
				depth--
			case depth == 0:
				top.WriteRune(r)
			}
		}
		if !where.MatchString(top.String()) {
			bad = append(bad, strings.Join(strings.Fields(top.String()), " "))
		}
	}
	return bad, looked
}

// Supabase loads safeupdate into PostgREST's sessions. It refuses an UPDATE or
// DELETE without WHERE, in functions too, and it cannot be had here.
func TestNoWriteWithoutWhere(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		"UPDATE tendril.pulse SET a = (SELECT 1 WHERE true);":                                     1,
		"WITH x AS (DELETE FROM public.orgs RETURNING id) UPDATE public.orgs o SET a = 1 WHERE b": 1,
		"UPDATE public.orgs SET name = 'no WHERE' -- WHERE\n":                                     1,
		"UPDATE public.orgs SET a = 1 WHERE id = (SELECT 2); INSERT INTO b DO UPDATE SET c = 1":   0,
	} {
		if bad, _ := withoutWhere(source); len(bad) != want {
			t.Errorf("withoutWhere(%s) = %v, want %d", source, bad, want)
		}
	}
	w := newContract(t)
	rows, err := w.conn.Query(t.Context(), "SELECT oid::regprocedure::text, prosrc FROM pg_proc WHERE pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace)")
	if err != nil {
		t.Fatal(err)
	}
	var name, source string
	all := 0
	if _, err := pgx.ForEachRow(rows, []any{&name, &source}, func() error {
		bad, looked := withoutWhere(source)
		for _, b := range bad {
			t.Errorf("%s: %s: has no WHERE", name, b)
		}
		all += looked
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if all < 30 {
		t.Errorf("looked at %d statements, want all of the functions'", all)
	}
}
