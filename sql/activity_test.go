package sql_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// answersTo tries, as a role, everything in schema public that has a name, and
// returns what the database says.
func answersTo(t *testing.T, w *world, role string) (answers []string) {
	t.Helper()
	statements := one[[]string](t, w.conn, `
		SELECT array_agg(s ORDER BY s) FROM (
		  -- A count that is exact, one that is planned (Prefer: count=planned), and a row.
		  SELECT format(f.form, 'public.' || quote_ident(c.relname)) s FROM pg_class c,
		    unnest(ARRAY['SELECT count(*)::text FROM %s', 'EXPLAIN SELECT 1 FROM %s', 'SELECT 1::text FROM %s LIMIT 1']) f (form)
		  WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
		  UNION ALL
		  SELECT format('SELECT last_value::text FROM %s', c.oid::regclass) FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'S'
		  UNION ALL
		  SELECT format('SELECT pg_sequence_last_value(%L)::text', c.oid::regclass) FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'S'
		  UNION ALL
		  SELECT format('SELECT public.%I(%s)::text', p.proname, (SELECT string_agg(CASE WHEN n = 1 AND a = 'text'::regtype THEN quote_literal(repeat('0', 64)) ELSE 'NULL' END
		      || '::' || format_type(a, NULL), ', ' ORDER BY n) FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY u (a, n)))
		  FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND p.prokind = 'f') all_of_it`)
	for _, statement := range statements {
		err := w.try(t, role, w.stranger, func(tx pgx.Tx) error {
			rows, err := tx.Query(t.Context(), statement)
			if err != nil {
				return err
			}
			texts, err := pgx.CollectRows(rows, pgx.RowTo[*string])
			for _, text := range texts {
				if text != nil {
					return fmt.Errorf("it shows %q", *text)
				}
			}
			return err
		})
		answer := fmt.Sprint(err)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			answer = strings.Join([]string{pg.Code, pg.Message, pg.Detail, pg.Hint}, "|")
		}
		answers = append(answers, statement+": "+answer)
	}
	return answers
}

// Who has nothing but the public key cannot tell a database in which nothing happens
// from one in which much does.
func TestAnonSeesNoActivity(t *testing.T) {
	t.Parallel()
	quiet := newWorld(t, pgtest.New(t, migrated).Conn(t))
	busy := newScene(t, pgtest.New(t, migrated).Conn(t))
	mustExec(t, busy.conn, "ANALYZE")
	still, moving := answersTo(t, quiet, "anon"), answersTo(t, busy.world, "anon")
	if len(still) < 80 {
		t.Fatalf("%d things were tried, want all of schema public", len(still))
	}
	for i, answer := range moving {
		if answer != still[i] {
			t.Errorf("anon tells activity: %s; without: %s", answer, still[i])
		}
		if strings.Contains(answer, "it shows") || strings.HasSuffix(answer, ": <nil>") {
			t.Errorf("anon is answered: %s", answer)
		}
	}
	// Of a table they may read strangers are shown no row; what is planned is in SECURITY.md.
	for _, answer := range answersTo(t, busy.world, "anon") {
		if strings.HasPrefix(answer, "EXPLAIN") && !strings.Contains(answer, "42501|") {
			t.Errorf("anon asks how many rows are planned: %s", answer)
		}
	}
	// What is told to who listens is an id of one size, and no channel's name says more.
	bodies := one[[]string](t, busy.conn, `SELECT array_agg(DISTINCT m[1] ORDER BY m[1]) FROM pg_proc, regexp_matches(prosrc, 'tendril\.notify\(''([a-z_]+)''', 'g') m
		WHERE pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace)`)
	if want := []string{"tendril_agent", "tendril_attention", "tendril_provision", "tendril_work"}; !slices.Equal(bodies, want) {
		t.Errorf("channels = %q, want %q: docs/SECURITY.md lists them", bodies, want)
	}
	if got := one[string](t, busy.conn, "SELECT pg_get_function_identity_arguments('tendril.notify'::regproc)"); got != "p_channel text, p_id uuid" {
		t.Errorf("tendril.notify(%s), want an id alone as payload", got)
	}
}
