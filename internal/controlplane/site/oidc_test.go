package site_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/site"
)

func newOIDCWorld(t *testing.T) (*world, *issuer) {
	t.Helper()
	i := newIssuer(t, newKey(t, "only", jwt.SigningMethodES256))
	return newWorld(t, func(o *site.Options) {
		o.OIDC = signin.OIDC{Issuer: i.URL, ClientID: clientID, ClientSecret: clientSecret}
		o.FirstAdmin = "Ada@Example.com"
	}), i
}

// toIssuer begins in a browser, and returns the address that the issuer sends it
// back to.
func (w *world) toIssuer(t *testing.T, client *http.Client, to string) *url.URL {
	t.Helper()
	response, body := w.ask(t, client, http.MethodGet, "/signin/start?to="+url.QueryEscape(to), nil)
	if response.StatusCode != http.StatusSeeOther {
		t.Fatalf("GET /signin/start = %d %s, want 303", response.StatusCode, body)
	}
	there, err := client.Get(response.Header.Get("Location"))
	if err != nil {
		t.Fatal(err)
	}
	_ = there.Body.Close()
	back, err := there.Location()
	if err != nil {
		t.Fatalf("the issuer answers %s, want it to send the browser back: %v", there.Status, err)
	}
	return back
}

// comeBack follows it and returns the status and where it leads.
func (w *world) comeBack(t *testing.T, client *http.Client, back *url.URL) (int, string) {
	t.Helper()
	response, _ := w.ask(t, client, http.MethodGet, back.RequestURI(), nil)
	return response.StatusCode, response.Header.Get("Location")
}

func TestSignInAtAnIssuer(t *testing.T) {
	t.Parallel()
	w, i := newOIDCWorld(t)
	if _, body := w.ask(t, browser(t), http.MethodGet, "/signin?to=/audit", nil); !strings.Contains(body, `href="/signin/start?to=%2Faudit"`) {
		t.Errorf("GET /signin = %s, want the way to the issuer", body)
	}
	client := browser(t)
	back := w.toIssuer(t, client, "/audit")
	if status, to := w.comeBack(t, client, back); status != http.StatusSeeOther || to != "/audit" {
		t.Fatalf("coming back = %d to %q, want 303 to /audit", status, to)
	}
	status, body := w.whoami(t, client)
	if status != http.StatusOK || !strings.Contains(body, `"name":"Ada Lovelace"`) || !strings.Contains(body, `"role":"admin"`) {
		t.Errorf("GET /api/v1/me = %d %s, want Ada, who is the first admin", status, body)
	}
	// The same again is the same person; a code counts once, in its browser.
	if status, _ := w.comeBack(t, client, back); status != http.StatusForbidden {
		t.Errorf("coming back twice = %d, want 403", status)
	}
	if status, _ := w.comeBack(t, browser(t), w.toIssuer(t, browser(t), "/")); status != http.StatusForbidden {
		t.Errorf("coming back in another browser = %d, want 403", status)
	}
	other := browser(t)
	w.toIssuer(t, other, "/")
	if status, _ := w.comeBack(t, other, w.toIssuer(t, browser(t), "/")); status != http.StatusForbidden {
		t.Errorf("coming back with another browser's code and state = %d, want 403", status)
	}
	again := browser(t)
	w.comeBack(t, again, w.toIssuer(t, again, "/"))
	if _, second := w.whoami(t, again); second != body {
		t.Errorf("the second sign-in is %s, want %s", second, body)
	}
	// Who comes later does not become the first admin, whatever address they have.
	i.spoil(func(c jwt.MapClaims, _ map[string]any) { c["sub"] = "ada the second" })
	second := browser(t)
	w.comeBack(t, second, w.toIssuer(t, second, "/"))
	if _, body := w.whoami(t, second); !strings.Contains(body, `"orgs":[]`) {
		t.Errorf("another person of the first admin's address: %s, want no organisation", body)
	}
}

