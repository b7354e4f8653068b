package console_test

import (
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// pooled is a world with pools, of which one is hostile, and a workspace whose machines have
// places.
func pooled(t *testing.T) (w *world, lab *queuetest.Lab, pool string) {
	t.Helper()
	w = newWorld(t)
	lab = queuetest.NewLab(t, w.World, "acme/class")
	lab.Report(t, strings.TrimSuffix(queuetest.LabPools, "]")+`, {"name": "old", "kind": "static", "nodes": [{"name": "<b>`+strings.Repeat("n", 100)+`", "online": true, "cores": 1, "memory_mib": 512, "cores_used": 1, "memory_used": 1,
		"images": ["<script>"], "labels": {"<i>": {"a": [1]}}, "storages": [{"name": "<u>", "free_gib": 0, "size_gib": 1}],
		"server": {"id": 7, "provision_state": "<s>clean failed", "reason": "A fan <blink>", "maintenance": "yes", "available": {}}}]}]`)
	w.Exec(t, "UPDATE public.pools SET reported_at = reported_at - interval '2 hours' WHERE name = 'old'")
	return w, lab, "/pools/" + w.Text(t, "SELECT id::text FROM public.pools WHERE name = 'lab'")
}

// What agents report of pools is shown to members, and admins decide quotas and names.
func TestPoolPages(t *testing.T) {
	t.Parallel()
	w, lab, pool := pooled(t)
	page := func(path string, has ...string) {
		t.Helper()
		for _, p := range []person.Person{w.viewer, w.operator, w.admin} {
			got := w.get(t, p, path)
			wantIn(t, path+" as "+p.Name, got, has...)
			wellFormed(t, path, got)
			if p != w.admin && strings.Contains(got, "/quotas#") || p != w.admin && strings.Contains(got, "/images#") || p != w.admin && strings.Contains(got, "/delete") {
				t.Errorf("%s as %s offers what an admin decides", path, p.Name)
			}
		}
		answer, got := w.ask(t, w.stranger, path, nil)
		if strings.Contains(got, "pve") || strings.Count(path, "/") > 1 && answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s as a stranger = %d %s", path, answer.StatusCode, got)
		}
	}
	page("/pools", `href="`+pool+`"`, "proxmox on prod", "2 of 3 online", "Reachable", "Unreachable", "connection refused", "Stale", "19.2 <span class=\"load-plus\">+ 4</span> of 64 cores", "No quotas", `hx-trigger="live, every 10s"`)
	page(pool, "pve1", "pve3", "Offline", "debian-13", "rack=a", "812 GiB free of 1800", "13.4 of 32 cores", "5.8 <span class=\"load-plus\">+ 4</span> of 32 cores", "with 4 cores, 8 GiB reserved",
		"pve2 has 75 points, pve1 has 50 points, pve3 is not reachable", "ada", "grace", "10.0.0.10", "Reserved", "No names are set")
	page("/pools/"+w.Text(t, "SELECT id::text FROM public.pools WHERE name = 'old'"), "No agent has reported this pool since", "<script>", "<s>clean failed", "A fan <blink>", "No machine has a place", " data-past")
	page("/pools/"+w.Text(t, "SELECT id::text FROM public.pools WHERE name = 'den'"), "This pool could not be listed.", "connect to 192.0.2.7", "No nodes")

	for _, path := range []string{"/machines", "/machines?status=reserved", "/machines?status=reserved&group=pool&q=ada"} {
		page(path, "ada", "Reserved", "not there yet", "10.0.0.10", "pve2", "acme/class")
	}
	if got := w.get(t, w.viewer, "/machines?status=planned"); strings.Contains(got, "10.0.0.10") {
		t.Error("a reserved machine is listed as planned")
	}
	ada := w.Text(t, "SELECT id::text FROM public.reservations WHERE name = 'ada'")
	page("/machines/"+ada, "This machine is not there yet", "Its place is reserved", "10.0.0.10", "pve2 has 75 points")

	post := func(who person.Person, path, form string, status int, has string) {
		t.Helper()
		values, err := url.ParseQuery(form)
		if err != nil {
			t.Fatal(err)
		}
		answer, got := w.ask(t, who, path, values)
		if answer.StatusCode != status || !strings.Contains(answer.Header.Get("Location")+html.UnescapeString(got), has) {
			t.Errorf("POST %s %s as %s = %d %s %.900s, want %d with %q", path, form, who.Name, answer.StatusCode, answer.Header.Get("Location"), got, status, has)
		}
		if status == http.StatusUnprocessableEntity {
			wellFormed(t, path, got)
		}
	}
	id := strings.TrimPrefix(pool, "/pools/")
	post(w.operator, "/pools/quotas", "machines=4", 404, "rganisation")
	post(w.admin, "/pools/quotas", "workspaces=acme/*&machines=many", 422, "Machines: enter a whole number")
	post(w.admin, "/pools/quotas", "memory=0.0001", 422, "Memory: enter a whole number")
	post(w.admin, "/pools/quotas", "workspaces=acme/*&pool="+id, 422, "must be given")
	post(w.admin, "/pools/quotas", "machines=1&pool=none", 404, "ool none not found")
	post(w.admin, "/pools/quotas", "workspaces=acme/*&machines=4&memory=7.5&pool="+id, 303, "/pools#quotas")
	page("/pools", "acme/*", "2 of 4", "8 of 7.5 GiB", "no limit", `<bdi>acme/class</bdi> (2 machines)`, `data-tone="warn"`)
	post(w.operator, "/pools/quotas/delete", "quota="+w.Text(t, "SELECT id::text FROM public.pool_quotas"), 303, "/pools#quotas")
	post(w.admin, "/pools/quotas/delete", "quota=x", 303, "/pools#quotas")
	if got := w.Text(t, "SELECT count(*)::text FROM public.pool_quotas"); got != "1" {
		t.Errorf("%s quotas are there, want that of the admin", got)
	}
	post(w.admin, "/pools/quotas/delete", "quota="+w.Text(t, "SELECT id::text FROM public.pool_quotas"), 303, "/pools#quotas")
	page("/pools", "No quotas")

	post(w.operator, pool+"/images", "image=linux&name=debian-13", 404, "ool ")
	post(w.admin, pool+"/images", "image=&name=debian-13", 422, "missing")
	post(w.admin, pool+"/images", "image=linux&name=debian-13", 303, pool+"#images")
	page(pool, `<code><bdi>linux</bdi></code> is <code><bdi>debian-13</bdi></code> here`)
	post(w.admin, pool+"/images/delete", "image=linux", 303, pool+"#images")
	page(pool, "No names are set")

	// A place that is left over is freed by an admin.
	free := pool + "/places/free"
	workspace := "&workspace=" + w.Text(t, "SELECT id::text FROM public.workspaces WHERE name = 'acme/class'")
	if got := w.get(t, w.admin, pool); strings.Contains(got, free) {
		t.Error("a place is offered to be freed while its run goes on")
	}
	lab.Reserve(t, "left")
	w.Exec(t, "UPDATE public.workspaces SET running_claim = NULL WHERE name = 'acme/class'")
	w.Exec(t, "UPDATE public.reservations SET provision_id = NULL, wanted_by = NULL WHERE name = 'left'")
	if got := w.get(t, w.admin, pool); strings.Count(got, free) != 1 || !strings.Contains(got, "Free the place of left") {
		t.Errorf("places are offered %d times to be freed, want left's alone", strings.Count(got, free))
	}
	if got := w.get(t, w.operator, pool); strings.Contains(got, free) {
		t.Error("an operator is offered to free a place")
	}
	post(w.operator, free, "machine=left"+workspace, 303, pool)
	post(w.admin, free, "machine=ada"+workspace, 303, pool)
	if got := w.Text(t, "SELECT count(*)::text FROM public.reservations"); got != "3" {
		t.Errorf("%s places are left after refusals, want 3", got)
	}
	post(w.admin, free, "machine=left"+workspace, 303, pool)
	if got := w.Text(t, "SELECT string_agg(name, ' ' ORDER BY name) FROM public.reservations"); got != "ada grace" {
		t.Errorf("places = %s after one was freed", got)
	}

	grid := "/workspaces/" + w.Text(t, "SELECT id::text FROM public.workspaces WHERE name = 'acme/class'") + "?tab=machines"
	wantIn(t, grid, w.get(t, w.operator, grid), "ada", "grace", "Reserved", "10.0.0.10", "pve2 has 75 points")
	// On the pages of the run and of a machine that is planned.
	run := "/provisions/" + w.Text(t, "SELECT number::text FROM public.provisions WHERE id = $1", lab.Provision)
	wantIn(t, run, w.get(t, w.viewer, run+"/inventory"), "Placement", "pve2 has 75 points", `href="`+pool+`"`)
	w.Exec(t, "SELECT public.plan_machines($1, $2, $3)", w.Cluster, `{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1"}, "workspace": "acme/class"}`, `[{"name": "ada"}]`)
	machine := "/machines/" + w.Text(t, "SELECT id::text FROM public.machines WHERE name = 'ada'")
	wantIn(t, machine, w.get(t, w.viewer, machine), "Planned", "Reserved", "Why there", "pve2 has 75 points", `href="`+pool+`"`)
}

