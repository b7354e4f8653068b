package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestLayout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	page := w.get(t, w.operator, "/")
	for _, want := range []string{`href="/workspaces"`, `href="/" data-go="h" aria-current="page"`, "Some operator", `action="/signout"`, ">acme<"} {
		if !strings.Contains(page, want) {
			t.Errorf("GET / = %s, want %s in it", page, want)
		}
	}
	if strings.Contains(page, `action="/org"`) {
		t.Error("GET / of a member of one organisation has a switcher, want none")
	}

	second := uuid.New()
	w.Exec(t, "INSERT INTO public.orgs (id, name) VALUES ($1, $2)", second, "<b>second</b>")
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'viewer')", second, w.operator.ID)
	if page = w.get(t, w.operator, "/"); !strings.Contains(page, `action="/org"`) || strings.Contains(page, "<b>second") {
		t.Errorf("GET / of a member of two organisations = %s, want a switcher with both names escaped", page)
	}

	for _, c := range []struct{ org, to, want string }{
		{second.String(), "/workspaces/1234", "/workspaces"},
		{second.String(), "//evil.example/", "/"},
		{second.String(), "https://evil.example/", "/"},
	} {
		answer, _ := w.ask(t, w.operator, "/org", url.Values{"org": {c.org}, "to": {c.to}})
		if answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != c.want {
			t.Fatalf("POST /org to %q = %d to %q, want 303 to %q", c.to, answer.StatusCode, answer.Header.Get("Location"), c.want)
		}
		page := readAs(t, w, answer)
		if !strings.Contains(page, "You are now in &lt;b&gt;second") || !strings.Contains(page, `<span class="muted small">viewer</span>`) {
			t.Errorf("the page after POST /org = %s, want the word of it, and the second organisation", page)
		}
	}
	if answer, _ := w.ask(t, w.operator, "/org", url.Values{"org": {uuid.NewString()}}); answer.StatusCode != http.StatusNotFound {
		t.Errorf("POST /org of a foreign organisation = %d, want 404", answer.StatusCode)
	}
}

// readAs reads the home page as the operator with the cookies of an answer.
func readAs(t *testing.T, w *world, answer *reply) string {
	t.Helper()
	_, page := w.ask(t, w.operator, "/", nil, answer.Cookies()...)
	return page
}
