package store_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// BenchmarkListMachines is a page of 50 of an organisation's 100,000 machines in 1,000
// workspaces, next to as many of another one: 1 of 1,000 is failed, 1 of 500 unhealthy, 1 of
// 5,000 has the label, and half of the rest are gone.
func BenchmarkListMachines(b *testing.B) {
	db := pgtest.New(b, contract)
	conn := db.Conn(b)
	user := uuid.New()
	var org uuid.UUID
	if err := conn.QueryRow(b.Context(), "INSERT INTO public.orgs (name) VALUES ('bench') RETURNING id").Scan(&org); err != nil {
		b.Fatal(err)
	}
	for _, statement := range []string{
		"INSERT INTO public.orgs (name) VALUES ('other')",
		"INSERT INTO public.org_members (org_id, user_id, role) SELECT id, '" + user.String() + "', 'viewer' FROM public.orgs WHERE name = 'bench'",
		"INSERT INTO public.clusters (org_id, name) SELECT id, 'c' FROM public.orgs WHERE name IN ('bench', 'other')",
		"INSERT INTO public.workspaces (org_id, cluster_id, name) SELECT c.org_id, c.id, 'w' || n FROM public.clusters c, generate_series(1, 1000) n",
		`INSERT INTO public.machines (org_id, workspace_id, name, status, pool, external_id, ip_addresses, labels, health)
		 SELECT w.org_id, w.id, w.name || '-m' || n, CASE WHEN i % 1000 = 0 THEN 'failed' WHEN i % 2 = 0 THEN 'gone' ELSE 'running' END, 'pool' || i % 20, 'vm-' || i,
		   ARRAY['10.0.' || i % 250 || '.' || n], jsonb_build_object('class', 'c' || i % 5000, 'env', 'prod'), CASE WHEN i % 500 = 1 THEN 'unhealthy' ELSE 'healthy' END
		 FROM (SELECT *, row_number() OVER (PARTITION BY org_id ORDER BY id) AS k FROM public.workspaces) w, generate_series(1, 100) n, LATERAL (SELECT w.k * 100 + n AS i) x`,
		"VACUUM ANALYZE public.machines", "ANALYZE",
	} {
		if _, err := conn.Exec(b.Context(), statement); err != nil {
			b.Fatal(err)
		}
	}
	d, err := store.Connect(b.Context(), db.URL, 2)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(d.Close)
	viewer := d.As(user)
	for _, bench := range []struct {
		name   string
		filter store.MachineFilter
		after  store.MachineKey
	}{
		{"first", store.MachineFilter{}, store.MachineKey{}},
		{"deep", store.MachineFilter{}, store.MachineKey{Name: "w900-m50"}},
		{"words", store.MachineFilter{Words: "w777-m9"}, store.MachineKey{}},
		{"nothing", store.MachineFilter{Words: "no such"}, store.MachineKey{}},
		{"label", store.MachineFilter{Labels: map[string]string{"class": "c77"}}, store.MachineKey{}},
		{"status", store.MachineFilter{Status: "failed"}, store.MachineKey{}},
		{"health", store.MachineFilter{Health: "unhealthy"}, store.MachineKey{}},
		{"pool", store.MachineFilter{Pool: "pool7"}, store.MachineKey{}},
		{"group", store.MachineFilter{Group: "workspace"}, store.MachineKey{}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			found := 0
			for b.Loop() {
				page, _, err := viewer.ListMachines(b.Context(), org, bench.filter, bench.after, 50)
				if err != nil {
					b.Fatal(err)
				}
				found = len(page)
			}
			b.ReportMetric(float64(found), "machines")
		})
	}
}
