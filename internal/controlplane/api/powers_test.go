package api_test

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/signin"
)

// What a token, or a tool, may do holds over REST, whatever the person may.
func TestTokenPowers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := func(powers string) (bearer string) {
		t.Helper()
		body := `{"name": "a test"}`
		if powers != "" {
			body = `{"name": "a test", "powers": ` + powers + `}`
		}
		return "Authorization: Bearer " + w.as(t, "operator", "POST", "/api-tokens", body).want(t, "a token", 201, "").text("token")
	}
	w.as(t, "operator", "POST", "/api-tokens", `{"name": "x", "powers": {"change": "all"}}`).want(t, "powers that there are not", 422, "")
	reads, proposes, whole, few := made(`{"change": "nothing"}`), made(`{"may_apply": ["lab/*"], "destroy": false}`), made(""), made(`{"calls_per_minute": 2}`)
	if got := w.as(t, "operator", "GET", "/api-tokens", ""); got.text("items.1.powers") != "" || got.text("items.0.powers.destroy") != "true" || got.text("items.2.powers") != `{"change":"propose","destroy":false,"may_apply":["lab/*"]}` || got.text("items.3.powers.change") != "nothing" {
		t.Errorf("the tokens = %s", got.body)
	}

	entrance, err := signin.New(signin.Config{Database: w.database, Asset: func(name string) string { return name }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(entrance.Close)
	w.handler = entrance.Middleware(w.handler)

	w.Exec(t, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'envtempl', 'https://git.example/acme/envtempl', 'v1')", w.Org)
	deploy := `{"cluster": "prod", "config_snapshot": ` + snapshot + `}`
	var number string
	const tool = "Tendril-Tool: a client/1"
	w.as(t, "", "POST", "/provisions", deploy, reads).want(t, "a deploy by a token that reads", 403, "token_may_not")
	w.as(t, "", "GET", "/provisions", "", reads).want(t, "reading", 200, "")
	number = w.as(t, "", "POST", "/provisions", deploy, proposes).want(t, "a proposal", 202, "").text("number")
	if got := w.as(t, "", "GET", "/provisions/"+number, "", whole); got.text("proposed") != "true" {
		t.Errorf("a proposal = %s, want proposed = %q", got.body, "true")
	}
	number = w.as(t, "", "POST", "/provisions", deploy, whole).want(t, "a deploy", 202, "").text("number")
	if got := w.as(t, "", "GET", "/provisions/"+number, "", whole); got.text("proposed") != "" {
		t.Errorf("a deploy = %s, want proposed = %q", got.body, "")
	}
	number = w.as(t, "", "POST", "/provisions", deploy, whole, tool).want(t, "a tool's deploy", 202, "").text("number")
	if got := w.as(t, "", "GET", "/provisions/"+number, "", whole); got.text("proposed") != "true" {
		t.Errorf("a tool's deploy = %s, want proposed = %q", got.body, "true")
	}
	if got := w.as(t, "", "GET", "/me", "", proposes); got.text("powers.may_apply") != `["lab/*"]` {
		t.Errorf("me = %s", got.body)
	}
	w.as(t, "", "POST", "/tool-calls", `{"client": "a client/1", "tool": "deploy", "arguments": "`+digest+`", "result": "ok"}`, whole, tool).want(t, "a token that records a call", 404, "")
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		if got := w.as(t, "", "GET", "/me", "", few); got.status != want {
			t.Errorf("call %d of a token that may make two a minute = %d, want %d", i, got.status, want)
		}
	}
}
