package sql_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// What may still get lines, or is wanted as it is, waits.
func TestWhatIsNotArchived(t *testing.T) {
	t.Parallel()
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	none := func(what, args string) {
		t.Helper()
		if got := s.archive(t, args); got.Chunks != 0 || got.Logs != 0 {
			t.Errorf("%s: archive_logs(%s) = %+v, want nothing", what, args, got)
		}
	}
	held := one[uuid.UUID](t, s.conn, "SELECT provision_id FROM tendril.claims WHERE id = $1", s.held)
	young := s.over(t, s.agent, "6 days", 5, 10)
	s.age(t, s.ended, "6 days")
	none("younger than the setting", "")
	s.age(t, held, "30 days")
	none("the workspace is held", "")
	mustExec(t, s.conn, "UPDATE tendril.settings SET log_archive_after = NULL WHERE only_row")
	s.age(t, young, "30 days")
	none("switched off", "")
	mustExec(t, s.conn, "UPDATE tendril.settings SET log_archive_after = '1 second', late_log = '60 days' WHERE only_row")
	none("lines are still taken", "")
	none("lines are still taken", "p_older_than => '1 second'")
	mustExec(t, s.conn, "UPDATE tendril.settings SET log_archive_after = '7 days', late_log = '1 day' WHERE only_row")
	mustExec(t, s.conn, "UPDATE tendril.claims SET ended_at = clock_timestamp() WHERE provision_id = $1", young)
	none("its claim has ended just now", "")
	s.age(t, young, "8 days")
	if got := s.archive(t, ""); got.Chunks != 5 || got.Logs != 1 {
		t.Errorf("archive_logs() = %+v, want the one log that is due", got)
	}
	if got := s.archive(t, "p_older_than => '2 days'"); got.Logs != 1 {
		t.Errorf("archive_logs(2 days) = %+v, want the one of 6 days", got)
	}
	mustExec(t, s.conn, "SELECT public.release_workspace(workspace_id, 'a reason') FROM tendril.claims WHERE id = $1", s.held)
	s.age(t, held, "30 days")
	if got := s.archive(t, ""); got.Logs != 1 || got.Chunks == 0 {
		t.Errorf("archive_logs() after the release = %+v, want its log", got)
	}
	for _, id := range []uuid.UUID{s.taking, s.awaiting} {
		if one[bool](t, s.conn, "SELECT EXISTS (SELECT FROM tendril.log_ends WHERE provision_id = $1)", id) {
			t.Errorf("a provision that is %s counts as ended", s.status(t, id))
		}
	}
}

// A log that cannot be archived, whose rows somebody has locked, or many of held
// workspaces are in the way of none that ended later.
func TestALogThatCannotBeArchivedIsPassedOver(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	w := newWorld(t, db.Conn(t))
	agent := w.newAgent(t, "one")
	broken, locked, held, sound := w.over(t, agent, "12 days", 5, 10), w.over(t, agent, "11 days", 5, 10), w.over(t, agent, "10 days", 5, 10), w.over(t, agent, "9 days", 5, 10)
	mustExec(t, w.conn, "ALTER TABLE public.provision_log_archives ADD CONSTRAINT for_the_test CHECK (provision_id <> '"+broken.String()+"')")
	mustExec(t, w.conn, "UPDATE public.workspaces SET held_by_claim = (SELECT id FROM tendril.claims WHERE provision_id = $1) WHERE id = (SELECT workspace_id FROM public.provisions WHERE id = $1)", held)
	tx, err := db.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM public.provision_logs WHERE provision_id = $1 FOR UPDATE", locked); err != nil {
		t.Fatal(err)
	}
	archived := func(id uuid.UUID) bool {
		return one[bool](t, w.conn, "SELECT archived FROM tendril.log_ends WHERE provision_id = $1", id)
	}
	for i, want := range []step{{More: true}, {More: true}, {Logs: 1, Chunks: 5}} {
		if s := w.archive(t, ""); s.More != want.More || s.Logs != want.Logs || s.Chunks != want.Chunks {
			t.Errorf("call %d = %+v, want %+v", i+1, s, want)
		}
	}
	if !archived(sound) {
		t.Error("the log behind them is not archived")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range []uuid.UUID{broken, locked, held} {
		if rows, _ := w.readLog(t, w.conn, id, 0, 100, 1<<20); len(rows) != 5 || archived(id) {
			t.Errorf("a log that was passed over has %d rows, want its 5 as they were", len(rows))
		}
	}
	// A day later.
	mustExec(t, w.conn, "ALTER TABLE public.provision_log_archives DROP CONSTRAINT for_the_test")
	mustExec(t, w.conn, "UPDATE public.workspaces SET held_by_claim = NULL WHERE held_by_claim IS NOT NULL")
	mustExec(t, w.conn, "UPDATE tendril.log_ends SET ended_at = ended_at - interval '25 hours'")
	if s := w.archive(t, ""); s.Logs != 3 {
		t.Errorf("a day later = %+v, want all three", s)
	}
}
