package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/person"
)

// What no operation answers is a problem document as well.
func TestEveryErrorIsAProblem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const deploy = `{"cluster": "prod", "config_snapshot": ` + snapshot + `}`
	for name, c := range map[string]struct {
		who, method, path, body string
		headers                 []string
		status                  int
		reason, location        string
	}{
		"nobody":                   {method: "GET", path: "/me", status: 401, reason: "not_signed_in"},
		"no such path":             {who: "viewer", method: "GET", path: "/nothing", status: 404, reason: "no_such_path"},
		"no such method":           {who: "viewer", method: "DELETE", path: "/provisions", status: 405, reason: "method_not_allowed"},
		"not acceptable":           {who: "operator", method: "POST", path: "/provisions", body: deploy, headers: []string{"Accept: text/html"}, status: 406, reason: "not_acceptable"},
		"no JSON type":             {who: "operator", method: "POST", path: "/provisions", body: deploy, headers: []string{"Content-Type: text/plain"}, status: 415, reason: "unsupported_media_type"},
		"a form":                   {who: "operator", method: "POST", path: "/provisions", body: "cluster=prod", headers: []string{"Content-Type: application/x-www-form-urlencoded"}, status: 415, reason: "unsupported_media_type"},
		"broken JSON":              {who: "operator", method: "POST", path: "/provisions", body: `{"cluster": `, status: 400, reason: "malformed_request", location: "body"},
		"no body":                  {who: "operator", method: "POST", path: "/provisions", status: 400, reason: "malformed_request"},
		"too large":                {who: "operator", method: "POST", path: "/provisions", body: `{"cluster": "` + strings.Repeat("x", 1<<20) + `"}`, status: 413, reason: "request_too_large"},
		"a field missing":          {who: "operator", method: "POST", path: "/provisions", body: `{"config_snapshot": {}}`, status: 422, reason: "invalid_request", location: "body.cluster"},
		"a field unknown":          {who: "operator", method: "POST", path: "/provisions", body: `{"cluster": "prod", "config_snapshot": {}, "klaster": 1}`, status: 422, reason: "invalid_request", location: "body.klaster"},
		"a wrong type":             {who: "operator", method: "POST", path: "/provisions", body: `{"cluster": 3, "config_snapshot": {}}`, status: 422, reason: "invalid_request", location: "body.cluster"},
		"a parameter wrong":        {who: "viewer", method: "GET", path: "/provisions?limit=201", status: 422, reason: "invalid_request", location: "query.limit"},
		"a word wrong":             {who: "viewer", method: "GET", path: "/provisions?status=DONE", status: 422, reason: "invalid_request", location: "query.status[0]"},
		"one unknown":              {who: "viewer", method: "GET", path: "/provisions?page=2", status: 422, reason: "invalid_request", location: "query.page"},
		"no cursor":                {who: "viewer", method: "GET", path: "/provisions?cursor=x", status: 422, reason: "bad_cursor", location: "query.cursor"},
		"another's cursor":         {who: "viewer", method: "GET", path: "/provisions?cursor=WyJjbHVzdGVycyIsImEiXQ", status: 422, reason: "bad_cursor", location: "query.cursor"},
		"no reference":             {who: "viewer", method: "GET", path: "/provisions/x.y", status: 404, reason: "provision_not_found"},
		"a bad snapshot":           {who: "operator", method: "POST", path: "/provisions", body: `{"cluster": "prod", "config_snapshot": {"template_source": {"version": "v1"}}}`, status: 422, reason: "bad_snapshot", location: "body.config_snapshot.template_source.repo"},
		"a field's other spelling": {who: "operator", method: "POST", path: "/provisions", body: `{"cluster": "prod", "operation": "plan", "Operation": "destroy", "config_snapshot": {}}`, status: 422, reason: "invalid_request", location: "body.Operation"},
		"a number too large":       {who: "operator", method: "POST", path: "/provisions", body: `{"cluster": "prod", "config_snapshot": {"terraform_vars": {"a": 1e999999}}}`, status: 400, reason: "malformed_request", location: "body"},
		"half a character":         {who: "operator", method: "POST", path: "/provisions", body: strings.Replace(deploy, `"size": 3`, `"size": "\ud800"`, 1), status: 422, reason: "bad_text"},
		"a parameter twice":        {who: "viewer", method: "GET", path: "/provisions?status=FAILED&status=SUCCESS", status: 422, reason: "invalid_request", location: "query.status"},
		"a query that is none":     {who: "viewer", method: "GET", path: "/provisions?limit=1;cursor=x", status: 400, reason: "malformed_request", location: "query"},
		"a NUL":                    {who: "operator", method: "POST", path: "/provisions", body: `{"cluster": "prod", "config_snapshot": {"workspace": "a\u0000"}}`, status: 422, reason: "bad_text"},
	} {
		got := w.as(t, c.who, c.method, c.path, c.body, c.headers...)
		if got.status != c.status || got.text("reason") != c.reason || got.text("errors.0.location") != c.location ||
			got.header.Get("Content-Type") != "application/problem+json" || got.header.Get("Cache-Control") != "no-store" ||
			got.text("title") != http.StatusText(c.status) || got.text("detail") == "" {
			t.Errorf("%s: %s %s = %d %s %s, want %d %s about %q", name, c.method, c.path, got.status, got.header.Get("Content-Type"), got.body, c.status, c.reason, c.location)
		}
	}
	several := w.as(t, "operator", "POST", "/provisions", `{"cluster": "prod", "config_snapshot": {"template_source": {"version": "v1"}}}`)
	if got := several.text("errors.1.location") + ": " + several.text("errors.1.message"); !strings.HasPrefix(got, "body.config_snapshot.workspace: missing") {
		t.Errorf("second error of a bad snapshot = %s, want the workspace", got)
	}
	for body, place := range map[string]string{"{\"cluster\": \"prod\",\n \"config_snapshot\": {,}}": "line 2, column 22: ", "": "", `{"cluster": s3cret}`: "line 1, column 13: ", "[1\n\n": "line 2, column "} {
		if got := w.as(t, "operator", "POST", "/provisions", body); !strings.HasPrefix(got.text("errors.0.message"), place) {
			t.Errorf("POST of %q = %s, want the place: %s", body, got.body, place)
		}
	}
	if said := w.logged.String(); said != "" {
		t.Errorf("the log has %q, want nothing: all of it was the clients' fault", said)
	}
}

