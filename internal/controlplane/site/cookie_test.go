package site_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/site"
)

// The cookie of a session is read by no script, sent with no foreign page's form,
// and over https alone where that is how people come; it is another one after each
// sign-in, and the one before ends.
func TestSessionCookie(t *testing.T) {
	t.Parallel()
	plain := newWorld(t, nil)
	w := newWorld(t, func(o *site.Options) { o.PublicURL = "https://trellis.example" })
	for _, tt := range []struct {
		w      *world
		name   string
		secure bool
	}{{plain, "trellis_" + port(plain), false}, {w, "__Host-trellis", true}} {
		user := tt.w.member(t, "viewer")
		signIn := func(before string) *http.Cookie {
			t.Helper()
			response, _ := tt.w.ask(t, browser(t), http.MethodPost, "/signin/link", url.Values{"code": {tt.w.link(t, user)}}, "Cookie", tt.name+"="+before)
			if cookies := response.Cookies(); len(cookies) == 1 {
				return cookies[0]
			}
			t.Fatalf("cookies after signing in = %v, want one", response.Cookies())
			return nil
		}
		c := signIn("planted-by-somebody")
		if c.Name != tt.name || c.Secure != tt.secure || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" || c.Value == "planted-by-somebody" || len(c.Value) < 26 {
			t.Errorf("cookie = %v, want %s, HttpOnly, Lax, for the whole host alone, secure: %t, and of our own making", c, tt.name, tt.secure)
		}
		if status, _ := tt.w.whoami(t, browser(t), "Cookie", tt.name+"="+c.Value); status != http.StatusOK {
			t.Errorf("GET /api/v1/me with the cookie = %d, want 200", status)
		}
		second := signIn(c.Value)
		if status, _ := tt.w.whoami(t, browser(t), "Cookie", tt.name+"="+c.Value); second.Value == c.Value || status != http.StatusUnauthorized {
			t.Errorf("GET /api/v1/me with the cookie before = %d, want another cookie and 401", status)
		}
		// Somebody who is named by a cookie of another kind of secret is nobody.
		if status, _ := tt.w.whoami(t, browser(t), "Cookie", tt.name+"="+tt.w.link(t, user)); status != http.StatusUnauthorized {
			t.Errorf("GET /api/v1/me with a one-time link's code for a cookie = %d, want 401", status)
		}
		if status, _ := tt.w.whoami(t, browser(t), "Authorization", "Bearer "+second.Value); status != http.StatusUnauthorized {
			t.Errorf("GET /api/v1/me with a session's secret as Bearer = %d, want 401", status)
		}
	}
}

func port(w *world) string {
	u, _ := url.Parse(w.server.URL)
	return u.Port()
}

// What a foreign page makes a browser send is refused, on pages and in the API,
// and nothing comes of it.
func TestForeignPagesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	user := w.member(t, "admin")
	client := w.signedIn(t, user)
	cluster := w.Cluster.String()
	for _, from := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "null"},
	} {
		for _, to := range []string{
			"/signout", "/account/tokens", "/account/signout", "/members/invite", "/members/" + user.String() + "/remove", "/cli/authorize", "/signin/link",
			"/api/v1/api-tokens", "/api/v1/clusters/" + cluster + "/pause", "/api/v1/provisions", "/api/v1/invitations", "/api/v1/cli/token",
		} {
			for _, kind := range []string{"application/x-www-form-urlencoded", "text/plain"} { // what a form can send
				values := cliRequest()
				for name, value := range map[string]string{"name": "x", "email": "eve@example.com", "role": "admin", "answer": "yes"} {
					values.Set(name, value)
				}
				if response, _ := w.ask(t, client, http.MethodPost, to, values, append(from, "Content-Type", kind)...); response.StatusCode != http.StatusForbidden {
					t.Errorf("POST %s as %s with %v = %d, want 403", to, kind, from, response.StatusCode)
				}
			}
		}
		if response, _ := w.ask(t, client, http.MethodDelete, "/api/v1/members/"+user.String(), nil, from...); response.StatusCode != http.StatusForbidden {
			t.Errorf("DELETE of a member with %v = %d, want 403", from, response.StatusCode)
		}
	}
	var done int
	if err := w.Conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM public.audit_events WHERE actor = $1) + (SELECT count(*) FROM public.provisions)
		+ (SELECT count(*) FROM tendril.credentials WHERE kind <> 'session' AND revoked_at IS NULL)`, user).Scan(&done); err != nil || done != 0 {
		t.Errorf("%d things were done, %v, want none", done, err)
	}
	if status, _ := w.whoami(t, client); status != http.StatusOK {
		t.Errorf("GET /api/v1/me afterwards = %d, want the session to be there", status)
	}
	// The same from this server's own pages works.
	if response, _ := w.ask(t, client, http.MethodPost, "/account/tokens", url.Values{"name": {"x"}}, "Sec-Fetch-Site", "same-origin"); response.StatusCode != http.StatusOK {
		t.Errorf("POST /account/tokens of the same origin = %d, want 200", response.StatusCode)
	}
}

// After signing in a browser is led to a path of this server's, whatever the link
// said.
func TestLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	client := w.signedIn(t, w.member(t, "viewer"))
	for to, want := range map[string]string{
		"/audit?a=1#b": "/audit?a=1#b", "": "/", "//evil.example": "/", "https://evil.example": "/", "/\\evil.example": "/", "\\\\evil.example": "/",
		"/\t/evil.example": "/", "javascript:alert(1)": "/", "evil": "/", "///evil.example": "/", "/%2f/evil.example": "/%2f/evil.example",
	} {
		response, _ := w.ask(t, client, http.MethodGet, "/signin?to="+url.QueryEscape(to), nil)
		if got := response.Header.Get("Location"); got != want {
			t.Errorf("GET /signin?to=%q leads to %q, want %q", to, got, want)
		}
	}
}

// Whoever guesses is slowed down, by address.
func TestGuessingIsSlowedDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	client, refused := browser(t), 0
	for n := 0; n < 40 || refused == 0 && n < 400; n++ { // some are let through each second
		response, _ := w.ask(t, client, http.MethodPost, "/signin/link", url.Values{"code": {strings.Repeat("A", 26)}})
		if response.StatusCode == http.StatusTooManyRequests {
			if refused++; response.Header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
		}
	}
	if refused == 0 {
		t.Error("400 guesses at once were answered, want some to be refused")
	}
}
