package console_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// The audit is for admins; its filter and its pages.
func TestAudit(t *testing.T) {
	t.Parallel()
	e := newEstate(t)
	if answer, page := e.ask(t, e.operator, "/audit", nil); answer.StatusCode != http.StatusForbidden || !strings.Contains(page, "Only admins") || strings.Contains(page, "maintenance") {
		t.Errorf("GET /audit as operator = %d %s, want 403 and why", answer.StatusCode, page)
	}
	page := e.get(t, e.admin, "/audit")
	wellFormed(t, "/audit", page)
	for _, want := range []string{"Lock workspace", "the platform", "maintenance", "a 1</bdi>", `href="/workspaces/` + e.workspaces["site/dev"].String()} {
		if !strings.Contains(page, want) {
			t.Errorf("GET /audit lacks %q", want)
		}
	}
	if page = e.get(t, e.admin, "/audit?action=pause_cluster"); !strings.Contains(page, "maintenance") || strings.Contains(page, `<span class="strong">Lock workspace`) {
		t.Errorf("GET /audit?action=pause_cluster = %s, want that action alone", page)
	}
	e.Exec(t, "INSERT INTO public.audit_events (org_id, action, object, detail) SELECT $1, 'many', 'org', jsonb_build_object('n', n) FROM generate_series(1, 120) n", e.Org)
	const only = "Actions by "
	if page = e.get(t, e.admin, "/audit?actor="+e.admin.ID.String()); !strings.Contains(page, only) {
		t.Error("the audit of one person does not say whose it is")
	}
	if page = e.get(t, e.admin, "/audit?actor=nobody"); strings.Contains(page, only) || strings.Contains(page, `name="actor"`) {
		t.Error("the audit of what is no person's id has all, and says that it is of one person")
	}
	seen, path := map[string]bool{}, "/audit?action=many"
	for range 5 {
		page = e.get(t, e.admin, path)
		for _, n := range regexp.MustCompile(`<dt>N:</dt> <dd><bdi class="break">(\d+)<`).FindAllStringSubmatch(page, -1) {
			if seen[n[1]] {
				t.Errorf("the audit's pages show %s twice", n[1])
			}
			seen[n[1]] = true
		}
		next := regexp.MustCompile(`href="([^"]*)" rel="next"`).FindStringSubmatch(page)
		if next == nil {
			break
		}
		path = html.UnescapeString(next[1])
	}
	if len(seen) != 120 {
		t.Errorf("the audit's pages show %d of the 120 actions", len(seen))
	}

	// What is rare is looked for among so many, and the page says so and leads on.
	act := func(action string, many int) {
		e.Exec(t, "INSERT INTO public.audit_events (org_id, action, object, detail) SELECT $1, $2, 'org', '{\"was\": {\"role\": \"viewer\"}, \"events\": [\"a\", \"b\"]}' FROM generate_series(1, $3)", e.Org, action, many)
	}
	act("rare", 1)
	act("common", store.Window)
	act("rare", 1)
	const rare = `<span class="strong">Rare</span>`
	on := regexp.MustCompile(`href="(/audit\?[^"]*before=[^"]*)"`)
	page = e.get(t, e.admin, "/audit?action=rare")
	if strings.Count(page, rare) != 1 || !strings.Contains(page, fmt.Sprintf("Searched %d audit events for this page. There are older ones", store.Window)) || !strings.Contains(page, "role viewer</bdi>") || !strings.Contains(page, "a, b</bdi>") {
		t.Errorf("GET /audit?action=rare = %s, want the newest, and that there is more to be looked through", page)
	}
	page = e.get(t, e.admin, html.UnescapeString(on.FindStringSubmatch(page)[1])) // from the newest common one on
	if strings.Count(page, rare) != 1 || strings.Contains(page, "Searched") {
		t.Errorf("the page after it = %s, want the other one, and nothing more to be looked through", page)
	}
	if page = e.get(t, e.admin, "/audit?action=none"); !strings.Contains(page, fmt.Sprintf("Searched %d audit events. There are older ones", store.Window)) || on.FindString(page) == "" {
		t.Errorf("GET /audit?action=none = %s, want how many were looked through, and a link that goes on", page)
	}
	if page = e.get(t, e.admin, html.UnescapeString(on.FindStringSubmatch(page)[1])); !strings.Contains(page, "No matching events") || on.FindString(page) != "" {
		t.Errorf("the page after it = %s, want the end", page)
	}
}
