package site_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// post sends a form, or JSON where there is one, without a browser.
func (w *world) post(t *testing.T, path string, form url.Values, body string) (status int, answer map[string]any) {
	t.Helper()
	kind := "application/x-www-form-urlencoded"
	if body == "" {
		body = form.Encode()
	} else {
		kind = "application/json"
	}
	response, err := http.Post(w.server.URL+path, kind, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatalf("POST %s = %d, %v", path, response.StatusCode, err)
	}
	if response.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("POST %s may be kept: %q", path, response.Header.Get("Cache-Control"))
	}
	return response.StatusCode, answer
}

// registered is the id of a client.
func (w *world) registered(t *testing.T) string {
	t.Helper()
	status, answer := w.post(t, "/oauth/register", nil, `{"client_name": "An assistant", "redirect_uris": ["http://127.0.0.1:33418/callback", "https://assistant.example/oauth?x=1"], "token_endpoint_auth_method": "none", "grant_types": ["authorization_code", "refresh_token"]}`)
	id, _ := answer["client_id"].(string)
	if status != http.StatusCreated || id == "" || answer["token_endpoint_auth_method"] != "none" {
		t.Fatalf("register = %d %v", status, answer)
	}
	return id
}

func grantRequest(w *world, id string) url.Values {
	sum := sha256.Sum256([]byte(verifier))
	return url.Values{"response_type": {"code"}, "client_id": {id}, "redirect_uri": {"http://127.0.0.1:40002/callback"}, "state": {"a state"}, "code_challenge_method": {"S256"},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}, "resource": {w.server.URL + "/mcp"}}
}

