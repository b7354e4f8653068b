package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/net/html"
)

// Who belongs to two organisations has a page of each open, and both have a
// cluster of that name. A form does what it says in the organisation whose page
// it stands on, whichever was chosen since in another tab.
func TestFormsActInTheOrganisationThatTheyShow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := uuid.New()
	w.Exec(t, "INSERT INTO public.orgs (id, name) VALUES ($1, 'other')", other)
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'admin')", other, w.admin.ID)
	w.Exec(t, "INSERT INTO public.clusters (org_id, name) SELECT $1, name FROM public.clusters WHERE id = $2", other, w.Cluster)
	name := w.Text(t, "SELECT name FROM public.clusters WHERE id = $1", w.Cluster)
	looks := func(org uuid.UUID) *http.Cookie { return &http.Cookie{Name: "__Host-trellis_org", Value: org.String()} }

	path := "/clusters/" + name
	_, page := w.ask(t, w.admin, path, nil, looks(w.Org))
	form := hiddenOf(t, page, path+"/pause")
	answer, _ := w.ask(t, w.admin, path+"/pause", form, looks(other)) // chosen in another tab meanwhile
	if answer.StatusCode != http.StatusSeeOther {
		t.Fatalf("POST %s/pause = %d, want 303", path, answer.StatusCode)
	}
	if got := w.Text(t, "SELECT string_agg(o.name || ' ' || (c.paused_at IS NOT NULL), ', ' ORDER BY o.name) FROM public.clusters c JOIN public.orgs o ON o.id = c.org_id"); got != "acme true, other false" {
		t.Errorf("paused are %s, want acme's cluster alone, whose page had the form", got)
	}
	// And the page that tells of it is of that organisation.
	if _, page := w.ask(t, w.admin, answer.Header.Get("Location"), nil, answer.Cookies()...); !strings.Contains(page, `data-state="PAUSED"`) {
		t.Errorf("the page after it is of a cluster that is not paused: %s", page)
	}

	w.Exec(t, "DELETE FROM public.org_members WHERE org_id = $1 AND user_id = $2", w.Org, w.admin.ID)
	if answer, _ := w.ask(t, w.admin, path+"/resume", form, looks(other)); answer.StatusCode != http.StatusNotFound {
		t.Errorf("POST %s/resume of an organisation that was left = %d, want 404", path, answer.StatusCode)
	}
}

// What is no text is refused as that: it is no fault of ours, to be logged.
func TestWhatIsNoText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, path := range []string{"/workspaces?q=%00", "/workspaces?q=%ff", "/clusters/%00", "/templates/%ff", "/workspaces/%00", "/audit?action=%00", "/deploy?repo=%00&version=v1"} {
		if answer, page := w.ask(t, w.admin, path, nil); answer.StatusCode != http.StatusBadRequest || !strings.Contains(page, "not text") {
			t.Errorf("GET %s = %d, want 400 and why", path, answer.StatusCode)
		}
	}
	if answer, _ := w.ask(t, w.admin, "/members/invite", url.Values{"email": {"a\x00@b.example"}, "role": {"viewer"}}); answer.StatusCode != http.StatusBadRequest {
		t.Errorf("POST /members/invite of a zero byte = %d, want 400", answer.StatusCode)
	}
}

// hiddenOf are the hidden fields of a page's form.
func hiddenOf(t *testing.T, page, action string) url.Values {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	attribute := func(n *html.Node, name string) string {
		for _, a := range n.Attr {
			if a.Key == name {
				return a.Val
			}
		}
		return ""
	}
	for n := range root.Descendants() {
		if n.Data != "form" || !strings.HasPrefix(attribute(n, "action"), action) {
			continue
		}
		found := url.Values{}
		for field := range n.Descendants() {
			if field.Data == "input" && attribute(field, "type") == "hidden" {
				found.Add(attribute(field, "name"), attribute(field, "value"))
			}
		}
		return found
	}
	t.Fatalf("there is no form of %s in %s", action, page)
	return nil
}
