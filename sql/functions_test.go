package sql_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// A function that stands in two files would be whichever file comes last.
func TestEachFunctionStandsOnce(t *testing.T) {
	t.Parallel()
	var all []string
	for _, names := range tendrilsql.FunctionNames(t) {
		all = append(all, names...)
	}
	slices.Sort(all)
	if len(all) < 100 {
		t.Fatalf("%d functions in sql/functions, want all of them", len(all))
	}
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			t.Errorf("%s stands in sql/functions twice", all[i])
		}
	}
	conn := pgtest.New(t, migrated).Conn(t)
	rows, _ := conn.Query(t.Context(), `SELECT n.nspname || '.' || p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname IN ('public', 'tendril') ORDER BY (n.nspname || '.' || p.proname) COLLATE "C"`)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, all) {
		t.Errorf("the database's functions are not those of sql/functions, each once:\n got %q\nwant %q", got, all)
	}
}

// Functions are made without a check of their bodies, for they use each other.
func TestFunctionBodiesAreValid(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t, migrated).Conn(t)
	for file, text := range tendrilsql.FunctionTexts(t) {
		if _, err := conn.Exec(t.Context(), text); err != nil {
			t.Errorf("sql/functions/%s.sql, applied with its bodies checked: %v", file, err)
		}
	}
}

func TestFunctionsFollowTheirFiles(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t, migrated).Conn(t)
	apply := func(files map[string]string) {
		t.Helper()
		all := tendrilsql.FunctionTexts(t)
		for name, text := range files {
			all[name] = text
		}
		if _, err := conn.Exec(t.Context(), tendrilsql.ApplyFunctions(t, all)); err != nil {
			t.Fatalf("apply %q: %v", files, err)
		}
	}
	signatures := func() (all []string) {
		t.Helper()
		rows, _ := conn.Query(t.Context(), "SELECT oid::regprocedure || ' ' || prorettype::regtype FROM pg_proc WHERE proname LIKE 'tried%' ORDER BY 1")
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	const body = "LANGUAGE sql SET search_path = pg_catalog, pg_temp AS 'SELECT null'"
	for _, step := range []struct {
		about string
		files map[string]string
		want  []string
	}{
		{"a new file", map[string]string{"tried": "CREATE OR REPLACE FUNCTION tendril.tried(p int) RETURNS int " + body +
			";\nCREATE OR REPLACE FUNCTION tendril.tried_too() RETURNS int " + body + ";"}, []string{"tendril.tried(integer) integer", "tendril.tried_too() integer"}},
		{"other arguments", map[string]string{"tried": "CREATE OR REPLACE FUNCTION tendril.tried(p int, q int) RETURNS int " + body +
			";\nCREATE OR REPLACE FUNCTION tendril.tried_too() RETURNS int " + body + ";"}, []string{"tendril.tried(integer,integer) integer", "tendril.tried_too() integer"}},
		{"another answer, and one function less", map[string]string{"tried": "CREATE OR REPLACE FUNCTION tendril.tried(p int, q int) RETURNS text " + body + ";"},
			[]string{"tendril.tried(integer,integer) text"}},
		{"moved to another file", map[string]string{"tried_b": "CREATE OR REPLACE FUNCTION tendril.tried(p int, q int) RETURNS text " + body + ";"},
			[]string{"tendril.tried(integer,integer) text"}},
		{"in no file", nil, nil},
	} {
		apply(step.files)
		if got := signatures(); !slices.Equal(got, step.want) {
			t.Errorf("%s: the database has %q, want %q", step.about, got, step.want)
		}
	}
	var open bool
	if err := conn.QueryRow(t.Context(), "SELECT bool_or(has_function_privilege('anon', oid, 'EXECUTE')) FROM pg_proc WHERE pronamespace = 'tendril'::regnamespace").Scan(&open); err != nil || open {
		t.Errorf("anon may execute a function of schema tendril: %t, %v; want false", open, err)
	}
}

// To create a trigger again locks its table against writers, so it is done only where its
// statement has changed or somebody has dropped it.
func TestTriggersFollowTheirFiles(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t, migrated).Conn(t)
	mustExec(t, conn, "CREATE TABLE public.tried (a int, b int)")
	apply := func(text string) {
		t.Helper()
		all := tendrilsql.FunctionTexts(t)
		if text != "" {
			all["tried"] = "CREATE OR REPLACE FUNCTION tendril.tried() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$BEGIN RETURN NEW; END$$;\n" + text
		}
		if _, err := conn.Exec(t.Context(), tendrilsql.ApplyFunctions(t, all)); err != nil {
			t.Fatalf("apply %q: %v", text, err)
		}
	}
	// A trigger's row has the transaction that made it.
	made := func() string {
		t.Helper()
		return one[string](t, conn, "SELECT coalesce(string_agg(tgname || ' ' || xmin, ', ' ORDER BY tgname), '') FROM pg_trigger WHERE tgrelid = 'public.tried'::regclass")
	}
	others := func() string {
		t.Helper()
		return one[string](t, conn, "SELECT string_agg(oid || ' ' || xmin, ', ' ORDER BY oid) FROM pg_trigger WHERE NOT tgisinternal AND tgrelid <> 'public.tried'::regclass")
	}
	const onA = "CREATE OR REPLACE TRIGGER tried_a BEFORE UPDATE OF a ON public.tried\n  FOR EACH ROW EXECUTE FUNCTION tendril.tried();\n"
	before := others()
	apply(onA)
	first := made()
	if first == "" {
		t.Fatal("a new trigger: none is there")
	}
	apply("-- another text of the file\n" + onA)
	if got := made(); got != first {
		t.Errorf("a file that changed elsewhere: triggers %q, want %q, not made again", got, first)
	}
	apply(strings.Replace(onA, "UPDATE OF a", "UPDATE OF b", 1))
	changed := made()
	if changed == first {
		t.Errorf("another statement: triggers %q, want it made again", changed)
	}
	mustExec(t, conn, "DROP TRIGGER tried_a ON public.tried")
	apply("-- once more\n" + strings.Replace(onA, "UPDATE OF a", "UPDATE OF b", 1))
	if made() == "" {
		t.Error("a trigger that somebody dropped is not made again")
	}
	apply("")
	if got := made(); got != "" {
		t.Errorf("in no file: triggers %q, want none", got)
	}
	if got := others(); got != before {
		t.Errorf("triggers of files that did not change = %s, want %s", got, before)
	}
}
