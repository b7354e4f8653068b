package console_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// However many there are, a page lists no more than can be read, says that there
// are more, and finds each of them.
func TestPagesOfMany(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) SELECT $1, gen_random_uuid(), 'viewer' FROM generate_series(1, 130)", w.Org)
	w.Exec(t, "INSERT INTO public.people (org_id, user_id, name, email) SELECT org_id, user_id, 'person ' || row_number() OVER (), '' FROM public.org_members WHERE org_id = $1 ON CONFLICT DO NOTHING", w.Org)
	w.Exec(t, "INSERT INTO public.clusters (org_id, name, last_seen_at) SELECT $1, 'many-' || i, CASE i WHEN 40 THEN now() - interval '1 day' END FROM generate_series(1, 40) i", w.Org)
	w.Deploy(t, "acme/prod")
	w.Exec(t, `INSERT INTO public.resources (org_id, workspace_id, address, type, provider)
		SELECT org_id, id, 'ship.s[' || i || ']', 'ship', 'registry.example/acme/ship' FROM public.workspaces, generate_series(1, 600) i WHERE org_id = $1`, w.Org)
	w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version, description) SELECT $1, 'kind-' || i, 'https://git.example/' || i, 'v1', CASE i WHEN 1 THEN 'The old Kind-199.' ELSE '' END FROM generate_series(1, 200) i", w.Org)
	w.Exec(t, "SET session_replication_role = replica")
	w.Exec(t, `INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot, status, finished_at)
		SELECT p.org_id, p.cluster_id, p.workspace_id, p.config_snapshot, 'SUCCESS', now() FROM public.provisions p, generate_series(1, $1)`, store.Window)
	w.Exec(t, "SET session_replication_role = origin")
	workspace := "/workspaces/" + w.Text(t, "SELECT id::text FROM public.workspaces WHERE org_id = $1", w.Org)

	const choice = `<a class="card choice"`
	for _, page := range []struct {
		path, row string
		most      int
		has       []string
	}{
		{"/members", `<th scope="row">`, 100, []string{"And 33 more", "Search the members"}},
		{"/members?q=PERSON+13", `<th scope="row">`, 10, []string{"person 130"}},
		{"/members?q=nobody", `<th scope="row">`, 0, []string{"No members match", "Show all"}},
		{workspace, "ship.s[", 500, []string{"And 100 more", "Search the resources"}},
		{workspace + "?q=s[599]", "ship.s[", 1, nil},
		{"/", `<li id="cluster-`, 30, []string{"All 41 clusters", "many-40"}}, // that one is lost
		{"/deploy?cluster=prod", choice, 60, []string{"60 of 200 templates. Search to find the others", "Search the templates"}},
		{"/deploy?cluster=prod&step=template&q=199", choice, 2, []string{"2 of 200 templates"}},
		{"/deploy?cluster=prod&step=template&q=KIND+git.example/7", choice, 12, []string{"kind-7<", `name="cluster" value="prod"`}},
		{"/deploy?cluster=prod&step=template&q=nobody", choice, 0, []string{"No template matches", "Show all", "Another repository"}},
		{"/provisions?status=QUEUED", `<th scope="row">`, 0, []string{fmt.Sprintf("Searched %d runs. There are older ones", store.Window), `/provisions?before=`, "Search older"}},
		{"/templates?q=KIND+199", `<th scope="row">`, 2, []string{"2 of 200 templates"}},
		{"/templates?q=nobody", `<th scope="row">`, 0, []string{"No templates match"}},
		{"/deploy?step=cluster", choice, 41, []string{"41 of 41 clusters", "Search the clusters"}},
		{"/deploy?step=cluster&q=offline+many-4", choice, 2, []string{"many-40"}},
	} {
		got := w.get(t, w.admin, page.path)
		wellFormed(t, page.path, got)
		if n := strings.Count(got, page.row); n > page.most || n == 0 && page.most > 0 {
			t.Errorf("GET %s lists %d, want at most %d", page.path, n, page.most)
		}
		for _, want := range page.has {
			if !strings.Contains(got, want) {
				t.Errorf("GET %s lacks %q", page.path, want)
			}
		}
	}
	if got := w.get(t, w.admin, "/deploy?cluster=prod&step=template&q=kind-199"); strings.Index(got, ">kind-199<") > strings.Index(got, ">kind-1<") {
		t.Error("what has the words in its name comes after what has them elsewhere")
	}
}
