package sql_test

import "testing"

func TestAuditIsAppendOnly(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, statement := range []string{"UPDATE public.audit_events SET action = 'x'", "DELETE FROM public.audit_events", "TRUNCATE public.audit_events"} {
		_, err := w.conn.Exec(t.Context(), statement)
		wantRefusal(t, err, "PT403", "append_only")
	}
}
