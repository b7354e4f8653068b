package console_test

import (
	"encoding/json"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/seal"
)

const networkRepo = "https://git.example/acme/network"

// networkVariables are what the template of these tests declares.
const networkVariables = `[
{"name":"project_name","type":"string","type_json":"string","description":"What it belongs to.","required":true,"sensitive":false,"nullable":true,"ephemeral":false},
{"name":"environment","type":"string","type_json":"string","required":true,"sensitive":false,"nullable":false,"ephemeral":false},
{"name":"replicas","type":"number","type_json":"number","description":"How many to make.","default":12345678901234567890,"required":false,"sensitive":false,"nullable":true,"ephemeral":false},
{"name":"debug","type":"bool","type_json":"bool","default":false,"required":false,"sensitive":false,"nullable":true,"ephemeral":false},
{"name":"zones","type":"list(string)","type_json":["list","string"],"description":"Where.","required":true,"sensitive":false,"nullable":true,"ephemeral":false},
{"name":"tags","type":"map(string)","type_json":["map","string"],"default":{"team":"platform"},"required":false,"sensitive":false,"nullable":true,"ephemeral":false},
{"name":"pools","type":"list(object({name = string, size = number, spot = optional(bool)}))","type_json":["list",["object",{"name":"string","size":"number","spot":"bool"},["spot"]]],"description":"Pools of machines <b>.","default":[],"required":false,"sensitive":false,"nullable":false,"ephemeral":false},
{"name":"anything","type":"any","type_json":"dynamic","default":null,"required":false,"sensitive":false,"nullable":true,"ephemeral":false},
{"name":"db_password","type":"string","type_json":"string","description":"The database's.","required":true,"sensitive":true,"nullable":true,"ephemeral":false},
{"name":"tls","type":"object({key = string})","type_json":["object",{"key":"string"}],"description":"A key.","required":false,"sensitive":true,"nullable":true,"ephemeral":false}
]`

// network puts a template into the catalogue whose variables are known, and
// returns the cluster's own keys.
func (w *world) network(t *testing.T) seal.Identities {
	t.Helper()
	own, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "UPDATE public.clusters SET age_public_key = $1 WHERE id = $2", own.Public(), w.Cluster)
	w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version, description) VALUES ($1, 'network', $2, 'v1.2.0', 'A network.') ON CONFLICT DO NOTHING", w.Org, networkRepo)
	w.Exec(t, `INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, variables, commit) VALUES ($1, $2, 'v1.2.0', '', $2, 'done', $3, repeat('ab', 20))
		ON CONFLICT (org_id, repo, version, path) DO UPDATE SET variables = EXCLUDED.variables, status = 'done', commit = EXCLUDED.commit`, w.Org, networkRepo, networkVariables)
	return own
}

const (
	networkQuery    = "?cluster=prod&template=network&version=v1.2.0"
	networkSnapshot = `{"template_source": {"repo": "` + networkRepo + `", "version": "v1.2.0"}, "terraform_vars": {"project_name": "acme", "environment": "prod", "zones": ["a"], "replicas": 12345678901234567890}}`
)

// post sends the review's form.
func (w *world) post(t *testing.T, p person.Person, token uuid.UUID, mode, snapshot string) (*httptest.ResponseRecorder, string) {
	t.Helper()
	return w.askWith(t, p, "/deploy"+networkQuery, url.Values{"token": {token.String()}, "mode": {mode}, "config_snapshot": {snapshot}}, "")
}

// askWith posts a form with one header more, "Name: value".
func (w *world) askWith(t *testing.T, p person.Person, path string, form url.Values, header string) (*httptest.ResponseRecorder, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(person.With(t.Context(), p), http.MethodPost, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if name, value, ok := strings.Cut(header, ": "); ok {
		r.Header.Set(name, value)
	}
	answer := httptest.NewRecorder()
	w.pages.ServeHTTP(answer, r)
	return answer, answer.Body.String()
}

func wantIn(t *testing.T, what, page string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(html.UnescapeString(page), want) {
			_, main, _ := strings.Cut(page, "<main")
			t.Errorf("%s lacks %q: %.3000s", what, want, main)
		}
	}
}

func TestDeploySteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := w.network(t)
	w.NewCluster(t, "other")

	for path, want := range map[string][]string{
		"/deploy":              {"Choose a cluster", "/deploy?cluster=prod&step="},
		"/deploy?cluster=prod": {"Choose a template", "cluster=prod&step=&template=network", "Another repository"},
		"/deploy?cluster=none": {"Choose a cluster", `There is no cluster “none” here.`},
		"/deploy" + networkQuery: {"db_password", seal.Fingerprint(own.Public()), own.Public(), `"default":12345678901234567890`,
			`"triggered_by": "console"`, `action="/deploy/review?cluster=prod&step=configure&template=network&version=v1.2.0"`},
		"/deploy" + networkQuery + "&step=template":                  {`aria-current="true"`},
		"/deploy" + networkQuery + "&step=review":                    {"Nothing to review yet"},
		"/deploy?cluster=prod&repo=https://git.example/x&version=v1": {"There is no form for this template"},
	} {
		for _, p := range []person.Person{w.viewer, w.operator, w.admin} {
			page := w.get(t, p, path)
			wantIn(t, "GET "+path+" as "+p.Name, page, want...)
			if told := strings.Contains(page, "Your role is viewer"); told != (p == w.viewer) {
				t.Errorf("GET %s as %s tells that a viewer may not deploy: %t", path, p.Name, told)
			}
			if offered := strings.Contains(page, "Scan"); offered != (p != w.viewer && strings.Contains(path, "&repo=")) {
				t.Errorf("GET %s as %s offers to look at the template: %t", path, p.Name, offered)
			}
			if strings.Contains(page, "<b>.") {
				t.Errorf("GET %s has a description that is not escaped", path)
			}
		}
		if page := w.get(t, w.stranger, path); strings.Contains(page, networkRepo) || strings.Contains(page, own.Public()) {
			t.Errorf("GET %s as a stranger = %s, want nothing of this organisation", path, page)
		}
	}
	if got := w.Text(t, "SELECT count(*)::text FROM public.template_inspections WHERE repo = 'https://git.example/x'"); got != "0" {
		t.Errorf("%s inspections of a repository that a link names, want none", got)
	}
}

func TestDeployReview(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.network(t)
	review := func(header, snapshot string) (int, string) {
		form := url.Values{"config_snapshot": {snapshot}}
		answer, page := w.askWith(t, w.operator, "/deploy/review"+networkQuery, form, header)
		return answer.Code, page
	}

	status, page := review("", networkSnapshot)
	wantIn(t, "the review of a new workspace", page, "acme/prod", `<span class="chip">new</span>`, "abababababab", `value="plan-first" checked`, "First deploy")
	if status != http.StatusOK || strings.Contains(page, `name="mode" value="apply" disabled`) {
		t.Errorf("the review = %d %s, want 200 with all modes", status, page)
	}
	if _, part := review("HX-Request: true", networkSnapshot); strings.Contains(part, "<html") {
		t.Errorf("the review for htmx = %s, want a part", part)
	}

	// What is wrong is told beside the form, and what was sent is not lost.
	bad := strings.Replace(networkSnapshot, `"acme"`, `"a/b"`, 1)
	status, page = review("", bad)
	wantIn(t, "the form after a bad snapshot", page, "config_snapshot.workspace", `"a/b"`, "data-posted")
	if status != http.StatusUnprocessableEntity {
		t.Errorf("the review of a bad snapshot = %d, want 422", status)
	}
	if _, answer := review("Accept: application/json", bad); !strings.Contains(answer, `"path":"config_snapshot.workspace"`) {
		t.Errorf("the review for a script = %s, want the problem's path", answer)
	}
	if _, answer := review("Accept: application/json", networkSnapshot); strings.TrimSpace(answer) != `{"problems":[]}` {
		t.Errorf("the review for a script = %s, want no problems", answer)
	}

	// Against what was applied last.
	first := w.DeploySnapshot(t, `{"template_source": {"repo": "`+networkRepo+`", "version": "v1.1.0"}, "terraform_vars":
		{"project_name": "acme", "environment": "prod", "replicas": 12345678901234567891, "gone": 1, "db_password": "plain-and-seen"}}`)
	w.Exec(t, "UPDATE public.provisions SET status = 'PROCESSING' WHERE id = $1", first)
	w.Exec(t, "UPDATE public.provisions SET status = 'SUCCESS', finished_at = now() WHERE id = $1", first)
	w.Exec(t, "UPDATE public.workspaces SET repo = $1, path = '', locked_at = now(), lock_reason = 'hands off'", networkRepo)
	w.Exec(t, "UPDATE public.clusters SET approval = 'always', four_eyes = true")
	_, page = review("", networkSnapshot)
	wantIn(t, "the review of a change", page, "v1.1.0", "12345678901234567891", "12345678901234567890", `<strong>gone</strong>`, "hidden value", "hands off",
		`name="mode" value="apply" disabled`, "requires approval of every plan", "other than the requester")
	if strings.Contains(page, "plain-and-seen") {
		t.Error("the review shows what a sensitive variable was")
	}
	w.Exec(t, "UPDATE public.workspaces SET repo = 'https://git.example/acme/database'")
	_, page = review("", networkSnapshot)
	wantIn(t, "the review of a foreign workspace", page, "This workspace belongs to another template")
}

func TestDeployNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.network(t)
	stored := func(token uuid.UUID) string {
		return w.Text(t, "SELECT operation || ' ' || coalesce(config_snapshot ->> 'approval', '-') || ' ' || (config_snapshot #>> '{terraform_vars,replicas}') FROM public.provisions WHERE id = $1", token)
	}
	always := strings.Replace(networkSnapshot, "{", `{"approval": "always", `, 1)
	for _, c := range []struct{ mode, snapshot, want string }{
		{"plan-first", networkSnapshot, "apply always 12345678901234567890"},
		{"plan", always, "plan - 12345678901234567890"},
		{"apply", always, "apply - 12345678901234567890"},
		{"apply", strings.Replace(always, "always", "destructive", 1), "apply destructive 12345678901234567890"},
	} {
		token := uuid.New()
		for range 2 { // the second click
			answer, page := w.post(t, w.operator, token, c.mode, c.snapshot)
			if to := answer.Header().Get("Location"); answer.Code != http.StatusSeeOther || !strings.HasPrefix(to, "/provisions/") {
				t.Fatalf("POST /deploy = %d to %q, want 303 to the provision: %s", answer.Code, to, page)
			}
		}
		if got := stored(token); got != c.want {
			t.Errorf("POST /deploy as %s stores %q, want %q", c.mode, got, c.want)
		}
	}
	if got := w.Text(t, "SELECT count(*)::text FROM public.provisions"); got != "4" {
		t.Errorf("%s provisions, want 4", got)
	}

	for what, c := range map[string]struct {
		who      person.Person
		snapshot string
		status   int
		want     string
	}{
		"a viewer":          {w.viewer, networkSnapshot, http.StatusNotFound, "not found, or you may not deploy to it"},
		"a stranger":        {w.stranger, networkSnapshot, http.StatusUnprocessableEntity, "Choose a cluster"},
		"a bad snapshot":    {w.operator, strings.Replace(networkSnapshot, "v1.2.0", "-v", 1), http.StatusUnprocessableEntity, "config_snapshot.template_source.version"},
		"what is no JSON":   {w.operator, "{,", http.StatusUnprocessableEntity, "not JSON"},
		"what is too large": {w.operator, strings.Repeat(" ", 1<<20), http.StatusRequestEntityTooLarge, "larger than a snapshot may be"},
	} {
		answer, page := w.post(t, c.who, uuid.New(), "plan-first", c.snapshot)
		if answer.Code != c.status {
			t.Errorf("POST /deploy of %s = %d, want %d", what, answer.Code, c.status)
		}
		wantIn(t, "POST /deploy of "+what, page, c.want)
	}

	w.Exec(t, "UPDATE public.workspaces SET repo = 'https://git.example/acme/database', path = ''")
	answer, page := w.post(t, w.operator, uuid.New(), "apply", networkSnapshot)
	if answer.Code != http.StatusConflict {
		t.Errorf("POST /deploy to a foreign workspace = %d, want 409", answer.Code)
	}
	wantIn(t, "POST /deploy to a foreign workspace", page, "database", `value="apply" checked`)
}

// sealedOwn is the message of a db_password for the workspace acme/own.
func sealedOwn(t *testing.T, own seal.Identities) string {
	t.Helper()
	to, err := seal.ParseRecipient(own.Public())
	if err != nil {
		t.Fatal(err)
	}
	message, err := seal.Variable{
		Use:   seal.Use{Cluster: "prod", Workspace: "acme/own", Repo: networkRepo, Name: "db_password"},
		Value: json.RawMessage(`"hunter2-hunter2"`),
	}.Seal(to)
	if err != nil {
		t.Fatal(err)
	}
	return message
}

