package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/person"
)

// stands puts a provision of somebody's in a state, past the state machine.
func (w *world) stands(t *testing.T, workspace string, by person.Person, columns string, args ...any) string {
	t.Helper()
	id := w.Deploy(t, workspace)
	w.force(t, "requested_by = $2 WHERE id = $1", id, by.ID)
	w.force(t, columns+" WHERE id = $1", append([]any{id}, args...)...)
	return "/provisions/" + w.Text(t, "SELECT number::text FROM public.provisions WHERE id = $1", id)
}

// force changes provisions as no function would.
func (w *world) force(t *testing.T, change string, args ...any) {
	t.Helper()
	w.Exec(t, "ALTER TABLE public.provisions DISABLE TRIGGER USER")
	w.Exec(t, "UPDATE public.provisions SET "+change, args...)
	w.Exec(t, "ALTER TABLE public.provisions ENABLE TRIGGER USER")
}

const planJSON = `'{"add": 2, "change": 1, "destroy": 1, "replace": 1, "import": 0, "move": 0, "resources": [
	{"address": "terraform_data.old", "action": "delete", "reason": "delete_because_no_resource_config"},
	{"address": "aws_instance.web", "action": "replace", "reason": "replace_because_tainted", "truncated": 3, "attributes": [
		{"path": "ami", "before": "\"ami-1\"", "after": "\"ami-2\"", "replaces": true}, {"path": "id", "before": "\"i-7\"", "unknown": true}, {"path": "password", "sensitive": true}]},
	{"address": "terraform_data.a", "action": "update", "attributes": [{"path": "input", "before": 1, "after": 2}]},
	{"address": "terraform_data.b", "action": "create"}], "truncated": 1}'::jsonb`

