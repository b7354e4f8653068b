package store_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// A list of machines has each of those that fit once, in order, whatever it is grouped and
// filtered by, however short its pages are.
func TestListMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "INSERT INTO public.workspaces (org_id, cluster_id, name) SELECT $1, $2, 'w' || n FROM generate_series(1, 3) n", w.Org, w.Cluster)
	w.Exec(t, `INSERT INTO public.machines (org_id, workspace_id, name, status, pool, external_id, ip_addresses, labels, health)
		SELECT w.org_id, w.id, 'm' || n, (ARRAY['running', 'failed', 'gone'])[n % 3 + 1], CASE WHEN n % 4 > 0 THEN 'pool' || n % 4 END, 'vm-' || w.name || n, ARRAY['10.0.0.' || n],
		  jsonb_build_object('env', CASE WHEN n % 2 = 0 THEN 'prod' ELSE 'test' END), (ARRAY[NULL, 'healthy', 'unhealthy'])[n % 3 + 1]
		FROM public.workspaces w, generate_series(1, 12) n WHERE w.org_id = $1`, w.Org)
	machines := func(f store.MachineFilter, limit int) (all []store.Machine) {
		t.Helper()
		for after := (store.MachineKey{}); ; {
			page, next, err := w.viewer.ListMachines(t.Context(), w.Org, f, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, page...)
			if next == nil {
				return all
			}
			after = *next
		}
	}
	workspace := machines(store.MachineFilter{}, 100)[0].WorkspaceID
	for _, group := range []string{"", "workspace", "pool", "status", "health"} {
		for name, filter := range map[string]struct {
			store.MachineFilter
			want func(store.Machine) bool
		}{
			"all":       {store.MachineFilter{}, func(store.Machine) bool { return true }},
			"status":    {store.MachineFilter{Status: "failed"}, func(m store.Machine) bool { return m.Status == "failed" }},
			"pool":      {store.MachineFilter{Pool: "pool2"}, func(m store.Machine) bool { return m.Pool != nil && *m.Pool == "pool2" }},
			"health":    {store.MachineFilter{Health: "healthy"}, func(m store.Machine) bool { return m.Health != nil && *m.Health == "healthy" }},
			"labels":    {store.MachineFilter{Labels: map[string]string{"env": "prod"}}, func(m store.Machine) bool { return m.Labels["env"] == "prod" }},
			"workspace": {store.MachineFilter{Workspace: workspace}, func(m store.Machine) bool { return m.WorkspaceID == workspace }},
			"words":     {store.MachineFilter{Words: "VM-W2"}, func(m store.Machine) bool { return m.Workspace == "w2" }},
			"address":   {store.MachineFilter{Words: "0.0.11"}, func(m store.Machine) bool { return m.IPAddresses[0] == "10.0.0.11" }},
			"none":      {store.MachineFilter{Words: "%"}, func(store.Machine) bool { return false }},
		} {
			want := slices.DeleteFunc(machines(store.MachineFilter{}, 100), func(m store.Machine) bool { return !filter.want(m) })
			slices.SortFunc(want, func(a, b store.Machine) int {
				return cmp.Or(cmp.Compare(a.InGroup(group), b.InGroup(group)), cmp.Compare(a.Name, b.Name), slices.Compare(a.ID[:], b.ID[:]))
			})
			filter.Group = group
			ids := func(list []store.Machine) (ids []uuid.UUID) {
				for _, m := range list {
					ids = append(ids, m.ID)
				}
				return ids
			}
			if got := machines(filter.MachineFilter, 4); !slices.Equal(ids(got), ids(want)) {
				t.Errorf("by %q, filtered by %s: %s, want %s", group, name, fmt.Sprint(ids(got)), fmt.Sprint(ids(want)))
			}
		}
	}
	if gone := machines(store.MachineFilter{Status: "gone"}, 100); len(gone) != 12 {
		t.Errorf("%d machines are gone, want 12", len(gone))
	}
	if all := machines(store.MachineFilter{}, 100); len(all) != 24 {
		t.Errorf("%d machines are there, want 24", len(all))
	}
}

