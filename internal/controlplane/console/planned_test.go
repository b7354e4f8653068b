package console_test

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// planning is a world with a template whose variables take planned machines.
func planning(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.Exec(t, `INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'lab', 'https://git.example/lab', 'v1')`, w.Org)
	w.Exec(t, `INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, variables) VALUES ($1, 'https://git.example/lab', 'v1', '', 'https://git.example/lab', 'done', $2)
		ON CONFLICT (org_id, repo, version, path) DO UPDATE SET status = 'done', variables = EXCLUDED.variables`, w.Org,
		`[{"name": "names", "type_json": ["set", "string"], "required": true}, {"name": "cores", "type_json": "number"}, {"name": "region", "type_json": "string"}]`)
	return w
}

// A person plans machines, changes and deletes one, and the deploy form has what the others are
// to be made with, beside what is there.
func TestPlannedMachines(t *testing.T) {
	t.Parallel()
	w := planning(t)
	// An earlier deploy made eve.
	first := w.DeploySnapshot(t, `{"template_source": {"repo": "https://git.example/lab", "version": "v1"}, "workspace": "lab/a", "terraform_vars": {"names": ["eve"], "region": "eu"}}`)
	w.force(t, "status = 'SUCCESS' WHERE id = $1", first)
	post := func(who person.Person, path, form string, status int, has string) string {
		t.Helper()
		values, err := url.ParseQuery(form)
		if err != nil {
			t.Fatal(err)
		}
		answer, page := w.ask(t, who, path, values)
		to := answer.Header.Get("Location")
		if answer.StatusCode != status || !strings.Contains(to+html.UnescapeString(page), has) {
			t.Errorf("POST %s %.80s as %s = %d to %s %.600s, want %d with %q", path, form, who.Name, answer.StatusCode, to, page, status, has)
		}
		if status == http.StatusUnprocessableEntity {
			wellFormed(t, path, page)
		}
		return to
	}
	wellFormed(t, "the form", w.get(t, w.operator, "/machines/plan?template=lab"))
	const where = "&template=lab&cluster=prod&workspace=lab/a"
	post(w.viewer, "/machines/plan", "machines=ada"+where, 404, "")
	post(w.operator, "/machines/plan", "machines=ada&template=none&cluster=prod&workspace=lab/a", 422, "hoose a cluster and a template")
	post(w.operator, "/machines/plan", "machines="+where, 422, "here is no machine in the list")
	post(w.operator, "/machines/plan", "machines="+url.QueryEscape("name,cores\nada,two\n")+where, 422, `"two" is not a whole number`)
	post(w.operator, "/machines/plan", "machines=ada&cores=x"+where, 422, `ores: "x" is not`)
	post(w.operator, "/machines/plan", "machines=ada&variables=[]"+where, 422, "not an object of JSON")
	post(w.operator, "/machines/plan", "machines=ada&template=lab&cluster=prod&workspace=", 422, "orkspace")
	list := post(w.operator, "/machines/plan", "cores=2&labels=class%3Da&machines="+url.QueryEscape("ada\nbob\ncarl")+where, 303, "/machines?status=planned&workspace=")
	if got := w.get(t, w.viewer, list); !strings.Contains(got, "not there yet") || strings.Contains(got, "/deploy?planned=") || strings.Contains(got, `href="/machines/plan"`) {
		t.Errorf("GET %s as a viewer = %s", list, got)
	}
	wantIn(t, "the list as an operator", w.get(t, w.operator, list), "/deploy?planned=", `href="/machines/plan"`)
	ada, bob := w.Text(t, "SELECT id::text FROM public.machines WHERE name = 'ada'"), w.Text(t, "SELECT id::text FROM public.machines WHERE name = 'bob'")
	page := w.get(t, w.operator, "/machines/"+ada)
	wantIn(t, "the page of ada", page, "This machine is not there yet", `href="/deploy?machine=`+ada, "2 cores", "class=a", "git.example/lab", "/delete")
	if page := w.get(t, w.viewer, "/machines/"+ada); strings.Contains(page, "/deploy?machine=") || strings.Contains(page, "/delete") {
		t.Errorf("a viewer is offered what they may not do: %s", page)
	}
	edit := w.get(t, w.operator, "/machines/"+bob+"/plan")
	if !strings.Contains(edit, `name="cores" inputmode="numeric" pattern="[1-9][0-9]*" autocomplete="off" value="2"`) || !strings.Contains(edit, `value="bob"`) {
		t.Errorf("the form to edit bob is %s", edit)
	}
	wellFormed(t, "the form to edit", edit)
	post(w.operator, "/machines/"+bob+"/plan", "name=bob&version=v1&cores=4", 303, "/machines/"+bob)
	renamed := post(w.operator, "/machines/"+bob+"/plan", "name=grace&version=v1&cores=2", 303, "/machines/")
	post(w.operator, "/machines/"+bob+"/plan", "name=x&version=v1", 404, "")
	post(w.viewer, "/machines/"+ada+"/delete", "", 404, "")
	post(w.operator, strings.TrimSuffix(post(w.operator, "/machines/plan", "machines=odd"+where, 303, "/machines/"), "?")+"/delete", "", 303, "/machines")

	for path, want := range map[string]string{"/deploy?planned=" + w.Text(t, "SELECT workspace_id::text FROM public.machines WHERE name = 'ada'"): `["eve","ada","carl","grace"]`, "/deploy?machine=" + ada: `["eve","ada"]`} {
		page := strings.ReplaceAll(strings.ReplaceAll(html.UnescapeString(w.get(t, w.operator, path)), " ", ""), "\n", "")
		for _, part := range []string{`"names":` + want, `"cores":2`, `"region":"eu"`, `"workspace":"lab/a"`} {
			if !strings.Contains(page, part) {
				t.Errorf("GET %s lacks %s", path, part)
			}
		}
		if strings.Contains(page, "Notevery") {
			t.Errorf("GET %s says that something is missing", path)
		}
	}
	w.Exec(t, "UPDATE public.machines SET cores = 8 WHERE name = 'grace'")
	if page := html.UnescapeString(w.get(t, w.operator, "/deploy?planned="+w.Text(t, "SELECT workspace_id::text FROM public.machines WHERE name = 'ada'"))); !strings.Contains(page, "grace wants cores as 8 and ada has it as 2") {
		t.Errorf("the form does not say that the sizes differ: %s", page)
	}
	w.Exec(t, "UPDATE public.machines SET status = 'running', plan = NULL WHERE name = 'grace'")
	answer, _ := w.ask(t, w.operator, renamed+"/delete", url.Values{})
	if answer.StatusCode != http.StatusConflict {
		t.Errorf("the deletion of a machine that is there = %d, want 409", answer.StatusCode)
	}
	if got := fmt.Sprint(w.Text(t, "SELECT string_agg(name || ' ' || status, ', ' ORDER BY name) FROM public.machines")); got != "ada planned, carl planned, grace running" {
		t.Errorf("machines = %s", got)
	}
}

