package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// However many provisions there are, a page of them reads an index in its order,
// and no more of it than it may look through.
func TestPagesOfManyProvisions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deploy(t)
	const many = 12_000
	w.Exec(t, "SET session_replication_role = replica")
	w.Exec(t, `INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot, status)
		SELECT p.org_id, p.cluster_id, p.workspace_id, p.config_snapshot, CASE WHEN n = 1 THEN 'FAILED' ELSE 'SUCCESS' END
		FROM public.provisions p, generate_series(1, $1) n`, many)
	w.Exec(t, `INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot, status)
		SELECT gen_random_uuid(), p.cluster_id, gen_random_uuid(), p.config_snapshot, 'SUCCESS' FROM (SELECT * FROM public.provisions LIMIT 1) p, generate_series(1, $1) n`, many)
	w.Exec(t, "SET session_replication_role = origin")
	w.Exec(t, "ANALYZE public.provisions")

	var workspace uuid.UUID
	if err := w.Conn.QueryRow(t.Context(), "SELECT id FROM public.workspaces").Scan(&workspace); err != nil {
		t.Fatal(err)
	}
	for condition, key := range map[string]uuid.UUID{store.OfOrg: w.Org, store.OfWorkspace: workspace} {
		var plan string
		err := pgx.BeginFunc(t.Context(), w.Conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', $1, true), set_config('role', 'authenticated', true)",
				fmt.Sprintf(`{"sub": %q, "role": "authenticated"}`, w.viewer.User())); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), store.ByIndex); err != nil {
				return err
			}
			found, err := tx.Query(t.Context(), "EXPLAIN "+store.LookQuery(condition), key, int64(1)<<62, 51, w.Org, nil, []string{"FAILED"}, []string{}, 51)
			if err != nil {
				return err
			}
			lines, err := pgx.CollectRows(found, pgx.RowTo[string])
			plan = strings.Join(lines, "\n")
			return err
		})
		if err != nil || strings.Contains(plan, "Seq Scan on provisions") || !strings.Contains(plan, "Index Scan Backward using provisions_") {
			t.Errorf("the plan of %s is %v\n%s\nwant an index read backwards", condition, err, plan)
		}
	}

	// The one that failed is far down: pages that find nothing lead to it.
	pages, before := 0, int64(0)
	for {
		page, next, err := w.viewer.ListProvisions(t.Context(), w.Org, store.ProvisionFilter{Statuses: []provision.Status{provision.Failed}}, before, 50)
		if err != nil {
			t.Fatal(err)
		}
		pages++
		if len(page) == 1 && page[0].Number == 2 {
			break
		}
		if len(page) > 0 || next == 0 || pages > 5 {
			t.Fatalf("page %d = %+v, next %d, want nothing and where to go on, until the one that failed", pages, page, next)
		}
		before = next
	}
	if pages < 2 {
		t.Errorf("the one that failed was found on page %d, want pages that look through so many and no more", pages)
	}
}
