package site_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// An issuer that hangs is asked once for all who wait, and who comes with a JWT
// meanwhile is not told that it is wrong.
func TestIssuerThatHangs(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	begun, answer := make(chan struct{}, 10), make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		begun <- struct{}{}
		<-answer
		http.Error(w, strings.Repeat("x", 10_000), http.StatusBadGateway)
	}))
	t.Cleanup(hangs.Close)
	w := newWorld(t, func(o *site.Options) { o.OIDC = signin.OIDC{Issuer: hangs.URL, ClientID: clientID} })
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			response, body := w.ask(t, browser(t), http.MethodGet, "/signin/start", nil)
			if response.StatusCode != http.StatusServiceUnavailable || strings.Contains(body, "xxx") {
				t.Errorf("GET /signin/start = %d %s, want 503 and nothing of what the issuer says", response.StatusCode, body)
			}
		})
	}
	<-begun
	all.Go(func() {
		response, body := w.ask(t, browser(t), http.MethodGet, "/api/v1/me", nil, "Authorization", "Bearer a.b.c")
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Content-Type") != "application/problem+json" || response.Header.Get("Retry-After") == "" {
			t.Errorf("GET /api/v1/me by a JWT = %d %s %s, want 503 as a problem, and when to come again", response.StatusCode, response.Header, body)
		}
	})
	close(answer)
	all.Wait()
	if n := asked.Load(); n > 2 { // a second time where the machine was slow
		t.Errorf("the issuer was asked %d times, want once for all", n)
	}
}

// Keys that cannot be had are not the token's fault.
func TestKeysThatAreAway(t *testing.T) {
	t.Parallel()
	first := newKey(t, "first", jwt.SigningMethodES256)
	i := newIssuer(t, first)
	w := newWorld(t, func(o *site.Options) { o.OIDC = signin.OIDC{Issuer: i.URL, ClientID: clientID} })
	if status, _ := w.whoami(t, browser(t), "Authorization", "Bearer "+first.sign(t, i.claims(), nil)); status != http.StatusOK {
		t.Fatalf("GET /api/v1/me = %d, want 200", status)
	}
	i.Close()
	unknown := newKey(t, "second", jwt.SigningMethodES256).sign(t, i.claims(), nil)
	if status, body := w.whoami(t, browser(t), "Authorization", "Bearer "+unknown); status != http.StatusServiceUnavailable {
		t.Errorf("GET /api/v1/me by a new key's JWT, the issuer away = %d %s, want 503", status, body)
	}
}

// What goes on by a JWT ends when that does.
func TestStreamsEndWithTheirJWT(t *testing.T) {
	t.Parallel()
	first := newKey(t, "first", jwt.SigningMethodES256)
	i := newIssuer(t, first)
	w := newWorld(t, func(o *site.Options) { o.OIDC = signin.OIDC{Issuer: i.URL, ClientID: clientID} })
	claims := i.claims()
	claims["exp"], claims["name"] = time.Now().Add(6*time.Second).Unix(), "Ada\x00"
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.server.URL+"/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+first.sign(t, claims, nil))
	response, err := w.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, response.Body)
	}()
	select {
	case <-ended:
	case <-patience.After(time.Minute):
		t.Error("a stream goes on after its JWT, want its end")
	}
	if response.StatusCode != http.StatusOK {
		t.Errorf("GET /live = %d, want 200", response.StatusCode)
	}
}

// What browsers and proxies may send is no reason not to sign in.
func TestOddRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *site.Options) { o.PublicURL = "https://trellis.example" })
	user := w.member(t, "viewer")
	if response, _ := w.ask(t, browser(t), http.MethodPost, "/signin/link", url.Values{"code": {w.link(t, user)}}, "User-Agent", "a\xff"); response.StatusCode != http.StatusSeeOther {
		t.Errorf("POST /signin/link by a browser whose name is no text = %d, want 303", response.StatusCode)
	}
	// A proxy that says another Host, and a browser on plain http before it that
	// tells no more than where it is.
	if response, _ := w.ask(t, browser(t), http.MethodPost, "/signin/link", url.Values{"code": {w.link(t, user)}}, "Origin", "https://trellis.example"); response.StatusCode != http.StatusSeeOther {
		t.Errorf("POST /signin/link from a page of the public URL = %d, want 303", response.StatusCode)
	}
	response, body := w.ask(t, browser(t), http.MethodPost, "/api/v1/provisions", url.Values{}, "Origin", "https://evil.example")
	if response.StatusCode != http.StatusForbidden || response.Header.Get("Content-Type") != "application/problem+json" || !strings.Contains(body, `"foreign_page"`) {
		t.Errorf("POST /api/v1/provisions from a foreign page = %d %s, want 403 as a problem", response.StatusCode, body)
	}
}