// The form of a template that makes machines offers the pools and images that agents have
// reported, and says which pools are not reachable.
func TestDeployOffersPools(t *testing.T) {
	t.Parallel()
	w, _, _ := pooled(t)
	w.Exec(t, `INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'class', 'https://git.example/class', 'v1'), ($1, 'network', 'https://git.example/network', 'v1')`, w.Org)
	w.Exec(t, `INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, variables, about)
		SELECT $1, 'https://git.example/' || x.name, 'v1', '', 'https://git.example/' || x.name, 'done', $2, x.about::jsonb FROM (VALUES ('class', '{"provisioner": "machine"}'), ('network', '{"provisioner": "terraform"}')) x (name, about)
		ON CONFLICT (org_id, repo, version, path) DO UPDATE SET status = 'done', variables = EXCLUDED.variables, about = EXCLUDED.about`, w.Org,
		`[{"name": "pool", "type": "string", "type_json": "string", "required": true}, {"name": "image", "type": "string", "type_json": "string"}, {"name": "cores", "type": "number", "type_json": "number"}]`)
	w.Exec(t, "SELECT public.set_pool_image(id, 'linux', 'debian-13') FROM public.pools WHERE name = 'lab'")
	page := w.get(t, w.operator, "/deploy?cluster=prod&template=class")
	wantIn(t, "the form", page, `<datalist id="offered-pool"><option value="lab"></option></datalist>`, `<datalist id="offered-image"><option value="debian-13"></option><option value="linux"></option><option value="rocky-9"></option></datalist>`,
		"Pools on prod", "connect to 192.0.2.7: connection refused", "No agent has reported it since")
	wellFormed(t, "the form", page)
	if other := w.get(t, w.operator, "/deploy?cluster=prod&template=network"); strings.Contains(other, "Pools on prod") {
		t.Error("a template that makes no machines is offered pools")
	}
	tab, at := (&estate{world: w}).enter(t, w.operator)
	tab.Visit(at + "/deploy?cluster=prod&template=class")
	tab.Wait(`document.getElementById("v-pool")?.getAttribute("list") === "offered-pool" && document.getElementById("v-image")?.getAttribute("list") === "offered-image"`)
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.NoOverflow()
		tab.Axe()
		tab.Screenshot("deploy-pools")
	}
}