// Each way in which an issuer's answer may not count.
func TestIssuersAnswerIsChecked(t *testing.T) {
	t.Parallel()
	w, i := newOIDCWorld(t)
	spoiled := func(what string, change func(back url.Values), with func(jwt.MapClaims, map[string]any)) {
		t.Helper()
		i.spoil(with)
		client := browser(t)
		back := w.toIssuer(t, client, "/")
		query := back.Query()
		if change != nil {
			change(query)
		}
		back.RawQuery = query.Encode()
		status, _ := w.comeBack(t, client, back)
		if me, _ := w.whoami(t, client); status != http.StatusForbidden || me != http.StatusUnauthorized {
			t.Errorf("coming back with %s = %d, and the browser is %d, want 403 and nobody", what, status, me)
		}
	}
	claim := func(name string, value any) func(jwt.MapClaims, map[string]any) {
		return func(c jwt.MapClaims, _ map[string]any) { c[name] = value }
	}
	spoiled("another state", func(q url.Values) { q.Set("state", "x") }, nil)
	spoiled("no state", func(q url.Values) { q.Del("state") }, nil)
	spoiled("another issuer's mark", func(q url.Values) { q.Set("iss", "https://issuer.example") }, nil)
	spoiled("another code", func(q url.Values) { q.Set("code", "x") }, nil)
	spoiled("a no", func(q url.Values) { q.Del("code"); q.Set("error", "access_denied") }, nil)
	spoiled("another nonce", nil, claim("nonce", "x"))
	spoiled("no nonce", nil, func(c jwt.MapClaims, _ map[string]any) { delete(c, "nonce") })
	spoiled("a token for another client", nil, claim("aud", "another"))
	spoiled("a token of another issuer", nil, claim("iss", "https://issuer.example"))
	spoiled("a token that has expired", nil, claim("exp", time.Now().Add(-time.Minute).Unix()))
	spoiled("a token signed by none", nil, func(_ jwt.MapClaims, h map[string]any) { h["alg"] = "none" })
}

// A person may accept an invitation when the issuer says that the address is
// theirs, not when they say so themselves; and they join by accepting, not by
// signing in.
func TestInvitationsNeedAVerifiedAddress(t *testing.T) {
	t.Parallel()
	w, i := newOIDCWorld(t)
	w.Exec(t, "SELECT public.invite_member($1, 'Grace@Example.com', 'operator')", w.Org)
	// orgs is what a person sees of organisations after signing in and, where accept
	// says so, accepting what is offered to them.
	orgs := func(sub string, verified any, email any, accept bool) string {
		t.Helper()
		i.spoil(func(c jwt.MapClaims, _ map[string]any) {
			c["sub"], c["email"], c["email_verified"] = sub, email, verified
		})
		client := browser(t)
		if status, _ := w.comeBack(t, client, w.toIssuer(t, client, "/")); status != http.StatusSeeOther {
			t.Fatalf("coming back = %d, want 303", status)
		}
		if accept {
			if offered := w.acceptAll(t, client); offered == 0 {
				t.Errorf("%s is offered no invitation", sub)
			}
		}
		_, body := w.whoami(t, client)
		return body
	}
	for _, verified := range []any{false, nil, "false", 1} {
		if got := orgs("eve", verified, "grace@example.com", false); !strings.Contains(got, `"orgs":[]`) {
			t.Errorf("whose address is verified: %v sees %s, want no organisation", verified, got)
		}
	}
	// Some say no more than who in the token, and the rest when they are asked.
	i.mu.Lock()
	i.info = map[string]any{"sub": "another", "email": "grace@example.com", "email_verified": true}
	i.mu.Unlock()
	if got := orgs("mallory", nil, nil, false); !strings.Contains(got, `"orgs":[]`) {
		t.Errorf("who is told another's address sees %s, want no organisation", got)
	}
	i.mu.Lock()
	i.info["sub"] = "grace"
	i.mu.Unlock()
	if got := orgs("grace", nil, nil, false); !strings.Contains(got, `"orgs":[]`) {
		t.Errorf("who was invited and signed in sees %s, want no organisation before they accept", got)
	}
	if got := orgs("grace", nil, nil, true); !strings.Contains(got, `"role":"operator"`) {
		t.Errorf("who was invited sees %s, want to be operator", got)
	}
	var audited string
	if err := w.Conn.QueryRow(t.Context(), "SELECT string_agg(action, ' ' ORDER BY id) FROM public.audit_events WHERE action ~ 'invit'").Scan(&audited); err != nil || audited != "invite_member accept_invitation" {
		t.Errorf("audited: %q, %v, want both", audited, err)
	}
}

// acceptAll accepts what the page of invitations offers, and says how many there were.
func (w *world) acceptAll(t *testing.T, client *http.Client) int {
	t.Helper()
	_, page := w.ask(t, client, http.MethodGet, "/invitations", nil)
	offered := regexp.MustCompile(`action="(/invitations/[0-9a-f-]+/accept)"><input type="hidden" name="role" value="(\w+)">`).FindAllStringSubmatch(page, -1)
	for _, o := range offered {
		if answer, body := w.ask(t, client, http.MethodPost, o[1], url.Values{"role": {o[2]}}); answer.StatusCode != http.StatusSeeOther {
			t.Errorf("POST %s = %d, want 303: %s", o[1], answer.StatusCode, body)
		}
	}
	return len(offered)
}