// Sealed values of the run from which a deploy begins go where they were sealed
// for, and nowhere else: who has no script is told before anything is queued.
func TestDeployFromSealedElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	message := sealedOwn(t, w.network(t))
	w.NewCluster(t, "dev")
	snapshot := func(workspace, repo string) string {
		text, err := json.Marshal(map[string]any{
			"template_source": map[string]any{"repo": repo, "version": "v1.2.0"}, "workspace": workspace,
			"terraform_vars": map[string]any{"zones": []string{"a"}}, "sealed_vars": map[string]any{"db_password": message},
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	id := w.DeploySnapshot(t, snapshot("acme/own", networkRepo))
	from := "&from=" + w.Text(t, "SELECT number::text FROM public.provisions WHERE id = $1", id)
	for name, c := range map[string]struct{ query, snapshot, want string }{
		"another workspace": {"/deploy" + networkQuery + from, snapshot("acme/other", networkRepo), "it was sealed for the workspace acme/own, and this is for the workspace acme/other"},
		"another template":  {"/deploy" + networkQuery + from, snapshot("acme/own", networkRepo+"2"), "it was sealed for the template repository " + networkRepo},
		"another cluster":   {"/deploy?cluster=dev&template=network&version=v1.2.0" + from, snapshot("acme/own", networkRepo), "it was sealed for the cluster prod"},
	} {
		for _, path := range []string{c.query, strings.Replace(c.query, "/deploy?", "/deploy/review?", 1)} {
			answer, page := w.askWith(t, w.operator, path, url.Values{"token": {uuid.NewString()}, "mode": {"apply"}, "config_snapshot": {c.snapshot}}, "")
			if answer.Code != http.StatusUnprocessableEntity {
				t.Errorf("POST %s of %s = %d, want 422", path, name, answer.Code)
			}
			wantIn(t, "POST of "+name, page, "sealed_vars.db_password", c.want)
		}
	}
	if got := w.Text(t, "SELECT count(*)::text FROM public.provisions"); got != "1" {
		t.Errorf("there are %s provisions, want the one of before", got)
	}
	answer, _ := w.askWith(t, w.operator, "/deploy"+networkQuery+from, url.Values{"token": {uuid.NewString()}, "mode": {"apply"}, "config_snapshot": {snapshot("acme/own", networkRepo+".git")}}, "")
	if answer.Code != http.StatusSeeOther {
		t.Errorf("POST /deploy with what was sealed for it = %d, want 303", answer.Code)
	}
	page := w.get(t, w.operator, "/deploy?cluster=dev&template=network&version=v1.2.0"+from)
	if strings.Contains(html.UnescapeString(page), `"sealed_vars"`) {
		t.Error("GET /deploy on another cluster offers values that were sealed for prod")
	}
}

// A deploy that begins from a provision has its variables, sealed ones as they
// are, and nothing that was said of that one run.
func TestDeployFrom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own := w.network(t)
	message := sealedOwn(t, own)
	asked, err := json.Marshal(map[string]any{
		"template_source": map[string]any{"repo": networkRepo, "version": "v1.1.0"}, "workspace": "acme/own", "approval": "always", "targets": []string{"a.b"},
		"terraform_vars": map[string]any{"replicas": json.Number("12345678901234567890")}, "sealed_vars": map[string]any{"db_password": message}, "meta": map[string]any{"reason": "because"},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := w.DeploySnapshot(t, string(asked))
	w.Exec(t, "UPDATE public.provisions SET status = 'PROCESSING' WHERE id = $1", id)
	w.Exec(t, `UPDATE public.provisions SET status = 'FAILED', error_code = 'variables_invalid', error_message = E'terraform_vars.zones: missing\nsealed_vars.tls: too short' WHERE id = $1`, id)
	number := w.Text(t, "SELECT number::text FROM public.provisions WHERE id = $1", id)

	page := w.get(t, w.operator, "/deploy?from="+number)
	wantIn(t, "GET /deploy?from=", page, `"version": "v1.1.0"`, `"workspace": "acme/own"`, "12345678901234567890", "BEGIN AGE", `"path":"config_snapshot.terraform_vars.zones"`, `"path":"config_snapshot.sealed_vars.tls"`)
	for _, not := range []string{"because", "a.b", `"approval"`} {
		if strings.Contains(html.UnescapeString(page), not) {
			t.Errorf("GET /deploy?from= has %s of that one run", not)
		}
	}
	page = w.get(t, w.operator, "/deploy?from="+number+"&template=network&version=v1.2.0")
	wantIn(t, "GET /deploy?from= at another version", page, `"version": "v1.2.0"`, "acme/own")
	if answer, _ := w.ask(t, w.stranger, "/deploy?from="+number, nil); answer.StatusCode != http.StatusNotFound {
		t.Errorf("GET /deploy?from= as a stranger = %d, want 404", answer.StatusCode)
	}
	if answer, _ := w.ask(t, w.operator, "/deploy?from=nonsense", nil); answer.StatusCode != http.StatusNotFound {
		t.Errorf("GET /deploy?from=nonsense = %d, want 404", answer.StatusCode)
	}
}
