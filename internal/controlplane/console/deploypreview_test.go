package console_test

import (
	"encoding/json"
	"html"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// class puts the example template of a class into the catalogue, as inspected.
func (w *world) class(t *testing.T) {
	t.Helper()
	const dir = "../../../examples/templates/class"
	declared, err := tfvars.Declared(dir)
	if err != nil {
		t.Fatal(err)
	}
	variables, err := json.Marshal(declared)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(dir + "/" + templatefile.Name)
	if err != nil {
		t.Fatal(err)
	}
	w.Exec(t, `INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'class', 'https://git.example/class', 'v1')`, w.Org)
	w.Exec(t, `INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, variables, about, file) VALUES ($1, 'https://git.example/class', 'v1', '', 'https://git.example/class', 'done', $2, '{"provisioner": "machine"}', $3)
		ON CONFLICT (org_id, repo, version, path) DO UPDATE SET status = 'done', variables = EXCLUDED.variables, about = EXCLUDED.about, file = EXCLUDED.file`, w.Org, string(variables), string(file))
}

const classQuery = "?cluster=prod&template=class"

func classOf(workspace, more string) string {
	return `{"template_source": {"repo": "https://git.example/class", "version": "v1"}, "workspace": "` + workspace + `", "terraform_vars": {"class": "net", "pool": "lab", "image": "debian-13"` + more + `}}`
}

func TestPlacementPreview(t *testing.T) {
	t.Parallel()
	w, _, _ := pooled(t)
	w.class(t)
	for _, c := range []struct{ does, snapshot, want string }{
		{"spread over the nodes", classOf("class/new", `, "students": ["ann", "bob", "cy"]`), "4 machines: 2 on pve1, 2 on pve2"},
		{"of the one that is named", classOf("class/new", `, "student_count": 2, "node": "pve1"`), "3 machines: 3 on pve1"},
		{"one", classOf("class/new", ``), "1 machine: on pve2"},
		{"of its targets", strings.Replace(classOf("class/new", `, "students": ["ann", "bob", "cy"]`), `"terraform_vars"`, `"targets": ["machine.net-ann", "machine.net-bob"], "terraform_vars"`, 1), "2 machines: 1 on pve1, 1 on pve2"},
		{"no room", classOf("class/new", `, "memory": 120000, "students": ["a", "b", "c"]`), "There is no room now"},
		{"never", classOf("class/new", `, "node": "pve9"`), "is not the one that was asked for"},
		{"not filled in", strings.Replace(classOf("class/new", ``), `"pool": "lab",`, "", 1), "Fill in pool."},
		{"no workspace", strings.Replace(classOf("x", ``), `"workspace": "x", `, "", 1), "Enter a workspace."},
		{"a value that does not fit", classOf("class/new", `, "cores": "many"`), "cores"},
		{"no JSON", "{", "Fix the errors in the form"},
		{"another pool", strings.Replace(classOf("class/new", ``), `"lab"`, `"<b>"`, 1), `pool "<b>"`},
	} {
		answer, got := w.askWith(t, w.operator, "/deploy/preview"+classQuery, url.Values{"config_snapshot": {c.snapshot}}, "HX-Request: true")
		if text := html.UnescapeString(got); answer.Code != 200 || !strings.Contains(text, c.want) || strings.Contains(got, "<b>") {
			t.Errorf("%s: %d %s, want %q", c.does, answer.Code, got, c.want)
		}
	}
	// A machine that is there stays, and is said to.
	w.Exec(t, "INSERT INTO public.machines (org_id, workspace_id, name, status) SELECT org_id, workspace_id, name, 'running' FROM public.reservations")
	w.Exec(t, "UPDATE public.reservations SET name = 'net-' || name")
	w.Exec(t, "UPDATE public.machines SET name = 'net-' || name")
	_, got := w.askWith(t, w.operator, "/deploy/preview"+classQuery, url.Values{"config_snapshot": {classOf("acme/class", `, "students": ["ada", "grace"]`)}}, "HX-Request: true")
	wantIn(t, "a preview with machines that are there", got, "; 2 exist and stay", "Exists and stays", "net-teacher")
	if n := w.Text(t, "SELECT count(*)::text FROM public.reservations"); n != "2" {
		t.Errorf("%s places are reserved after previews, want 2", n)
	}
	w.Exec(t, "UPDATE public.template_inspections SET file = NULL")
	_, got = w.askWith(t, w.operator, "/deploy/preview"+classQuery, url.Values{"config_snapshot": {classOf("acme/class", "")}}, "HX-Request: true")
	wantIn(t, "a preview of what an old agent inspected", got, "Re-scan")
	for _, p := range []string{"/deploy" + classQuery} {
		if page := w.get(t, w.viewer, p); strings.Contains(page, `id="placement"`) {
			t.Error("a viewer is offered a preview")
		}
		page := w.get(t, w.operator, p)
		wantIn(t, p, page, `id="placement"`, "Largest machine that fits now: 32 cores, 75.2 GiB", `<option value="77004">75.2 GiB: the largest that fits now in lab</option>`)
		wellFormed(t, p, page)
	}
}

func TestNamesFromAList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for text, want := range map[string]string{
		"ann\n\nbob": `{"names":["ann","bob"]}`, "name,cores\nann,2\nbob,\n": `{"names":["ann","bob"]}`, "": `{"problem":"There is no machine in the list"}`,
		"nme,cores\nann,2": `{"problem":"Line 1: there is no column \"nme\"; did you mean \"name\"?; known are name, pool, image, cores, memory_mib, disk_gib, labels"}`,
	} {
		if _, got := w.askWith(t, w.operator, "/deploy/names", url.Values{"machines": {text}}, "Accept: application/json"); strings.TrimSpace(got) != want {
			t.Errorf("names of %q = %s, want %s", text, got, want)
		}
	}
}