// Of a header that comes twice nobody can tell which one a proxy has looked at.
func TestHeadersThatComeTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"} {
		r := httptest.NewRequestWithContext(person.With(t.Context(), person.Person{ID: w.people["operator"]}), http.MethodGet, "/api/v1/me", nil)
		r.Header[http.CanonicalHeaderKey(name)] = []string{"a", "b"}
		recorder := httptest.NewRecorder()
		w.handler.ServeHTTP(recorder, r)
		got := answer{recorder.Code, recorder.Header(), recorder.Body.Bytes()}.want(t, name+" twice", http.StatusBadRequest, "malformed_request")
		if place := got.text("errors.0.location"); place != "header."+name {
			t.Errorf("%s twice is refused for %s, want the header named", name, place)
		}
	}
}

func TestMethodsThatEveryPathHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if got := w.as(t, "viewer", "HEAD", "/provisions", ""); got.status != 200 {
		t.Errorf("HEAD /provisions = %d, want 200", got.status)
	}
	got := w.as(t, "", "OPTIONS", "/provisions", "", "Origin: https://foreign.example", "Access-Control-Request-Method: POST")
	if got.status != 204 || got.header.Get("Allow") != "GET, HEAD, POST, OPTIONS" || got.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("OPTIONS /provisions = %d %v, want 204, the methods, and no invitation", got.status, got.header)
	}
}

func TestDeployAndDecide(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.deploy(t)
	location := made.header.Get("Location")
	if location != "/api/v1/provisions/"+made.text("number") || made.text("workspace") != "a" || made.text("logs_url") != location+"/logs" {
		t.Errorf("POST /provisions = %s at %q, want where to look", made.body, location)
	}
	path := strings.TrimPrefix(location, "/api/v1")
	for _, ref := range []string{path, "/provisions/" + made.text("id")} {
		if got := w.as(t, "viewer", "GET", ref, ""); got.text("status") != "QUEUED" || got.text("config_snapshot.workspace") != "a" {
			t.Errorf("GET %s = %d %s, want the one queued", ref, got.status, got.body)
		}
	}
	w.as(t, "operator", "POST", path+"/retry", "").want(t, "retry of what waits", 409, "not_ended")
	w.as(t, "operator", "POST", path+"/approve", `{"plan_digest": "`+strings.Repeat("a", 64)+`"}`).want(t, "approve of what waits", 409, "not_awaiting_approval")
	w.as(t, "operator", "POST", path+"/reject", "").want(t, "reject of what waits", 409, "not_awaiting_approval")
	if got := w.as(t, "operator", "POST", path+"/cancel", "").want(t, "cancel", 200, ""); got.text("status") != "CANCELLED" {
		t.Errorf("cancel = %s, want CANCELLED", got.body)
	}
	again := w.as(t, "operator", "POST", path+"/retry", "").want(t, "retry", 202, "")
	if again.text("number") == made.text("number") || again.header.Get("Location") == "" {
		t.Errorf("retry = %s, want another provision", again.body)
	}
	list := w.as(t, "viewer", "GET", "/provisions?limit=1", "").want(t, "list", 200, "")
	if list.text("items.0.number") != again.text("number") || list.text("items.1") != "" || list.text("next_cursor") == "" {
		t.Errorf("GET /provisions?limit=1 = %s, want the newest and a cursor", list.body)
	}
	list = w.as(t, "viewer", "GET", "/provisions?limit=1&cursor="+list.text("next_cursor"), "")
	if list.text("items.0.number") != made.text("number") || list.text("next_cursor") != "" {
		t.Errorf("the page after it = %s, want the other and no cursor", list.body)
	}
	for query, want := range map[string]string{
		"status=CANCELLED": made.text("number"), "status=QUEUED,PROCESSING": again.text("number"), "operation=destroy": "",
		"workspace=a&status=CANCELLED": made.text("number"), "cluster=prod&workspace=a": again.text("number"), "org=acme": again.text("number"),
	} {
		if got := w.as(t, "viewer", "GET", "/provisions?"+query, "").want(t, query, 200, ""); got.text("items.0.number") != want {
			t.Errorf("GET /provisions?%s = %s, want %q first", query, got.body, want)
		}
	}
}