// A program finds the sign-in, a person says how far it may go, and its token is for the tools alone.
func TestLetsAProgramIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	user := w.member(t, "operator")
	var metadata struct {
		Issuer        string
		Authorization string `json:"authorization_endpoint"`
		Token         string `json:"token_endpoint"`
		Registration  string `json:"registration_endpoint"`
	}
	response, body := w.ask(t, browser(t), http.MethodGet, "/.well-known/oauth-authorization-server", nil)
	if err := json.Unmarshal([]byte(body), &metadata); err != nil || response.StatusCode != http.StatusOK || metadata.Issuer != w.server.URL || metadata.Authorization != w.server.URL+"/oauth/authorize" || metadata.Token != w.server.URL+"/oauth/token" || metadata.Registration != w.server.URL+"/oauth/register" {
		t.Fatalf("the metadata = %d %s, %v", response.StatusCode, body, err)
	}
	id := w.registered(t)
	page := "/oauth/authorize?" + grantRequest(w, id).Encode()
	if response, _ := w.ask(t, browser(t), http.MethodGet, page, nil); response.Header.Get("Location") != "/signin?to="+url.QueryEscape(page) {
		t.Errorf("GET %s of nobody leads to %q, want the sign-in and back", page, response.Header.Get("Location"))
	}
	client := w.signedIn(t, user)
	response, body = w.ask(t, client, http.MethodGet, page, nil)
	if response.StatusCode != http.StatusOK || !strings.Contains(body, "An assistant") || !strings.Contains(body, "127.0.0.1:40002") || !strings.Contains(response.Header.Get("Content-Security-Policy"), "form-action 'self' http://127.0.0.1:40002;") {
		t.Errorf("GET %s = %d %s with the policy %q", page, response.StatusCode, body, response.Header.Get("Content-Security-Policy"))
	}
	code := func(change string) string {
		t.Helper()
		form := grantRequest(w, id)
		form.Set("answer", "yes")
		form.Set("change", change)
		response, body := w.ask(t, client, http.MethodPost, "/oauth/authorize", form)
		to, err := url.Parse(response.Header.Get("Location"))
		if err != nil || response.StatusCode != http.StatusSeeOther || to.Host+to.Path != "127.0.0.1:40002/callback" || to.Query().Get("state") != "a state" || to.Query().Get("iss") != w.server.URL {
			t.Fatalf("POST /oauth/authorize = %d %q %s, want 303 to the program with its state", response.StatusCode, to, body)
		}
		return to.Query().Get("code")
	}
	no := grantRequest(w, id)
	no.Set("answer", "no")
	if response, body := w.ask(t, client, http.MethodPost, "/oauth/authorize", no); response.StatusCode != http.StatusOK || !strings.Contains(body, "Nothing was allowed.") {
		t.Errorf("POST /oauth/authorize with a no = %d %q %s, want a page of this server", response.StatusCode, response.Header.Get("Location"), body)
	}

	exchange := func(code string, but ...string) (int, map[string]any) {
		t.Helper()
		form := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "code_verifier": {verifier}, "client_id": {id}, "redirect_uri": {"http://127.0.0.1:40002/callback"}, "resource": {w.server.URL + "/mcp"}}
		for i := 0; i < len(but); i += 2 {
			form.Set(but[i], but[i+1])
		}
		return w.post(t, "/oauth/token", form, "")
	}
	_, other := w.post(t, "/oauth/register", nil, `{"client_name": "Another", "redirect_uris": ["http://127.0.0.1:40002/callback"]}`)
	otherID, _ := other["client_id"].(string)
	for what, test := range map[string]struct {
		but    []string
		status int
		error  string
	}{
		"by another verifier":  {[]string{"code_verifier", verifier + "x"}, http.StatusBadRequest, "invalid_grant"},
		"by another client":    {[]string{"client_id", otherID}, http.StatusBadRequest, "invalid_grant"},
		"to another address":   {[]string{"redirect_uri", "http://127.0.0.1:40003/callback"}, http.StatusBadRequest, "invalid_grant"},
		"by no client":         {[]string{"client_id", "x"}, http.StatusUnauthorized, "invalid_client"},
		"for another resource": {[]string{"resource", "https://elsewhere.example/mcp"}, http.StatusBadRequest, "invalid_target"},
		"of another kind":      {[]string{"grant_type", "client_credentials"}, http.StatusBadRequest, "unsupported_grant_type"},
	} {
		if status, answer := exchange(code("propose"), test.but...); status != test.status || answer["error"] != test.error {
			t.Errorf("the exchange %s = %d %v, want %d %s", what, status, answer, test.status, test.error)
		}
	}
	// What a program gets is no code of the CLI, whose token may do everything.
	if status, token := w.exchange(t, code("propose"), verifier); status != http.StatusForbidden {
		t.Errorf("the CLI's exchange of a program's code = %d %s", status, token)
	}
	used := code("nothing")
	status, answer := exchange(used)
	token, _ := answer["access_token"].(string)
	if status != http.StatusOK || !strings.HasPrefix(token, "trt_") || answer["token_type"] != "Bearer" {
		t.Fatalf("the exchange = %d %v", status, answer)
	}
	if status, answer := exchange(used); status != http.StatusBadRequest || answer["error"] != "invalid_grant" {
		t.Errorf("the exchange a second time = %d %v", status, answer)
	}
	var powers, audience string
	if err := w.Conn.QueryRow(t.Context(), "SELECT powers::text, audience FROM tendril.find_person('api_token', sha256(convert_to($1, 'UTF8')))", token).Scan(&powers, &audience); err != nil || powers != `{"change": "nothing"}` || audience != w.server.URL+"/mcp" {
		t.Errorf("the token may %s at %s, %v", powers, audience, err)
	}
	if status, body := w.whoami(t, browser(t), "Authorization", "Bearer "+token); status != http.StatusUnauthorized {
		t.Errorf("GET /api/v1/me with the token = %d %s, want it to be for the tools alone", status, body)
	}
}