// A machine that has a place and is not made yet is listed as reserved, to those who may see its
// workspace: once, whatever else is known of it, and not when its place is free.
func TestReservedMachinesAreListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	queuetest.NewLab(t, w.World, "acme/class")
	w.Exec(t, `INSERT INTO public.machines (org_id, workspace_id, name, status, plan, labels, disk_gib)
		SELECT org_id, id, 'grace', 'planned', '{}', '{"class": "a"}', 20 FROM public.workspaces WHERE name = 'acme/class'`)
	w.Exec(t, "INSERT INTO public.machines (org_id, workspace_id, name, status) SELECT org_id, id, 'ada', 'gone' FROM public.workspaces WHERE name = 'acme/class'")
	want := func(who *store.Store, f store.MachineFilter, want string) {
		t.Helper()
		got := ""
		for after := (store.MachineKey{}); ; {
			page, next, err := who.ListMachines(t.Context(), w.Org, f, after, 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range page {
				got += m.Name + " " + m.Status + " "
				if by, err := who.MachineByRef(t.Context(), w.Org, uuid.Nil, m.ID.String()); err != nil || by.Status != m.Status || by.Name != m.Name {
					t.Errorf("machine %s by its id is %s %s, %v", m.Name, by.Name, by.Status, err)
				}
			}
			if next == nil {
				break
			}
			after = *next
		}
		if got != want {
			t.Errorf("machines of %+v = %q, want %q", f, got, want)
		}
	}
	const both = "ada reserved grace reserved "
	for _, group := range []string{"", "workspace", "pool", "status", "health"} {
		want(w.viewer, store.MachineFilter{Group: group}, both)
	}
	want(w.viewer, store.MachineFilter{Status: "reserved"}, both)
	want(w.viewer, store.MachineFilter{Pool: "lab"}, both)
	want(w.viewer, store.MachineFilter{Words: "10.0.0.10"}, "ada reserved ")
	want(w.viewer, store.MachineFilter{Labels: map[string]string{"class": "a"}}, "grace reserved ")
	for _, status := range []string{"planned", "gone", "running"} {
		want(w.viewer, store.MachineFilter{Status: status}, "")
	}
	want(w.stranger, store.MachineFilter{}, "")
	want(w.stranger, store.MachineFilter{Status: "reserved"}, "")
	if pools, err := w.viewer.MachinePools(t.Context(), w.Org); err != nil || !slices.Equal(pools, []string{"lab"}) {
		t.Errorf("MachinePools() = %q, %v, want lab", pools, err)
	}
	page, _, err := w.viewer.ListMachines(t.Context(), w.Org, store.MachineFilter{Words: "ada"}, store.MachineKey{}, 1)
	if err != nil || len(page) != 1 {
		t.Fatal(page, err)
	}
	if m := page[0]; *m.Pool != "lab" || *m.Node != "pve2" || m.Workspace != "acme/class" || m.IPAddresses[0] != "10.0.0.10" || *m.Cores != 2 || *m.MemoryMiB != 4096 || m.Number == nil {
		t.Errorf("ada = %+v, want its place and its run", m)
	}
	place := uuid.MustParse(w.Text(t, "SELECT id::text FROM public.reservations WHERE name = 'ada'"))
	w.Exec(t, "UPDATE public.machines SET status = 'creating' WHERE name = 'ada'")
	want(w.viewer, store.MachineFilter{}, "ada creating grace reserved ")
	if m, err := w.viewer.MachineByRef(t.Context(), w.Org, uuid.Nil, place.String()); err != nil || m.Name != "ada" || m.Status != "creating" {
		t.Errorf("the machine of ada's reservation = %+v, %v", m, err)
	}
	w.Exec(t, "DELETE FROM public.reservations")
	want(w.viewer, store.MachineFilter{}, "ada creating grace planned ")
	want(w.viewer, store.MachineFilter{Status: "reserved"}, "")
}

// The pools of machines are all of them, however many machines are gone.
func TestMachinePools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "INSERT INTO public.workspaces (org_id, cluster_id, name) VALUES ($1, $2, 'w')", w.Org, w.Cluster)
	w.Exec(t, `INSERT INTO public.machines (org_id, workspace_id, name, status, pool)
		SELECT w.org_id, w.id, 'm' || n, CASE n % 4 WHEN 1 THEN 'gone' ELSE 'running' END, 'pool' || n % 4 FROM public.workspaces w, generate_series(1, 12) n WHERE w.name = 'w'`)
	w.Exec(t, "UPDATE public.machines SET pool = NULL WHERE pool = 'pool3'")
	if pools, err := w.viewer.MachinePools(t.Context(), w.Org); err != nil || !slices.Equal(pools, []string{"pool0", "pool2"}) {
		t.Errorf("MachinePools() = %q, %v, want pool0 and pool2", pools, err)
	}
}
