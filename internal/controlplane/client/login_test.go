package client

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// The browser's way: only what knows the state brings a code, which is changed
// with the verifier of the challenge.
func TestLogin(t *testing.T) {
	t.Parallel()
	var exchanged map[string]string
	c := asking(t, func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(&exchanged)
		_, _ = io.WriteString(w, `{"token": "trt_new"}`)
	})
	login, err := c.NewLogin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(login.Close)
	page, err := url.Parse(login.URL("ada's laptop"))
	if err != nil {
		t.Fatal(err)
	}
	q := page.Query()
	back, state := "http://127.0.0.1:"+q.Get("port")+"/callback", q.Get("state")
	if page.Path != "/cli/authorize" || len(state) < 20 || q.Get("host") != "ada-s-laptop" {
		t.Errorf("the page is %s, want /cli/authorize with a state and a way back", page)
	}
	bring := func(query string) int {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, back+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Close = true
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	for _, forged := range []string{"?code=evil", "?code=evil&state=", "?code=evil&state=" + strings.ToLower(state), "/x?code=evil&state=" + state} {
		if status := bring(forged); status != http.StatusNotFound {
			t.Errorf("callback of %s = %d, want 404", forged, status)
		}
	}
	if status := bring("?code=good&state=" + state); status != http.StatusOK {
		t.Errorf("callback = %d, want 200", status)
	}
	bring("?code=later&state=" + state)
	token, err := login.Wait(t.Context())
	if err != nil || token.Token != "trt_new" || exchanged["code"] != "good" {
		t.Errorf("Wait() = %v, %v after %v, want the token for the first code", token, err, exchanged)
	}
	if challengeOf(exchanged["verifier"]) != q.Get("challenge") || len(exchanged["verifier"]) < 43 {
		t.Errorf("the verifier %q is not that of the challenge", exchanged["verifier"])
	}
}
