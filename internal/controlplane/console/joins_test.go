package console_test

import (
	"crypto/ed25519"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/agentkey"
)

// asks has an agent ask to join, as the gateway passes it on, and returns its key and the code.
func (w *world) asks(t *testing.T, name string) (key ed25519.PublicKey, code string) {
	t.Helper()
	key, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := w.Conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it is over
	if _, err := tx.Exec(t.Context(), `SELECT set_config('tendril.signing_key', $1, true), set_config('tendril.signed_at', '0', true), set_config('tendril.nonce', '', true), set_config('tendril.address', '192.0.2.7', true)`,
		fmt.Sprintf("%x", []byte(key))); err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(t.Context(), `SELECT public.request_join(jsonb_build_object('name', $1::text, 'host', 'host <1>', 'version', '1.2.3', 'slots', 2, 'operations', '["plan", "apply"]'::jsonb)) ->> 'code'`, name).Scan(&code); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	return key, code
}

// An admin types the code, sees which agent waits, and lets it join or turns it away.
func TestAgentJoinsByThePage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key, code := w.asks(t, "edge <1>")
	if page := w.get(t, w.admin, "/clusters"); !strings.Contains(page, `action="/clusters/join"`) {
		t.Error("the Clusters page has no field for an agent's code")
	}
	if page := w.get(t, w.operator, "/clusters"); strings.Contains(page, `action="/clusters/join"`) {
		t.Error("an operator is offered to let agents join")
	}
	answer, page := w.ask(t, w.admin, "/clusters/join", url.Values{"code": {strings.ToLower(code)}})
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("POST /clusters/join = %d %s, want 200", answer.StatusCode, page)
	}
	wellFormed(t, "/clusters/join", page)
	for _, want := range []string{agentkey.Words(key), agentkey.Fingerprint(key), "edge &lt;1&gt;", "host &lt;1&gt;", "192.0.2.7", "1.2.3", "plan, apply"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page of the agent lacks %q", want)
		}
	}
	for name, c := range map[string]struct {
		form url.Values
		want int
	}{
		"another fingerprint": {url.Values{"code": {code}, "cluster": {"prod"}, "fingerprint": {strings.Repeat("0", 64)}}, http.StatusConflict},
		"no cluster":          {url.Values{"code": {code}, "cluster": {""}, "fingerprint": {agentkey.Fingerprint(key)}}, http.StatusNotFound},
		"a wrong code":        {url.Values{"code": {"BBBB-BBBB"}, "cluster": {"prod"}, "fingerprint": {agentkey.Fingerprint(key)}}, http.StatusNotFound},
	} {
		if answer, page := w.ask(t, w.admin, "/clusters/join/yes", c.form); answer.StatusCode != c.want {
			t.Errorf("%s: POST /clusters/join/yes = %d %s, want %d", name, answer.StatusCode, page, c.want)
		}
	}
	form := url.Values{"code": {code}, "cluster": {"prod"}, "fingerprint": {agentkey.Fingerprint(key)}}
	if answer, page := w.ask(t, w.admin, "/clusters/join/yes", form); answer.StatusCode != http.StatusSeeOther {
		t.Fatalf("POST /clusters/join/yes = %d %s, want 303", answer.StatusCode, page)
	}
	if page := w.get(t, w.admin, "/clusters/prod"); !strings.Contains(page, agentkey.Fingerprint(key)) || !strings.Contains(page, "Key of") {
		t.Error("the cluster's page does not list the key")
	}

	answer, page = w.ask(t, w.admin, "/clusters/prod/join-tokens", url.Values{})
	if answer.StatusCode != http.StatusOK || !strings.Contains(page, ">tnj_") || !strings.Contains(page, "queue.join.tokenSecret=tendril-join") {
		t.Errorf("POST /clusters/prod/join-tokens = %d %s, want a token, once, and what to do with it", answer.StatusCode, page)
	}
	wellFormed(t, "/clusters/prod/join-tokens", page)
	if answer, page := w.ask(t, w.operator, "/clusters/prod/join-tokens", url.Values{}); answer.StatusCode != http.StatusNotFound || strings.Contains(page, "tnj_") {
		t.Errorf("an operator makes a join token: %d", answer.StatusCode)
	}

	other, code := w.asks(t, "other")
	if answer, page := w.ask(t, w.operator, "/clusters/join", url.Values{"code": {code}}); answer.StatusCode == http.StatusOK {
		t.Errorf("an operator sees who waits: %s", page)
	}
	if answer, page := w.ask(t, w.admin, "/clusters/join/no", url.Values{"code": {code}}); answer.StatusCode != http.StatusSeeOther {
		t.Fatalf("POST /clusters/join/no = %d %s, want 303", answer.StatusCode, page)
	}
	if answer, _ := w.ask(t, w.admin, "/clusters/join/yes", url.Values{"code": {code}, "cluster": {"prod"}, "fingerprint": {agentkey.Fingerprint(other)}}); answer.StatusCode != http.StatusNotFound {
		t.Errorf("an agent that was turned away: %d, want 404", answer.StatusCode)
	}
}