// The form says where machines would go while it is filled in.
func TestPlacementInABrowser(t *testing.T) {
	t.Parallel()
	w, _, _ := pooled(t)
	w.class(t)
	tab, at := (&estate{world: w}).enter(t, w.operator)
	tab.Visit(at + "/deploy" + classQuery)
	tab.WaitText("Fill in class, image, pool.")
	tab.Fill("Workspace", "class/new")
	tab.Fill("class", "net")
	tab.Fill("pool", "lab")
	tab.Fill("image", "debian-13")
	tab.WaitText("1 machine: on pve2")
	choose := `(() => { const state = document.querySelector('[data-variable="students"] .state'); state.value = "value"; return state.dispatchEvent(new Event("change")); })()`
	browsertest.Eval[bool](tab, choose)
	tab.Click("Paste or load a list into students")
	tab.Fill("One a line, or CSV with a column called name", "name,cores\nann,2\nbob,2\n")
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.NoOverflow()
		tab.Axe()
		tab.Screenshot("deploy-names")
	}
	// The focus stays where somebody types before the server has answered.
	browsertest.Eval[bool](tab, `(() => { const real = fetch; window.fetch = (...all) => new Promise((done) => { window.answer = () => done(real(...all)); }); return true; })()`)
	tab.Click("Use these")
	tab.Wait(`Boolean(window.answer)`)
	tab.Fill("Workspace", "class/newer")
	browsertest.Eval[bool](tab, `(answer(), true)`)
	tab.WaitText("3 machines: 2 on pve2, 1 on pve1")
	if got := browsertest.Eval[string](tab, `document.activeElement.id`); got != "s-workspace" {
		t.Errorf("the list took the focus to %q, want it where somebody types", got)
	}
	browsertest.Eval[bool](tab, `document.querySelector("#placement details").open = true`)
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.NoOverflow()
		tab.Axe()
		tab.Screenshot("deploy-placement")
	}
	tab.Wait(`document.getElementById("placed").textContent === "3 machines: 2 on pve2, 1 on pve1"`)
	tab.Fill("memory", "999999")
	tab.WaitText("can't be placed")
	for _, look := range browsertest.Looks() {
		tab.Look(look)
		tab.NoOverflow()
		tab.Axe()
		tab.Screenshot("deploy-noplace")
	}
}
