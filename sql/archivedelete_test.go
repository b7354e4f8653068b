package sql_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// Logs beyond their time are deleted if the database's owner wants that, and both
// the log and the audit say so.
func TestOldLogsAreDeleted(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	ids := []uuid.UUID{w.over(t, agent, "100 days", 10, 10), w.over(t, agent, "99 days", 10, 10), w.over(t, agent, "8 days", 10, 10)}
	w.archive(t, "")
	if got := one[int](t, w.conn, "SELECT tendril.delete_logs()"); got != 0 {
		t.Errorf("deleted = %d, want none without the setting", got)
	}
	for _, wrong := range []string{"log_delete_after = '6 days'", "log_delete_after = '8 days', log_archive_after = NULL", "log_archive_after = '0'"} {
		if _, err := w.conn.Exec(t.Context(), "UPDATE tendril.settings SET "+wrong+" WHERE only_row"); answerOf(err) != "23514" {
			t.Errorf("%s = %v, want it refused", wrong, err)
		}
	}
	mustExec(t, w.conn, "UPDATE tendril.settings SET log_delete_after = '90 days' WHERE only_row")
	for range 2 {
		if got := one[int](t, w.conn, "SELECT tendril.delete_logs(1)"); got != 1 {
			t.Errorf("deleted = %d, want 1, as many as were asked for", got)
		}
	}
	if got := one[int](t, w.conn, "SELECT tendril.delete_logs()"); got != 0 {
		t.Errorf("deleted = %d, want no more", got)
	}
	for _, id := range ids[:2] {
		if got := w.log(t, id); !strings.HasPrefix(got, "1 SYSTEM This log was deleted at ") {
			t.Errorf("a deleted log = %q, want row 1 to say it", got)
		}
		if got := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE action = 'delete_log' AND object_id = $1", id); got != 1 {
			t.Errorf("events of it in the audit = %d, want 1", got)
		}
		mustExec(t, w.conn, "SELECT tendril.system_line($1, 'another')", id)
		if got := w.log(t, id); !strings.Contains(got, "2 SYSTEM another") {
			t.Errorf("a deleted log that goes on = %q, want row 2", got)
		}
	}
	if rows, _ := w.readLog(t, w.conn, ids[2], 0, 100, 1<<20); len(rows) != 10 {
		t.Errorf("the younger log has %d rows, want its 10", len(rows))
	}
}

// Deleting a provision takes its old log along.
func TestDeletingAProvisionTakesItsArchive(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	id := w.over(t, w.newAgent(t, "one"), "8 days", 10, 10)
	w.archive(t, "")
	mustExec(t, w.conn, "DELETE FROM public.provisions WHERE id = $1", id)
	if got := one[int](t, w.conn, "SELECT (SELECT count(*) FROM public.provision_log_archives) + (SELECT count(*) FROM tendril.log_ends)"); got != 0 {
		t.Errorf("left behind = %d rows, want none", got)
	}
}
