package site_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/site"
)

const verifier = "a-verifier-that-only-the-cli-has-made-up-itself"

func cliRequest() url.Values {
	sum := sha256.Sum256([]byte(verifier))
	return url.Values{"port": {"40001"}, "state": {"a-state"}, "challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}, "host": {"laptop"}}
}

// exchange shows a code and returns the status and the token.
func (w *world) exchange(t *testing.T, code, verifier string) (int, string) {
	t.Helper()
	body, _ := json.Marshal(map[string]string{"code": code, "verifier": verifier})
	response, err := http.Post(w.server.URL+"/api/v1/cli/token", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var answer struct{ Token, Reason string }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, answer.Token + answer.Reason
}

// A code reaches this machine's loopback only, and counts for the CLI that has
// asked only, and once.
func TestLetsTheCLIIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	user := w.member(t, "operator")
	request := cliRequest()
	page := "/cli/authorize?" + request.Encode()
	if response, _ := w.ask(t, browser(t), http.MethodGet, page, nil); response.Header.Get("Location") != "/signin?to="+url.QueryEscape(page) {
		t.Errorf("GET %s of nobody leads to %q, want the sign-in and back", page, response.Header.Get("Location"))
	}
	client := w.signedIn(t, user)
	response, body := w.ask(t, client, http.MethodGet, page, nil)
	if response.StatusCode != http.StatusOK || !strings.Contains(body, "trellis on laptop") || !strings.Contains(body, "port 40001") ||
		!strings.Contains(response.Header.Get("Content-Security-Policy"), "form-action 'self' http://127.0.0.1:40001;") {
		t.Errorf("GET %s = %d %s with the policy %q, want who asks and where the answer goes", page, response.StatusCode, body, response.Header.Get("Content-Security-Policy"))
	}
	answer := func(answer string) url.Values {
		t.Helper()
		form := cliRequest()
		form.Set("answer", answer)
		response, body := w.ask(t, client, http.MethodPost, "/cli/authorize", form)
		to, err := url.Parse(response.Header.Get("Location"))
		if err != nil || response.StatusCode != http.StatusSeeOther || to.Scheme+"://"+to.Host+to.Path != "http://127.0.0.1:40001/callback" || to.Query().Get("state") != "a-state" {
			t.Fatalf("POST /cli/authorize = %d %q %s, want 303 to the CLI with its state", response.StatusCode, to, body)
		}
		return to.Query()
	}
	// After a no, the browser stays here: the port is the asker's choice.
	no := cliRequest()
	no.Set("answer", "no")
	if response, body := w.ask(t, client, http.MethodPost, "/cli/authorize", no); response.StatusCode != http.StatusOK || response.Header.Get("Location") != "" || !strings.Contains(body, "Nothing was allowed.") {
		t.Errorf("POST /cli/authorize with a no = %d %q %s, want a page of this server", response.StatusCode, response.Header.Get("Location"), body)
	}

	code := answer("yes").Get("code")
	if status, token := w.exchange(t, code, verifier+"x"); status != http.StatusForbidden || token != "code_invalid" {
		t.Errorf("exchange by another CLI = %d %s, want 403", status, token)
	}
	if status, _ := w.exchange(t, code, verifier); status != http.StatusForbidden {
		t.Errorf("exchange after another CLI's try = %d, want 403: the code is out", status)
	}
	code = answer("yes").Get("code")
	status, token := w.exchange(t, code, verifier)
	if status != http.StatusOK || !strings.HasPrefix(token, "trt_") {
		t.Fatalf("exchange = %d %s, want a token", status, token)
	}
	if again, _ := w.exchange(t, code, verifier); again != http.StatusForbidden {
		t.Errorf("exchange the second time = %d, want 403", again)
	}
	if status, body := w.whoami(t, browser(t), "Authorization", "Bearer "+token); status != http.StatusOK || !strings.Contains(body, user.String()) {
		t.Errorf("GET /api/v1/me with the token = %d %s, want %s", status, body, user)
	}
	// A token is no browser: it lets no CLI in, and makes no other token.
	bearer := []string{"Authorization", "Bearer " + token}
	if response, _ := w.ask(t, browser(t), http.MethodPost, "/cli/authorize", cliRequest(), bearer...); !strings.HasPrefix(response.Header.Get("Location"), "/signin?to=") {
		t.Errorf("POST /cli/authorize with a token leads to %q, want the sign-in", response.Header.Get("Location"))
	}
	if response, body := w.ask(t, browser(t), http.MethodPost, "/api/v1/api-tokens", nil, bearer...); response.StatusCode < 400 || len(tokens(t, w)) != 1 {
		t.Errorf("POST /api/v1/api-tokens with a token = %d %s, want a refusal", response.StatusCode, body)
	}
}

// tokens are the digests of API tokens.
func tokens(t *testing.T, w *world) []string {
	t.Helper()
	var digests []string
	if err := w.Conn.QueryRow(t.Context(), "SELECT array_agg(encode(digest, 'hex')) FROM tendril.credentials WHERE kind = 'api_token' AND revoked_at IS NULL").Scan(&digests); err != nil {
		t.Fatal(err)
	}
	return digests
}

// Cookies ignore ports, so on one machine browsers have each instance by a name
// that is its alone, and none counts at the address that all share.
func TestBrowsersOfOneMachineHaveANameOfTheInstance(t *testing.T) {
	t.Parallel()
	const name, own = "trellis-0123456789.localhost", "trellis-0123456789.localhost:8080"
	w := newWorld(t, func(o *site.Options) { o.LocalHost = name })
	user := w.member(t, "operator")
	client := browser(t)
	at := func(host, method, path string, form url.Values, header ...string) (answer, string) {
		t.Helper()
		return w.ask(t, client, method, path, form, append(header, "Host", host)...)
	}
	for shared, port := range map[string]string{"127.0.0.1:8080": ":8080", "localhost:8080": ":8080", "127.0.0.2": "", "[::1]:8080": ":8080", "trellis-another.localhost:8080": ":8080", "127.0.0.1:9000": ":9000"} {
		want := "http://" + name + port + "/signin/link?code=x"
		if response, _ := at(shared, http.MethodGet, "/signin/link?code=x", nil); response.StatusCode != http.StatusTemporaryRedirect || response.Header.Get("Location") != want {
			t.Errorf("GET http://%s/signin/link = %d %q, want 307 to %s", shared, response.StatusCode, response.Header.Get("Location"), want)
		}
	}
	response, _ := at(own, http.MethodPost, "/signin/link", url.Values{"code": {w.link(t, user)}})
	if response.StatusCode != http.StatusSeeOther || len(response.cookies) != 1 || response.cookies[0].Domain != "" {
		t.Fatalf("POST /signin/link = %d with %v, want a cookie of that host alone", response.StatusCode, response.cookies)
	}
	cookie := response.cookies[0].Name + "=" + response.cookies[0].Value
	for host, want := range map[string]int{own: http.StatusOK, "127.0.0.1:8080": http.StatusUnauthorized} {
		if response, body := at(host, http.MethodGet, "/api/v1/me", nil, "Cookie", cookie); response.StatusCode != want {
			t.Errorf("GET http://%s/api/v1/me with the session = %d %s, want %d", host, response.StatusCode, body, want)
		}
	}
}

// What a foreign page may have made up is refused before anybody is asked.
func TestCLIRequestsAreChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	client := w.signedIn(t, w.member(t, "viewer"))
	for key, values := range map[string][]string{
		"port":      {"", "80", "65536", "x", "40001@evil.example", "40001/../.."},
		"challenge": {"", "short", strings.Repeat("!", 43)},
		"state":     {"", "a b", "\r\nx", strings.Repeat("x", 129)},
		"host":      {"<script>", strings.Repeat("x", 101)},
	} {
		for _, value := range values {
			request := cliRequest()
			request.Set(key, value)
			request.Set("answer", "yes")
			for method, form := range map[string]url.Values{http.MethodGet: nil, http.MethodPost: request} {
				if response, _ := w.ask(t, client, method, "/cli/authorize?"+request.Encode(), form); response.StatusCode != http.StatusBadRequest {
					t.Errorf("%s /cli/authorize with %s = %q: %d, want 400", method, key, value, response.StatusCode)
				}
			}
		}
	}
}