// What a person of each role is offered in each state, and what is asked first.
func TestProvisionByRoleAndStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const digest = "d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1"
	other := person.Person{ID: uuid.New(), Name: "Other"}
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'operator')", w.Org, other.ID)
	awaits := "status = 'AWAITING_APPROVAL', plan_digest = $2, plan_summary = " + planJSON
	states := []struct {
		name, path string
		says       []string
		operator   []string // what they are offered
	}{
		{"queued", w.stands(t, "a", other, "priority = 1"), []string{"Queued", "cluster prod has never had an agent", "Start an agent there", "Go to the cluster"}, []string{"cancel"}},
		{"running", w.stands(t, "b", other, "status = 'PROCESSING', started_at = now() - interval '90 seconds'"), []string{"Running", "running for", "<progress"}, []string{"cancel"}},
		{"stopping", w.stands(t, "c", other, "status = 'PROCESSING', started_at = now(), cancel_requested_at = now()"), []string{"Stopping."}, nil},
		{"awaiting", w.stands(t, "d", other, awaits, digest), []string{"needs approval", digest, "1 to destroy", "Destroy <span", "no longer in the template",
			"forces replacement", "known after apply", "Sensitive, not shown", "and 3 more attributes", "and 1 more resource "}, []string{"approve", "reject"}},
		{"success", w.stands(t, "e", other, `status = 'SUCCESS', traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', started_at = now() - interval '61 seconds', finished_at = now(), outputs = '{"url": {"value": "https://x"}, "key": {"sensitive": true}, "sealed": {"sensitive": true, "sealed": "AGE"}}'`),
			[]string{"Succeeded", "1 min 1 s", `href="https://jaeger.example/trace/0af7651916cd43dd8448eb211c80319c"`, "https://x", "Sensitive, not stored: the deploy gave no key", `data-sealed="AGE"`}, []string{"plan"}},
		{"failed", w.stands(t, "f", other, "status = 'FAILED', finished_at = now(), error_code = 'plan_failed', error_message = 'no such <b>thing</b>'"),
			[]string{"No plan could be made", "no such &lt;b&gt;thing&lt;/b&gt;", "What to do", "<code>plan_failed</code>"}, []string{"plan", "retry"}},
		{"cancelled", w.stands(t, "g", other, "status = 'CANCELLED', finished_at = now(), error_code = 'rejected', error_message = 'Reason given: too dear'"), []string{"The plan was rejected", "too dear"}, []string{"plan", "retry"}},
		{"unlock", w.stands(t, "h", other, "status = 'FAILED', finished_at = now(), operation = 'unlock', error_code = 'from_tomorrow'"), []string{"From tomorrow", "Unlock the state"}, nil},
		{"inspection", w.stands(t, "hidden-one", other, "status = 'FAILED', finished_at = now(), operation = 'inspect', error_code = 'repo_refused'"), []string{"Inspect "}, nil},
	}
	offered := regexp.MustCompile(`action="/provisions/\d+/([a-z]+)"`)
	for _, s := range states {
		for _, who := range []struct {
			person person.Person
			want   []string
		}{{w.viewer, nil}, {w.operator, s.operator}, {w.admin, s.operator}} {
			page := w.get(t, who.person, s.path)
			for _, want := range s.says {
				if !strings.Contains(page, want) {
					t.Errorf("the page of what is %s, for %s, does not say %q:\n%s", s.name, who.person.Name, want, page)
				}
			}
			seen := map[string]bool{}
			for _, m := range offered.FindAllStringSubmatch(page, -1) {
				seen[m[1]] = true
			}
			want := map[string]bool{}
			for _, o := range who.want {
				want[o] = true
			}
			if fmt.Sprint(seen) != fmt.Sprint(want) {
				t.Errorf("the page of what is %s offers %s %v, want %v", s.name, who.person.Name, seen, want)
			}
			for _, part := range []string{"/run", "/outcome", "/inventory"} {
				if got := w.get(t, who.person, s.path+part); !strings.HasPrefix(got, "<div id=") {
					t.Errorf("GET %s%s = %.80s, want the part alone", s.path, part, got)
				}
			}
		}
		for _, path := range []string{s.path, s.path + "/run"} {
			if answer, page := w.ask(t, w.stranger, path, nil); answer.StatusCode != http.StatusNotFound || strings.Contains(page, "envtempl") {
				t.Errorf("GET %s as a stranger = %d, want 404 that tells nothing", path, answer.StatusCode)
			}
		}
	}

	inspection := states[len(states)-1].path // its workspace is none
	w.says(t, w.operator, inspection, "Inspect ", "/workspaces/")
	w.says(t, w.operator, inspection, "<title>#9 Inspection of envtempl", "No resources")

	// What keeps the workspace, what it was tried again as, and what has drifted.
	failed := states[5].path
	w.Exec(t, `UPDATE public.workspaces SET lock_reason = 'audit', locked_at = now(), state_lock = '{"id": "L-1", "who": "ann@host", "number": 6, "at": "2026-01-02T03:04:05Z"}' WHERE name = 'f'`)
	w.says(t, w.viewer, failed, "The workspace is locked:</strong> audit", "is held")
	w.says(t, w.viewer, failed, "by ann@host", "is held")
	retried := w.Text(t, "SELECT public.retry_provision(id)::text FROM public.provisions WHERE error_code = 'plan_failed'")
	w.says(t, w.viewer, failed, "Retried as", "Tries again")
	w.says(t, w.viewer, "/provisions/"+w.Text(t, "SELECT number::text FROM public.provisions WHERE id::text = $1", retried), "Retry of", "Retried as")
	drifted := w.stands(t, "drifted", other, "operation = 'refresh', status = 'SUCCESS', finished_at = now()")
	w.Exec(t, `UPDATE public.workspaces SET drift_at = now(), drift_count = 1, drift = '[{"address": "terraform_data.gone", "action": "delete"}]' WHERE name = 'drifted'`)
	w.says(t, w.viewer, drifted, "terraform_data.gone", "Nothing is known")

	// Who asked, and who may decide.
	awaiting := states[3].path
	w.Exec(t, "UPDATE public.clusters SET four_eyes = true")
	mine := w.stands(t, "i", w.operator, awaits, digest)
	w.says(t, w.operator, mine, "and you requested it", "/approve")
	w.says(t, other, mine, "/approve", "You asked")
	w.Exec(t, "UPDATE public.clusters SET approvers = 'admin'")
	w.says(t, w.operator, awaiting, "need approval from an admin", "/approve")
	w.says(t, w.admin, awaiting, "/approve", "You asked")
}

// says asks for a page that has one text and not the other.
func (w *world) says(t *testing.T, p person.Person, path, want, not string) {
	t.Helper()
	if page := w.get(t, p, path); !strings.Contains(page, want) || strings.Contains(page, not) {
		t.Errorf("GET %s as %s has %q: %v, and %q: %v, want only the first", path, p.Name, want, strings.Contains(page, want), not, strings.Contains(page, not))
	}
}

