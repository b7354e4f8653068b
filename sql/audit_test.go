package sql_test

import "testing"

func TestAuditIsAppendOnly(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, statement := range []string{"UPDATE public.audit_events SET action = 'x'", "DELETE FROM public.audit_events", "TRUNCATE public.audit_events"} {
		_, err := w.conn.Exec(t.Context(), statement)
		wantRefusal(t, err, "PT403", "append_only")
	}
	// What is older than the setting may go, and nothing else, whoever deletes it.
	mustExec(t, w.conn, "UPDATE tendril.settings SET audit_delete_after = '10 days' WHERE only_row")
	mustExec(t, w.conn, "INSERT INTO public.audit_events (org_id, at, action, object) SELECT $1, now() - a, 'old', 'o' FROM unnest('{9 days,11 days}'::interval[]) a", w.org)
	mustExec(t, w.conn, "DELETE FROM public.audit_events WHERE at < now() - interval '10 days'")
	_, err := w.conn.Exec(t.Context(), "DELETE FROM public.audit_events WHERE action = 'old'")
	wantRefusal(t, err, "PT403", "append_only")
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE action = 'old'"); got != 1 {
		t.Errorf("%d of two old rows are left, want the one of 9 days", got)
	}
}