// What a program may not ask stays on a page of this server, or is told the program in its own words.
func TestProgramsAskWrongly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	client := w.signedIn(t, w.member(t, "operator"))
	id := w.registered(t)
	for _, body := range []string{
		`{`, `{"redirect_uris": []}`, `{"client_name": "x", "redirect_uris": ["http://assistant.example/"]}`, `{"client_name": "x", "redirect_uris": ["javascript:alert(1)"]}`, `{"client_name": "x", "redirect_uris": ["https:///x"]}`,
		`{"client_name": "x", "redirect_uris": ["https://a.example/#x"]}`, `{"client_name": "x", "redirect_uris": ["https://ada@a.example/"]}`, `{"client_name": "x", "redirect_uris": ["data:text/html,x"]}`, `{"client_name": "x\u202ey", "redirect_uris": ["https://a.example/"]}`,
		`{"client_name": "` + strings.Repeat("x", 101) + `", "redirect_uris": ["https://a.example/"]}`, `{"client_name": "x", "redirect_uris": ["https://a.example/` + strings.Repeat("x", 3000) + `"]}`,
		`{"client_name": "x", "redirect_uris": ["https://a.example/", "https://a.example/", "https://a.example/", "https://a.example/", "https://a.example/", "https://a.example/"]}`,
	} {
		if status, answer := w.post(t, "/oauth/register", nil, body); status != http.StatusBadRequest || !strings.HasPrefix(answer["error"].(string), "invalid_") {
			t.Errorf("register %.90s = %d %v, want a refusal", body, status, answer)
		}
	}
	for _, to := range []string{"http://127.0.0.1:1/other", "https://assistant.example/oauth", "https://assistant.example:444/oauth?x=1", "http://127.0.0.1.example/callback", "http://ada@127.0.0.1:1/callback", "//elsewhere.example", ""} {
		v := grantRequest(w, id)
		v.Set("redirect_uri", to)
		if response, body := w.ask(t, client, http.MethodGet, "/oauth/authorize?"+v.Encode(), nil); response.StatusCode != http.StatusBadRequest || response.Header.Get("Location") != "" {
			t.Errorf("an answer to %q: %d %q %s, want a page", to, response.StatusCode, response.Header.Get("Location"), body)
		}
	}
	for field, test := range map[string][2]string{
		"response_type": {"token", "unsupported_response_type"}, "code_challenge_method": {"plain", "invalid_request"}, "code_challenge": {"x", "invalid_request"}, "resource": {"https://elsewhere.example/mcp", "invalid_target"}, "state": {strings.Repeat("x", 1025), "invalid_request"},
	} {
		v := grantRequest(w, id)
		v.Set(field, test[0])
		response, _ := w.ask(t, client, http.MethodGet, "/oauth/authorize?"+v.Encode(), nil)
		to, err := url.Parse(response.Header.Get("Location"))
		if err != nil || to.Host != "127.0.0.1:40002" || to.Query().Get("error") != test[1] || to.Query().Get("code") != "" {
			t.Errorf("with %s = %.40s the browser is sent to %q, want the error %s", field, test[0], to, test[1])
		}
	}
	elsewhere := grantRequest(w, id)
	elsewhere.Set("redirect_uri", "https://assistant.example/oauth?x=1")
	elsewhere.Set("response_type", "token")
	if response, body := w.ask(t, browser(t), http.MethodGet, "/oauth/authorize?"+elsewhere.Encode(), nil); response.StatusCode != http.StatusBadRequest || response.Header.Get("Location") != "" {
		t.Errorf("what is wrong with a request of another host's: %d %q %s, want a page", response.StatusCode, response.Header.Get("Location"), body)
	}
	// A token is no browser, and a foreign page is no person's yes.
	form := grantRequest(w, id)
	form.Set("answer", "yes")
	if response, _ := w.ask(t, client, http.MethodPost, "/oauth/authorize", form, "Sec-Fetch-Site", "cross-site"); response.StatusCode != http.StatusForbidden {
		t.Errorf("a foreign page's yes = %d, want 403", response.StatusCode)
	}
}
