package store_test

import (
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// What was done once, long ago, is found by its word on a later page, although
// those before it have nothing of the kind; and nobody but admins finds any of it.
func TestPagesOfTheAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "INSERT INTO public.audit_events (org_id, action, object, object_id) VALUES ($1, 'pause_cluster', 'cluster', $2)", w.Org, w.Cluster)
	const many = "INSERT INTO public.audit_events (org_id, action, object) SELECT $1, 'many', 'org' FROM generate_series(1, $2)"
	w.Exec(t, many, w.Org, 2*store.Window+1)
	find := func(s *store.Store) (found []store.AuditEvent, pages int) {
		t.Helper()
		for before := int64(0); ; {
			page, next, err := s.Audit(t.Context(), w.Org, store.AuditFilter{Action: "pause_cluster"}, before, 50)
			if err != nil {
				t.Fatal(err)
			}
			found, pages = append(found, page...), pages+1
			if next == 0 {
				return found, pages
			}
			before = next
		}
	}
	if found, pages := find(w.admin); len(found) != 1 || found[0].Action != "pause_cluster" || found[0].Called != "prod" || pages < 2 {
		t.Errorf("Audit() of one action = %+v on %d pages, want the first on a later page", found, pages)
	}
	if p, err := w.admin.PausedBy(t.Context(), w.Org, w.Cluster); p == nil || err != nil {
		t.Errorf("PausedBy() = %v, %v, want who it was", p, err)
	}
	if found, _ := find(w.operator); len(found) != 0 {
		t.Errorf("Audit() of an operator = %+v, want nothing", found)
	}
	if page, next, err := w.admin.Audit(t.Context(), w.Org, store.AuditFilter{}, 0, 2); err != nil || len(page) != 2 || next != page[1].ID {
		t.Errorf("Audit() of two = %+v, next %d, %v, want the newest two and where to go on", page, next, err)
	}
	w.Exec(t, many, w.Org, 10*store.Window)
	if p, err := w.admin.PausedBy(t.Context(), w.Org, w.Cluster); p != nil || err != nil {
		t.Errorf("PausedBy() when very much was done since = %v, %v, want that it is not looked for any further", p, err)
	}
}