// The pages of pools in a browser: they pass accessibility rules in both themes and both widths,
// and show what changes.
func TestPoolsInABrowser(t *testing.T) {
	t.Parallel()
	w, lab, pool := pooled(t)
	w.Deploy(t, "acme/left")
	w.Exec(t, `SELECT public.set_pool_quota($1, '{"workspaces": "acme/*", "machines": 4, "memory_mib": 13000}')`, w.Org)
	e := &estate{world: w}
	tab, at := e.enter(t, w.admin)
	tab.Click("Pools")
	tab.Wait(`location.pathname === "/pools" && document.readyState === "complete"`)
	tab.WaitText("connection refused")
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.NoOverflow()
		tab.Axe()
		tab.Screenshot("pools")
	}
	w.Exec(t, "INSERT INTO public.reservations (org_id, pool_id, workspace_id, name, node, cores, memory_mib, why) SELECT w.org_id, p.id, w.id, 'left-over', 'pve1', 1, 1024, 'pve1 has 50 points' FROM public.workspaces w, public.pools p WHERE w.name = 'acme/left' AND p.name = 'lab'")
	tab.Visit(at + pool)
	tab.WaitText("pve2 has 75 points")
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.NoOverflow()
		tab.Axe()
		tab.Screenshot("pool")
	}
	tab.Click("Free the place of left-over")
	tab.WaitText("Check that the pool has none either")
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.NoOverflow()
		tab.Axe()
		tab.Screenshot("pool-free")
	}
	tab.Click("Free place")
	tab.WaitText("The place of left-over is free.")
	w.Exec(t, `INSERT INTO public.machines (org_id, workspace_id, name, status, address, actions, ip_addresses, cores, memory_mib, health) SELECT r.org_id, r.workspace_id, r.name, 'running', 'machine.' || r.name, '{power,rebuild,destroy}', '{10.0.0.10}', 2, 4096, 'healthy'
		FROM public.reservations r WHERE r.name = 'ada'`)
	tab.Visit(at + "/workspaces/" + w.Text(t, "SELECT id::text FROM public.workspaces WHERE name = 'acme/class'") + "?tab=machines")
	tab.WaitText("Stop all (1)")
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.NoOverflow()
		tab.Axe()
		tab.Screenshot("workspace-machines")
	}
	tab.Visit(at + pool)
	tab.WaitText("pve2 has 75 points")
	// What was typed into the form stays while the rest is renewed.
	tab.Fill("Name in templates", "linux")
	lab.Reserve(t, "zoe")
	tab.WaitText("zoe")
	if got := browsertest.Eval[string](tab, `document.querySelector("#image").value`); got != "linux" {
		t.Errorf("the form has %q after the page was renewed, want what was typed", got)
	}
	tab.Fill("Name in this pool", "debian-13")
	tab.Click("Save")
	tab.WaitText("linux is debian-13 in this pool now.")
}
