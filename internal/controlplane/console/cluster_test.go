package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// A cluster that is paused says since when, and to admins by whom and why; also in
// the part of its page that is fetched again and again.
func TestWhoPausedACluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "INSERT INTO public.people (org_id, user_id, name, email) VALUES ($1, $2, 'Ada <b>', '') ON CONFLICT (org_id, user_id) DO UPDATE SET name = excluded.name", w.Org, w.admin.ID)
	const alert, whom, admins = "<strong>Paused", "Ada &lt;b&gt;</bdi> <time", "Admins can see who paused it and why."
	for _, step := range []struct {
		form, reason string
		says         []string
		nots         []string
	}{
		{"", "", nil, []string{alert}},
		{"pause", "new nodes </bdi>", []string{alert, whom, ":</strong> <bdi>new nodes &lt;/bdi&gt;</bdi>"}, []string{admins}},
		{"resume", "", nil, []string{alert}},
		{"pause", "", []string{alert, whom, "</time>.</strong>"}, []string{"new nodes"}}, // the last one counts
	} {
		if step.form != "" {
			if answer, page := w.ask(t, w.admin, "/clusters/prod/"+step.form, url.Values{"reason": {step.reason}}); answer.StatusCode != http.StatusSeeOther {
				t.Fatalf("POST /clusters/prod/%s = %d %s, want 303", step.form, answer.StatusCode, page)
			}
		}
		page := w.get(t, w.admin, "/clusters/prod")
		wellFormed(t, "/clusters/prod", page)
		for _, want := range step.says {
			if !strings.Contains(page, want) {
				t.Errorf("after %q the cluster's page lacks %q", step.form, want)
			}
		}
		for _, not := range step.nots {
			if strings.Contains(page, not) {
				t.Errorf("after %q the cluster's page has %q, want it not there", step.form, not)
			}
		}
		paused := step.form == "pause"
		if page = w.get(t, w.operator, "/clusters/prod"); strings.Contains(page, alert) != paused || strings.Contains(page, admins) != paused || strings.Contains(page, "Ada") {
			t.Errorf("after %q an operator sees paused %t, with who sees more %t, and by whom %t", step.form, strings.Contains(page, alert), strings.Contains(page, admins), strings.Contains(page, "Ada"))
		}
	}
}
