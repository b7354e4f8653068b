package sql_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// oddTimes are such as a broken clock, or a leaked token, may send.
var oddTimes = []string{"infinity", "-infinity", "20000-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "0044-03-15 00:00 BC"}

// A time that no reader can show must not make a whole log unreadable.
func TestTimesFarFromTheDatabasesAreReplaced(t *testing.T) {
	t.Parallel()
	for _, odd := range append(oddTimes, time.Now().Add(-25*time.Hour).Format(time.RFC3339), time.Now().Add(25*time.Hour).Format(time.RFC3339)) {
		t.Run(odd, func(t *testing.T) {
			t.Parallel()
			w := newContract(t)
			agent := w.newAgent(t, "one")
			w.deploy(t, w.operator, snapshot("a"))
			claim, id := agent.mustClaim(t)
			good := time.Now().Add(-23 * time.Hour).UTC().Truncate(time.Second)
			chunks := func(times ...string) string {
				parts := make([]string, len(times))
				for i, at := range times {
					parts[i] = fmt.Sprintf(`{"stream": "STDOUT", "text": "line %d\n", "at": %q}`, i, at)
				}
				return "[" + strings.Join(parts, ",") + "]"
			}
			var next int64
			for first := int64(1); first < 5; first = next {
				if err := agent.call(t, &next, "SELECT public.insert_provision_log($1, $2, $3, $4)", w.tokenHash, claim, first, chunks(odd, good.Format(time.RFC3339))); err != nil || next != first+2 {
					t.Fatalf("insert_provision_log = %d, %v, want %d", next, err, first+2)
				}
			}
			agent.mustReport(t, claim, "PROCESSING", fmt.Sprintf(`{"n": 1, "events": [{"kind": "diagnostic", "at": %q}, {"kind": "diagnostic", "at": %q}]}`, odd, good.Format(time.RFC3339)))
			if n := one[int](t, w.conn, `SELECT count(*) FROM (SELECT emitted_at FROM public.provision_logs WHERE provision_id = $1
				UNION ALL SELECT at FROM public.provision_events WHERE provision_id = $1) t WHERE emitted_at NOT BETWEEN clock_timestamp() - interval '1 day' AND clock_timestamp() + interval '1 minute'`, id); n != 0 {
				t.Errorf("%d times are far from the database's clock, want none", n)
			}
			if n := one[int](t, w.conn, "SELECT count(*) FROM public.provision_logs WHERE provision_id = $1 AND emitted_at = $2", id, good); n != 2 {
				t.Errorf("%d lines have the time of 23 hours ago, want the 2 that were stamped then", n)
			}
			if n := one[int](t, w.conn, "SELECT count(*) FROM public.provision_logs WHERE provision_id = $1 AND stream_type = 'SYSTEM' AND log_chunk LIKE '%clock differs%'", id); n != 1 {
				t.Errorf("%d lines say that times were replaced, want 1", n)
			}
			if got := one[string](t, w.conn, "SELECT string_agg(coalesce(detail ->> 'agent_at', '-'), ' ' ORDER BY id) FROM public.provision_events WHERE provision_id = $1 AND kind = 'diagnostic'", id); got != odd+" -" {
				t.Errorf("events keep the agent's times %q, want %q", got, odd+" -")
			}
		})
	}
}

// A leaked token must not use up the numbers of a workspace's states.
func TestStateNumbersGoUpStepByStep(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	if err := agent.put(t, claim, "state", 1, []byte("one"), 1); err != nil {
		t.Fatal(err)
	}
	for _, number := range []int64{9007199254740991, math.MaxInt64, 1 << 40, 10_002} {
		wantRefusal(t, agent.put(t, claim, "state", number, []byte("two"), 1), "PT422", "bad_blob")
	}
	for _, number := range []int64{2, 5} { // those between were written while the database was away
		if err := agent.put(t, claim, "state", number, []byte("next"), 1); err != nil {
			t.Errorf("put_blob(state %d) = %v, want it stored", number, err)
		}
	}
	wantRefusal(t, agent.report(t, claim, "PROCESSING", fmt.Sprintf(`{"n": %d}`, int64(math.MaxInt64))), "PT422", "bad_detail")
	agent.mustReport(t, claim, "PROCESSING", `{"n": 1}`)
}

// Anybody can set the claims of their own session: an agent that is connected
// directly stays nobody in the audit and in policies, whatever it sets.
func TestClaimsWithoutAnIdentityAreNobodys(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	login := "agent_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	mustExec(t, w.conn, "CREATE ROLE "+login+" LOGIN IN ROLE tendril_agent")
	t.Cleanup(func() { _, _ = w.conn.Exec(t.Context(), "DROP OWNED BY "+login+"; DROP ROLE "+login) })
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	before := one[int64](t, w.conn, "SELECT coalesce(max(id), 0) FROM public.audit_events")
	// A trigger that audits whatever changes, as the contract's functions do.
	mustExec(t, w.conn, `CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN PERFORM tendril.audit(NEW.org_id, 'note', 'provision', NEW.id); RETURN NULL; END $$;
		CREATE TRIGGER note AFTER UPDATE ON public.provisions FOR EACH ROW EXECUTE FUNCTION public.note()`)
	for _, role := range []string{"tendril_agent", "anon", login} {
		err := pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', $1, true), set_config('role', $2, true)", fmt.Sprintf(`{"sub": %q, "role": "authenticated"}`, w.adminID), role); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), "SELECT public.update_provision_status($1, $2, 'PROCESSING', '{\"commit\": \""+strings.Repeat("a", 40)+"\"}')", w.tokenHash, claim)
			return err
		})
		if err != nil {
			t.Fatalf("as %s: %v", role, err)
		}
	}
	if n := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE id > $1 AND action = 'note'", before); n == 0 {
		t.Error("nothing was audited, so this shows nothing")
	}
	if n := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE id > $1 AND actor IS NOT NULL", before); n != 0 {
		t.Errorf("%d audit events name a person, want none: an agent did it", n)
	}
}
