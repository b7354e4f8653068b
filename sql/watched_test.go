package sql_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// That people watch the log of a run reaches its agent once, and ends by itself. An agent that has
// not heard of it is not held up, and one that does not know of watching is held as before.
func TestWatched(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	watched, queued := w.deploy(t, w.operator, snapshot("a")), w.deploy(t, w.operator, snapshot("b"))
	claim, _ := agent.mustClaim(t)
	if _, err := w.conn.Exec(t.Context(), "SELECT tendril.watch($1)", []uuid.UUID{queued, uuid.New()}); err != nil {
		t.Fatal(err)
	}
	beat := func(awaits string) (watched []uuid.UUID, held bool) {
		t.Helper()
		var text, hold string
		if err := pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
			if err := tx.QueryRow(t.Context(), "SELECT public.agent_heartbeat($1, $2, $3, $4, $5)::text", w.tokenHash, agent.instance, agent.boot, []uuid.UUID{claim}, awaits).Scan(&text); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), "SELECT coalesce(current_setting('tendril.hold', true), '')").Scan(&hold)
		}); err != nil {
			t.Fatal(err)
		}
		var answer struct{ Watched []uuid.UUID }
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			t.Fatal(err)
		}
		return answer.Watched, hold != ""
	}
	known := `{"watched": ["` + claim.String() + `"]}`
	want := func(when, awaits string, watch, held bool) {
		t.Helper()
		if got, isHeld := beat(awaits); slices.Contains(got, claim) != watch || len(got) > 1 || isHeld != held {
			t.Errorf("a heartbeat %s = %v, held %t, want watched %t, held %t", when, got, isHeld, watch, held)
		}
	}
	want("of what nobody watches", `{"watched": []}`, false, true)
	for range 2 {
		if _, err := w.conn.Exec(t.Context(), "SELECT tendril.watch($1)", []uuid.UUID{watched, queued}); err != nil {
			t.Fatal(err)
		}
	}
	want("that brings the news", `{"watched": []}`, true, false)
	want("of an agent that knows it", known, true, true)
	want("of an agent of an earlier release", `{}`, true, true)
	if _, err := w.conn.Exec(t.Context(), "UPDATE tendril.watched SET until = clock_timestamp()"); err != nil {
		t.Fatal(err)
	}
	want("when they have left", known, false, true)
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	if _, err := w.conn.Exec(t.Context(), "DELETE FROM tendril.watched"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.conn.Exec(t.Context(), "SELECT tendril.watch($1)", []uuid.UUID{watched}); err != nil {
		t.Fatal(err)
	}
	var rows int
	if err := w.conn.QueryRow(t.Context(), "SELECT count(*) FROM tendril.watched").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d runs are watched, %v, after the only one has ended, want none", rows, err)
	}
}