// In a browser: from a CSV file to the form of the deploy, with each page looked at.
func TestPlanMachinesInABrowser(t *testing.T) {
	t.Parallel()
	w := planning(t)
	tab, at := (&estate{world: w}).enter(t, w.operator)
	tab.Visit(at + "/machines/plan?template=lab")
	browsertest.Eval[bool](tab, `(() => {
		const chooser = document.getElementById("file"), transfer = new DataTransfer();
		transfer.items.add(new File(["name,cores\nada,2\ngrace,2\n"], "lab.csv"));
		chooser.files = transfer.files;
		return chooser.dispatchEvent(new Event("change"));
	})()`)
	tab.Wait(`document.getElementById("machines").value.includes("grace")`)
	tab.Fill("Workspace", "lab/a")
	looked := func(name string) {
		for _, look := range browsertest.Looks() {
			tab.Look(look)
			tab.NoOverflow()
			tab.Axe()
			tab.Screenshot(name)
		}
		tab.Look(browsertest.Looks()[0])
	}
	looked("machineplan")
	tab.Click("Plan")
	tab.WaitText("2 machines are planned. Nothing is done until you provision.")
	looked("machinesplanned")
	tab.Visit(at + "/machines?group=workspace")
	looked("machinesgrouped")
	tab.Click("ada")
	tab.WaitText("This machine is not there yet")
	looked("machineplanned")
	tab.Click("Provision")
	tab.WaitText("Provisioning ada in lab/a")
	tab.Wait(`document.querySelector("#fields") && !document.querySelector("#fields").hidden`)
	looked("deployplanned")
	if got := browsertest.Eval[string](tab, `document.querySelector("textarea[name=config_snapshot]").value`); !strings.Contains(got, `"ada"`) || strings.Contains(got, `"grace"`) {
		t.Errorf("the form has %s", got)
	}
}
