package api_test

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// Members read what agents report of pools; admins set quotas and names of images.
func TestPools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	queuetest.NewLab(t, w.World, "acme/class")
	read := func(path string, want map[string]string) {
		t.Helper()
		got := w.as(t, "viewer", "GET", path, "").want(t, path, 200, "")
		for part, text := range want {
			if got.text(part) != text {
				t.Errorf("%s: %s = %q, want %q: %s", path, part, got.text(part), text, got.body)
			}
		}
	}
	read("/pools", map[string]string{
		"items.0.name": "den", "items.0.state": "unreachable", "items.0.problem": "connect to 192.0.2.7: connection refused", "items.0.agent": "lab",
		"items.1.name": "lab", "items.1.state": "reachable", "items.1.nodes": "3", "items.1.online": "2", "items.1.machines": "2", "items.1.cores": "64", "items.1.cores_new": "4",
		"items.1.memory_new": "8192", "items.1.images": `["debian-13","rocky-9"]`, "items.2.name": "",
	})
	read("/pools?cluster=prod", map[string]string{"items.1.cluster": "prod"})
	read("/pools/lab", map[string]string{
		"name": "lab", "node_list.0.name": "pve1", "node_list.0.most_cores": "128", "node_list.1.machines": "2", "node_list.1.cores_new": "4", "node_list.1.cores_reserved": "4", "node_list.2.online": "false",
		"node_list.0.storages": `[{"free_gib":2100.5,"name":"ceph","size_gib":9000},{"free_gib":812,"name":"local-lvm","size_gib":1800}]`, "node_list.1.storages.0.free_gib": "1240", "node_list.1.storages.1": "", "node_list.0.labels.rack": "a",
		"reservations.0.name": "ada", "reservations.0.node": "pve2", "reservations.0.vm_id": "101", "reservations.0.address": "10.0.0.10", "reservations.0.workspace": "acme/class", "reservations.1.name": "grace",
		"reservations.0.why": "pve2 has 75 points, pve1 has 50 points, pve3 is not reachable", "image_names": "[]",
	})
	reserved := map[string]string{
		"items.0.name": "ada", "items.0.status": "reserved", "items.0.workspace": "acme/class", "items.0.pool": "lab", "items.0.node": "pve2", "items.0.ip_addresses": `["10.0.0.10"]`, "items.1.name": "grace", "items.2.name": "",
		"items.0.number": w.Text(t, "SELECT p.number::text FROM public.provisions p JOIN public.reservations r ON r.provision_id = p.id WHERE r.name = 'ada'"),
	}
	read("/machines", reserved)
	read("/machines?status=reserved&pool=lab", reserved)
	read("/machines/ada", map[string]string{"status": "reserved", "node": "pve2"})
	w.Exec(t, "UPDATE public.pools SET reported_at = reported_at - interval '6 minutes' WHERE name = 'lab'")
	read("/pools/lab?cluster=prod", map[string]string{"state": "stale"})

	w.as(t, "admin", "PUT", "/pools/lab/images", `{"image": "linux", "name": "debian-13"}`).want(t, "a name of an image", 204, "")
	read("/pools/lab", map[string]string{"image_names": `[{"image":"linux","name":"debian-13"}]`})
	w.as(t, "admin", "DELETE", "/pools/lab/images?image=linux", "").want(t, "the end of it", 204, "")
	read("/pools/lab", map[string]string{"image_names": "[]"})

	w.as(t, "admin", "PUT", "/pool-quotas", `{"workspaces": "acme/*", "pool": "lab", "machines": 2, "memory_mib": 9000}`).want(t, "a quota", 200, "")
	w.as(t, "admin", "PUT", "/pool-quotas", `{"workspaces": "acme/*"}`).want(t, "a quota of nothing", 422, "bad_quota")
	w.as(t, "admin", "PUT", "/pool-quotas", `{"pool": "none", "machines": 1}`).want(t, "a quota of no pool", 404, "pool_not_found")
	read("/pool-quotas", map[string]string{
		"items.0.workspaces": "acme/*", "items.0.pool": "lab", "items.0.cluster": "prod", "items.0.machines": "2", "items.0.machines_used": "2", "items.0.memory_used": "8192", "items.0.cores": "",
		"items.0.top.0.workspace": "acme/class", "items.0.top.0.cores": "4",
	})
	quota := w.as(t, "viewer", "GET", "/pool-quotas", "").text("items.0.id")
	w.as(t, "admin", "DELETE", "/pool-quotas/"+quota, "").want(t, "the end of a quota", 204, "")
	w.as(t, "admin", "DELETE", "/pool-quotas/"+quota, "").want(t, "the end of none", 404, "quota_not_found")
	w.as(t, "viewer", "GET", "/pools/none", "").want(t, "no pool", 404, "pool_not_found")
	// Where the machines of a deploy would go; nothing is reserved.
	w.Exec(t, `INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, variables, file) VALUES ($1, 'https://git.example/placed', 'v1', '', 'https://git.example/placed', 'done', '[{"name": "size", "type_json": "number", "default": 1024, "nullable": true}]', $2)`, w.Org, placedFile)
	asked := func(more string) string {
		return `{"cluster": "prod", "config_snapshot": {"template_source": {"repo": "https://git.example/placed", "version": "v1"}` + more + `}}`
	}
	got := w.as(t, "operator", "POST", "/placement", asked(`, "workspace": "new/one"`)).want(t, "a preview", 200, "")
	if got.text("text") != "2 machines: 1 on pve1, 1 on pve2" || got.text("machines.0.name") != "a" || got.text("machines.0.pool") != "lab" || got.text("machines.1.why") == "" {
		t.Errorf("preview = %s", got.body)
	}
	w.as(t, "operator", "POST", "/placement", asked("")).want(t, "a preview of no workspace", 422, "placement_unknown")
	w.as(t, "operator", "POST", "/placement", asked(`, "targets": 1`)).want(t, "a preview of a bad snapshot", 422, "bad_snapshot")
	w.as(t, "operator", "POST", "/placement", strings.Replace(asked(`, "workspace": "x"`), "placed", "other", 1)).want(t, "a preview of what was never scanned", 422, "placement_unknown")
	w.Exec(t, "UPDATE public.template_inspections SET file = replace(file, '2048', '999999') WHERE repo = 'https://git.example/placed'")
	w.as(t, "operator", "POST", "/placement", asked(`, "workspace": "x"`)).want(t, "a preview of what never fits", 409, "never_fits")
	// An admin frees a place that is left over.
	w.as(t, "admin", "DELETE", "/places/nobody?workspace=acme/class", "").want(t, "no place", 404, "place_not_found")
	w.as(t, "admin", "DELETE", "/places/ada?workspace=acme/class", "").want(t, "a place whose run goes on", 409, "place_in_use")
	w.Exec(t, "UPDATE public.reservations SET provision_id = NULL, wanted_by = NULL")
	w.Exec(t, "UPDATE public.workspaces SET running_claim = NULL WHERE name = 'acme/class'")
	w.as(t, "admin", "DELETE", "/places/ada?workspace=acme/class", "").want(t, "a place that is left over", 204, "")
	w.as(t, "viewer", "GET", "/pools?cluster=none", "").want(t, "pools of no cluster", 404, "cluster_not_found")
}

// placedFile is a tendril.hcl of two machines.
const placedFile = `provisioner "machine" {
  machine {
    for_each = toset(["a", "b"])
    name     = each.key
    pool     = "lab"
    image    = "debian-13"
    cores    = 2
    memory   = 2048
  }
}
placement { spread = true }
`
