package sql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// PostgREST puts the message of a refusal into the status line of its answer.
func TestRefusalsAreOneLine(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, text := range []string{
		"x\r\nSet-Cookie: session=mine", "a\nb", "a\tb\x00c\u0085d", "a\u2028b\u2029c", "\u202edesrever", "\x1b[31mred", strings.Repeat("é", 10_000),
	} {
		text = strings.ReplaceAll(text, "\x00", "") // no text has one
		_, err := w.conn.Exec(t.Context(), "SELECT tendril.refuse('PT422', $1, $1, $1)", text)
		refusal, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || refusal.Code != "PT422" {
			t.Fatalf("refuse(%.40q) = %v, want PT422", text, err)
		}
		for _, said := range []string{refusal.Message, refusal.Detail, refusal.Hint} {
			if said == "" || len([]rune(said)) > 2000 || strings.ContainsFunc(said, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("refuse(%.40q) says %.60q (%d characters), want one printable line of at most 2000", text, said, len([]rune(said)))
			}
		}
	}
	// Several problems are one line as well; clients part them again.
	err := w.try(t, "authenticated", w.operator, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", w.cluster, `{"one": 1, "two": 2}`)
		return err
	})
	if refusal, ok := errors.AsType[*pgconn.PgError](err); !ok || strings.Contains(refusal.Message, "\n") || strings.Count(refusal.Message, "; config_snapshot.") < 2 {
		t.Errorf("a snapshot with several problems = %v, want them in one line, parted by semicolons", err)
	}
	// What a caller sends comes back in messages.
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	err = agent.report(t, claim, "NO\r\nX-Injected: 1", "{}")
	if err == nil || strings.ContainsAny(err.Error(), "\r\n") {
		t.Errorf("update_provision_status of a status with a line break = %q, want a refusal in one line", err)
	}
}

// What a login of tendril_agent can do beyond its functions must not stop others.
func TestAgentsLoginHoldsUpNobody(t *testing.T) {
	t.Parallel()
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	role := "agent_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	mustExec(t, s.conn, "CREATE ROLE "+role+" LOGIN IN ROLE tendril_agent")
	t.Cleanup(func() { _, _ = s.conn.Exec(t.Context(), "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	hostile, err := pgx.ConnectConfig(t.Context(), s.conn.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer hostile.Close(t.Context()) //nolint:errcheck // the test is over
	mustExec(t, hostile, "SET SESSION AUTHORIZATION "+role)
	// Every advisory lock that a reader of the contract's text could name.
	for _, key := range []string{
		"27, 1", "hashtextextended('tendril.hand_inspections', 0)", "hashtextextended('trellis up', 0)", "hashtextextended('trellis sample', 0)",
		fmt.Sprintf("hashtextextended('%s a-key', 26)", s.operator),
	} {
		mustExec(t, hostile, "SELECT pg_advisory_lock("+key+")")
	}
	for _, denied := range []string{
		"SELECT FROM tendril.locks FOR UPDATE", "SELECT lock_salt FROM tendril.settings", "LOCK TABLE public.provisions IN ACCESS SHARE MODE",
		"CREATE TABLE public.mine (x int)", "CREATE SCHEMA mine", "SELECT tendril.reap()", "SELECT lo_export(1, '/tmp/x')", "COPY public.orgs TO '/tmp/x'",
		"SET ROLE authenticated", "SET session_replication_role = replica",
	} {
		if _, err := hostile.Exec(t.Context(), denied); err == nil {
			t.Errorf("an agent's login may run %q, want it denied", denied)
		}
	}
	err = s.attempt(t, actor{role: "authenticated", claims: fmt.Sprintf(`{"sub": %q}`, s.operator)}, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.begin_request('a-key', $1)", strings.Repeat("a", 64))
		return err
	})
	if err != nil {
		t.Errorf("begin_request while an agent's login holds advisory locks = %v, want it to go on", err)
	}
	// The contract's text names no advisory lock by a key that is not salted.
	if n := one[int](t, s.conn, `SELECT count(*) FROM pg_proc WHERE pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace)
		AND prosrc ~ 'pg_(try_)?advisory' AND prosrc !~ 'lock_salt'`); n != 0 {
		t.Errorf("%d functions take advisory locks whose keys anybody can compute, want none", n)
	}
	// Temporary tables shadow nothing: functions look in pg_temp last, and by name only.
	mustExec(t, hostile, "CREATE TEMP TABLE settings (lease interval); CREATE TEMP TABLE clusters (id uuid)")
	if err := s.agent.register(t); err != nil {
		t.Errorf("register_agent = %v, want it to go on", err)
	}
	if _, err := hostile.Exec(t.Context(), "SELECT public.register_agent($1, '{}')", s.tokenHash); err == nil || !strings.Contains(err.Error(), "PT4") {
		t.Errorf("register_agent with temporary tables of the contract's names = %v, want the contract's own refusal", err)
	}
}
