package sql_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// traps are functions and operators of everybody's, by the names of those that
// the contract's own call, and temporary tables by the names of its tables, in
// which the stranger is admin everywhere. Whatever calls one of them ends with
// "trapped".
const traps = `
CREATE SCHEMA evil;
GRANT ALL ON SCHEMA evil TO PUBLIC;
DO $do$
DECLARE
  v record;
BEGIN
  FOR v IN
    SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS args, pg_get_function_result(p.oid) AS result FROM pg_proc p
    WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND p.proname ~ '^[a-z_0-9]+$'
      AND p.proname = ANY (ARRAY(SELECT (regexp_matches(o.prosrc, '([a-z_0-9]+)\(', 'g'))[1] FROM pg_proc o WHERE o.pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace)))
      AND NOT EXISTS (SELECT FROM unnest(p.proargtypes || p.prorettype) a JOIN pg_type t ON t.oid = a WHERE t.typtype = 'p' AND t.typname !~ '^any(element|array)$')
  LOOP
    BEGIN
      EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L', v.proname, v.args, v.result,
        format('BEGIN RAISE EXCEPTION ''trapped by function %s as %%'', current_user; END', v.proname));
    EXCEPTION WHEN syntax_error THEN NULL; -- a name that is a word of SQL cannot be overridden either
    END;
  END LOOP;
  FOR v IN
    SELECT o.oprname, o.oprleft::regtype AS l, o.oprright::regtype AS r, o.oprresult::regtype AS result, row_number() OVER () AS n FROM pg_operator o
    WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprleft <> 0
      AND o.oprleft::regtype::text = ANY (ARRAY['uuid', 'text', 'jsonb', 'timestamp with time zone', 'interval', 'bigint', 'integer', 'smallint', 'boolean', 'bytea', 'anyarray', 'text[]', 'name', 'numeric', 'oid'])
      AND o.oprright::regtype::text = ANY (ARRAY['uuid', 'text', 'jsonb', 'timestamp with time zone', 'interval', 'bigint', 'integer', 'smallint', 'boolean', 'bytea', 'anyarray', 'text[]', 'name', 'numeric', 'oid', 'double precision'])
  LOOP
    EXECUTE format('CREATE FUNCTION evil.operator_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L', v.n, v.l, v.r, v.result,
      'BEGIN RAISE EXCEPTION ''trapped by an operator as %'', current_user; END');
    EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.operator_%s)', v.oprname, v.l, v.r, v.n);
  END LOOP;
  FOR v IN SELECT c.relname FROM pg_class c WHERE c.relnamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND c.relkind = 'r' LOOP
    EXECUTE format('CREATE TEMP TABLE %I AS TABLE %s', v.relname, (SELECT c.oid::regclass FROM pg_class c WHERE c.relname = v.relname AND c.relnamespace IN ('public'::regnamespace, 'tendril'::regnamespace)));
    EXECUTE format('GRANT ALL ON pg_temp.%I TO PUBLIC', v.relname);
  END LOOP;
END $do$;
`

// Nobody leads a function astray by what they put into the search path.
func TestFunctionsAreNotLedAstray(t *testing.T) {
	t.Parallel()
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	mustExec(t, s.conn, traps)
	mustExec(t, s.conn, "DELETE FROM pg_temp.org_members")
	mustExec(t, s.conn, "INSERT INTO pg_temp.org_members SELECT id, $1, 'admin' FROM public.orgs", s.stranger)
	astray := func(do func(pgx.Tx) error) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			if _, err := tx.Exec(context.Background(), "SET LOCAL search_path = pg_temp, evil, pg_catalog, public"); err != nil {
				return err
			}
			return do(tx)
		}
	}
	// They do catch who walks there.
	for _, walk := range []string{
		"SELECT now()", "SELECT sha256('x')", "SELECT length('x'::text)", "SELECT $1::uuid = $1::uuid", "SELECT '{}'::jsonb ->> 'x'::text", "SELECT 'x'::text || 'y'::text",
	} {
		args := []any{uuid.New()}[:strings.Count(walk, "$1")/2]
		err := s.attempt(t, actor{role: "authenticated"}, astray(func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), walk, args...)
			return err
		}))
		if err == nil || !strings.Contains(err.Error(), "trapped") {
			t.Errorf("%s on that path = %v, want it trapped: the test shows nothing", walk, err)
		}
	}

	people := s.everybody(t)
	stranger := people[slices.IndexFunc(people, func(a actor) bool { return a.name == "stranger" })]
	for name, call := range s.calls() {
		s.wantAnswer(t, s.caller(name), name+", with traps on the path", s.attempt(t, s.caller(name), astray(call)), "ok")
		if f, ok := functions[name].(forPeople); ok {
			s.wantAnswer(t, stranger, name+", with a membership of their own making", s.attempt(t, stranger, astray(call)), "PT404 "+f.otherwise)
		}
	}
	s.wantAnswer(t, stranger, "a deploy", s.attempt(t, stranger, astray(s.calls()["a deploy"])), "PT404 cluster_not_found")
	// Policies were bound when they were made.
	for table := range tables {
		var theirs bool
		err := s.attempt(t, stranger, astray(func(tx pgx.Tx) error {
			key := map[bool]string{true: "id", false: "org_id"}[table == "orgs"]
			return tx.QueryRow(t.Context(), fmt.Sprintf("SELECT EXISTS (SELECT FROM public.%s WHERE %s OPERATOR(pg_catalog.=) $1)", table, key), s.org).Scan(&theirs)
		}))
		if err != nil || theirs {
			t.Errorf("the stranger sees rows of %s: %t, %v, want none", table, theirs, err)
		}
	}
}
