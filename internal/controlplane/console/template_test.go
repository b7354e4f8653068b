package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

func TestTemplates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, p := range []person.Person{w.viewer, w.admin} {
		wantIn(t, "GET /templates without any", w.get(t, p, "/templates"), "No templates yet")
	}
	w.network(t)
	w.Exec(t, `UPDATE public.template_inspections SET about = '{"title": "A <b>network", "description": "Where all else lies.", "icon": "network", "provisioner": "script"}'`)
	wantIn(t, "GET /templates/network", w.get(t, w.viewer, "/templates/network"), "Where all else lies.")
	for _, path := range []string{"/templates", "/templates/network"} {
		wantIn(t, "GET "+path, w.get(t, w.viewer, path), "A <b>network", "M9.5 3.5h5v5h-5Z", `<span class="chip">script</span>`)
		if strings.Contains(w.get(t, w.viewer, path), "<b>network") {
			t.Errorf("GET %s has a template's words as HTML", path)
		}
	}
	for _, p := range []person.Person{w.viewer, w.operator, w.admin} {
		page := w.get(t, p, "/templates/network")
		wantIn(t, "GET /templates/network as "+p.Name, page, "db_password", "12345678901234567890", "not shown", "required", networkRepo, "Not used by any workspace")
		for what, least := range map[string]bool{
			`action="/templates/network/inspect"`: p != w.viewer, `action="/templates/network/version"`: p != w.viewer,
			`action="/templates/network/remove"`: p == w.admin, `action="/templates/network" `: p == w.admin, `name="offer"`: p == w.admin,
		} {
			if got := strings.Contains(page, what); got != least {
				t.Errorf("GET /templates/network as %s has %s: %t, want %t", p.Name, what, got, least)
			}
		}
		if page = w.get(t, p, "/templates"); strings.Contains(page, "/templates/new") != (p == w.admin) {
			t.Errorf("GET /templates as %s offers to add one: %t", p.Name, p != w.admin)
		}
	}
	if answer, _ := w.ask(t, w.stranger, "/templates/network", nil); answer.StatusCode != http.StatusNotFound {
		t.Errorf("GET /templates/network as a stranger = %d, want 404", answer.StatusCode)
	}
}

func TestTemplatesAreLookedAfterByAdmins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.network(t)
	entry := func(name, repo, version string) url.Values {
		return url.Values{"name": {name}, "repo": {repo}, "version": {version}, "description": {"What for."}, "approval": {"always"}}
	}
	offered := func() string {
		return w.Text(t, "SELECT coalesce(string_agg(name || ' ' || version || ' ' || approval, ', ' ORDER BY name), '-') FROM public.templates")
	}
	const same = "network v1.2.0 never"
	for what, c := range map[string]struct {
		who    person.Person
		path   string
		form   url.Values
		status int
		want   string
	}{
		"adding by an operator":     {w.operator, "/templates/new", entry("a", networkRepo, "v1"), http.StatusNotFound, ""},
		"adding by a stranger":      {w.stranger, "/templates/network", entry("a", networkRepo, "v1"), http.StatusNotFound, ""},
		"adding what is there":      {w.admin, "/templates/new", entry("network", networkRepo, "v9"), http.StatusUnprocessableEntity, "A template with that name exists"},
		"adding with credentials":   {w.admin, "/templates/new", entry("a", "https://u:hunter2@h/x", "v1"), http.StatusUnprocessableEntity, `id="t-repo-error"`},
		"changing by an operator":   {w.operator, "/templates/network", entry("", networkRepo, "v1"), http.StatusNotFound, ""},
		"changing to a branch's":    {w.admin, "/templates/network", entry("", networkRepo, "refs/heads/main"), http.StatusUnprocessableEntity, `id="t-version-error"`},
		"offering by an operator":   {w.operator, "/templates/network/version", url.Values{"version": {"v2"}, "offer": {"1"}}, http.StatusNotFound, ""},
		"a version that is none":    {w.admin, "/templates/network/version", url.Values{"version": {"-x"}}, http.StatusUnprocessableEntity, `id="version-error"`},
		"inspecting by a viewer":    {w.viewer, "/templates/network/inspect", url.Values{"version": {"v1.2.0"}}, http.StatusNotFound, ""},
		"removing by an operator":   {w.operator, "/templates/network/remove", url.Values{}, http.StatusNotFound, ""},
		"removing what is not here": {w.admin, "/templates/none/remove", url.Values{}, http.StatusNotFound, "none"},
	} {
		answer, page := w.ask(t, c.who, c.path, c.form)
		if answer.StatusCode != c.status || offered() != same {
			t.Errorf("%s = %d with %s in the catalogue, want %d and nothing changed", what, answer.StatusCode, offered(), c.status)
		}
		if c.want != "" {
			wantIn(t, what, page, c.want)
		}
		if strings.Contains(page, "hunter2") && what != "adding with credentials" {
			t.Errorf("%s shows another's credentials", what)
		}
	}

	for _, c := range []struct {
		path string
		form url.Values
		to   string
		want string
	}{
		{"/templates/new", entry("a/b c", networkRepo, "v1"), "/templates/a%2Fb%20c", "a/b c v1 always, network v1.2.0 never"},
		{"/templates/a%2Fb%20c/remove", url.Values{}, "/templates", "network v1.2.0 never"},
		{"/templates/network", entry("", networkRepo, "v1.3.0"), "/templates/network", "network v1.3.0 always"},
		{"/templates/network/version", url.Values{"version": {"v1.4.0"}}, "/templates/network?version=v1.4.0", "network v1.3.0 always"},
		{"/templates/network/version", url.Values{"version": {"v1.4.0"}, "offer": {"1"}}, "/templates/network?version=v1.4.0", "network v1.4.0 always"},
	} {
		answer, page := w.ask(t, w.admin, c.path, c.form)
		if answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != c.to || offered() != c.want {
			t.Errorf("POST %s = %d to %q with %s in the catalogue, want 303 to %s with %s: %.300s", c.path, answer.StatusCode, answer.Header.Get("Location"), offered(), c.to, c.want, page)
		}
	}
	if got := w.Text(t, "SELECT string_agg(version || ' ' || status, ', ' ORDER BY version) FROM public.template_inspections"); got != "v1 wanted, v1.2.0 done, v1.3.0 wanted, v1.4.0 wanted" {
		t.Errorf("inspections = %s, want each version that was added looked at", got)
	}
}

func TestTemplatesInABrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.network(t)
	w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'slow', 'https://git.example/slow', 'v1')", w.Org)
	site, _ := w.site(t, w.admin)
	tab := browsertest.New(t)
	tab.Visit(site + "/templates/network")
	judge(tab)
	// A page that waits is told when there is something to see.
	tab.Visit(site + "/templates/slow")
	tab.WaitText("Scanning…")
	w.Exec(t, fmt.Sprintf(`UPDATE public.template_inspections SET status = 'done', variables = '%s' WHERE repo = 'https://git.example/slow'`,
		`[{"name": "found_out", "type_json": "string", "required": true}]`))
	tab.WaitText("found_out")
	tab.Click("Remove this template")
	tab.Click("Remove slow")
	tab.Fill("Type slow to go on", "slow")
	tab.Click("Remove slow")
	tab.WaitText("slow is removed from the catalogue")
}