// What forms do, and how the database's no comes back.
func TestProvisionForms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	send := func(p person.Person, path string, form url.Values) (to, said string) {
		t.Helper()
		answer, page := w.ask(t, p, path, form)
		if answer.StatusCode != http.StatusSeeOther {
			return fmt.Sprint(answer.StatusCode), page
		}
		to = answer.Header.Get("Location")
		_, page = w.ask(t, p, to, nil, answer.Cookies()...)
		if i := strings.Index(page, `class="flash"`); i >= 0 {
			said = page[i:]
			said = said[:strings.Index(said, "</div></div></div>")]
		}
		return to, said
	}
	path := w.stands(t, "a", w.operator, "priority = 0")
	if to, _ := send(w.viewer, path+"/cancel", url.Values{}); to != path {
		t.Errorf("POST cancel as a viewer = %s, want to come back", to)
	}
	if got := w.Text(t, "SELECT status FROM public.provisions"); got != "QUEUED" {
		t.Fatalf("status after a viewer's cancel = %s, want QUEUED", got)
	}
	if to, said := send(w.operator, path+"/cancel", url.Values{}); to != path || !strings.Contains(said, "Cancelled.") {
		t.Errorf("POST cancel = %s %s, want the page to say so", to, said)
	}
	if to, said := send(w.operator, path+"/cancel", url.Values{}); to != path || strings.Contains(said, `data-kind="error"`) {
		t.Errorf("POST cancel again = %s %s, want no error", to, said)
	}
	if to, said := send(w.operator, path+"/approve", url.Values{"plan_digest": {"x"}}); to != path || !strings.Contains(said, "does not need approval") {
		t.Errorf("POST approve of what is cancelled = %s %s, want the database's no on the page", to, said)
	}
	own := newAuthority(t).Recipient()
	click := url.Values{"click": {uuid.NewString()}, "requester_key": {own}}
	to, said := send(w.operator, path+"/plan", click)
	if to == path || !strings.Contains(said, "is queued") {
		t.Errorf("POST plan = %s %s, want the page of a new provision", to, said)
	}
	if again, _ := send(w.operator, path+"/plan", click); again != to {
		t.Errorf("POST plan twice = %s, want %s both times", again, to)
	}
	if got := w.Text(t, "SELECT concat_ws(' ', operation, config_snapshot ->> 'workspace', config_snapshot ->> 'requester_key') FROM public.provisions ORDER BY number DESC LIMIT 1"); got != "plan a "+own {
		t.Errorf("what was queued = %s, want a plan of a for %s", got, own)
	}
	if to, _ := send(w.operator, path+"/retry", url.Values{"requester_key": {own}}); to == path || !strings.HasPrefix(to, "/provisions/") {
		t.Errorf("POST retry = %s, want the page of a new provision", to)
	}
	if got := w.Text(t, "SELECT coalesce(config_snapshot ->> 'requester_key', '') FROM public.provisions WHERE retry_of IS NOT NULL"); got != own {
		t.Errorf("the retry names %q, want %q", got, own)
	}
	click = url.Values{"click": {uuid.NewString()}, "confirm": {"b"}}
	if to, said := send(w.operator, path+"/destroy", click); to != path || !strings.Contains(said, "does not match") {
		t.Errorf("POST destroy with another name = %s %s, want nothing done", to, said)
	}
	click.Set("confirm", "a")
	if to, _ := send(w.operator, path+"/destroy", click); to == path {
		t.Errorf("POST destroy = %s, want the page of a new provision", to)
	}
	var s map[string]any
	if err := json.Unmarshal([]byte(w.Text(t, "SELECT config_snapshot::text FROM public.provisions WHERE operation = 'destroy'")), &s); err != nil || s["workspace"] != "a" || s["meta"].(map[string]any)["triggered_by"] != "the console" {
		t.Errorf("the snapshot of the destroy = %v, %v, want that of what was applied", s, err)
	}
}

// The list's filters, its pages, and that it is one organisation's.
func TestProvisionList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 60 {
		w.Deploy(t, fmt.Sprintf("w%d", i))
	}
	w.force(t, "operation = 'plan' WHERE number = 3")
	numbers := func(p person.Person, query string) []string {
		t.Helper()
		var list []string
		for _, m := range regexp.MustCompile(`<a href="/provisions/(\d+)">`).FindAllStringSubmatch(w.get(t, p, "/provisions"+query), -1) {
			list = append(list, m[1])
		}
		return list
	}
	first := numbers(w.viewer, "")
	if len(first) != 50 || first[0] != "60" {
		t.Fatalf("the list = %v, want the newest 50", first)
	}
	next := regexp.MustCompile(`href="(/provisions\?[^"]*)" rel="next"`).FindStringSubmatch(w.get(t, w.viewer, "/provisions"))
	if rest := numbers(w.viewer, strings.TrimPrefix(next[1], "/provisions")); len(rest) != 10 || rest[0] != "10" {
		t.Errorf("the second page = %v, want the other 10", rest)
	}
	workspace := w.Text(t, "SELECT id::text FROM public.workspaces WHERE name = 'w7'")
	for query, want := range map[string]string{"?operation=plan": "[3]", "?workspace=" + workspace: "[8]", "?status=FAILED": "[]", "?cluster=prod&operation=plan": "[3]"} {
		if got := fmt.Sprint(numbers(w.viewer, query)); got != want {
			t.Errorf("the list %s = %s, want %s", query, got, want)
		}
	}
	if got := numbers(w.stranger, ""); len(got) != 0 {
		t.Errorf("a stranger's list = %v, want none", got)
	}
	if answer, _ := w.ask(t, w.viewer, "/provisions?cluster=nowhere", nil); answer.StatusCode != http.StatusNotFound {
		t.Errorf("the list of an unknown cluster = %d, want 404", answer.StatusCode)
	}
	w.says(t, w.viewer, "/provisions?status=FAILED", "No runs match", "No runs yet")
	w.says(t, w.stranger, "/provisions", "No runs yet", "#60")
}
