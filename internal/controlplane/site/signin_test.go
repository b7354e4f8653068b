package site_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestMain(m *testing.M) { pgtest.Main(browsertest.With(m)) }

// world is a database with a site on it.
type world struct {
	*queuetest.World
	site   *site.Site
	server *httptest.Server
}

func newWorld(t *testing.T, with func(*site.Options)) *world {
	t.Helper()
	w := &world{World: queuetest.NewWorld(t)}
	o := site.Options{DatabaseURL: w.URL, Version: "test", Log: slog.New(slog.DiscardHandler)}
	if with != nil {
		with(&o)
	}
	var err error
	if w.site, err = site.Start(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	w.server = httptest.NewServer(w.site)
	t.Cleanup(func() {
		w.site.Close()
		w.server.Close()
	})
	return w
}

// member is a new person with that role in the organisation.
func (w *world) member(t *testing.T, role string) uuid.UUID {
	t.Helper()
	id := uuid.New()
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, $3)", w.Org, id, role)
	return id
}

// browser keeps cookies, and follows no redirect.
func browser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// answer is what came back, but for its body.
type answer struct {
	StatusCode int
	Header     http.Header
	cookies    []*http.Cookie
}

// Cookies are those that it sets.
func (a answer) Cookies() []*http.Cookie { return a.cookies }

// ask makes a request; header is pairs of name and value.
func (w *world) ask(t *testing.T, client *http.Client, method, path string, form url.Values, header ...string) (answer, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.server.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, response.Cookies()}, string(body)
}

func (w *world) link(t *testing.T, user uuid.UUID) string {
	t.Helper()
	link, err := signin.NewLink(t.Context(), w.site.Database(), "", user)
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(link, "/signin/link?code=")
	return code
}

// signedIn is a browser of that person's.
func (w *world) signedIn(t *testing.T, user uuid.UUID) *http.Client {
	t.Helper()
	client := browser(t)
	if response, body := w.ask(t, client, http.MethodPost, "/signin/link", url.Values{"code": {w.link(t, user)}}); response.StatusCode != http.StatusSeeOther {
		t.Fatalf("POST /signin/link = %d %s, want 303", response.StatusCode, body)
	}
	return client
}

// whoami is the status of GET /api/v1/me, and who it says.
func (w *world) whoami(t *testing.T, client *http.Client, header ...string) (int, string) {
	t.Helper()
	response, body := w.ask(t, client, http.MethodGet, "/api/v1/me", nil, header...)
	return response.StatusCode, body
}

// A link is used by the click on its page, once.
func TestLinkSignsInOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	user := w.member(t, "viewer")
	code := w.link(t, user)
	client := browser(t)
	for range 2 { // a preview, then the browser
		response, body := w.ask(t, client, http.MethodGet, "/signin/link?code="+code, nil)
		if response.StatusCode != http.StatusOK || !strings.Contains(body, code) || len(response.Cookies()) != 0 || response.Header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("GET of the link = %d, cookies %v, Referrer-Policy %q, want a page alone that tells nobody its address",
				response.StatusCode, response.Cookies(), response.Header.Get("Referrer-Policy"))
		}
	}
	if status, _ := w.whoami(t, client); status != http.StatusUnauthorized {
		t.Errorf("GET /api/v1/me before the click = %d, want 401", status)
	}
	response, _ := w.ask(t, client, http.MethodPost, "/signin/link", url.Values{"code": {code}, "to": {"/audit?x=1"}})
	if response.StatusCode != http.StatusSeeOther || response.Header.Get("Location") != "/audit?x=1" {
		t.Errorf("POST of the link = %d to %q, want 303 to /audit?x=1", response.StatusCode, response.Header.Get("Location"))
	}
	if status, body := w.whoami(t, client); status != http.StatusOK || !strings.Contains(body, user.String()) {
		t.Errorf("GET /api/v1/me = %d %s, want %s", status, body, user)
	}
	if response, body := w.ask(t, browser(t), http.MethodPost, "/signin/link", url.Values{"code": {code}}); response.StatusCode != http.StatusForbidden || !strings.Contains(body, "trellis link") {
		t.Errorf("POST of a used link = %d %s, want 403 and what to do", response.StatusCode, body)
	}
	w.ask(t, client, http.MethodPost, "/signout", url.Values{})
	if status, _ := w.whoami(t, client); status != http.StatusUnauthorized {
		t.Errorf("GET /api/v1/me after signing out = %d, want 401", status)
	}
}

// A token is asked for at each request, so it ends at once.
func TestTokenEndsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	user := w.member(t, "viewer")
	token, err := signin.NewToken(t.Context(), w.site.Database(), user, "a test")
	if err != nil {
		t.Fatal(err)
	}
	bearer := []string{"Authorization", "Bearer " + token}
	if status, body := w.whoami(t, browser(t), bearer...); status != http.StatusOK || !strings.Contains(body, user.String()) {
		t.Errorf("GET /api/v1/me with a token = %d %s, want %s", status, body, user)
	}
	// A Bearer that is nobody's does not fall back to the cookie.
	if status, _ := w.whoami(t, w.signedIn(t, user), "Authorization", "Bearer "+token+"x"); status != http.StatusUnauthorized {
		t.Errorf("GET /api/v1/me with a wrong token and a session = %d, want 401", status)
	}
	if response, body := w.ask(t, browser(t), http.MethodDelete, "/api/v1/cli/token", nil, bearer...); response.StatusCode != http.StatusNoContent {
		t.Fatalf("DELETE /api/v1/cli/token = %d %s, want 204", response.StatusCode, body)
	}
	if status, _ := w.whoami(t, browser(t), bearer...); status != http.StatusUnauthorized {
		t.Errorf("GET /api/v1/me with a revoked token = %d, want 401", status)
	}
}
