package site_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/testkit/browsertest"
)

// In a browser, which follows the policies that pages are sent with: at an issuer
// and back, a member invited, a CLI let in on its loopback port, a token made, and
// out everywhere.
func TestSignInInABrowser(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, newKey(t, "only", jwt.SigningMethodES256))
	w := newWorld(t, func(o *site.Options) {
		o.OIDC = signin.OIDC{Issuer: i.URL, ClientID: clientID, ClientSecret: clientSecret}
		o.FirstAdmin = "ada@example.com"
	})
	heard := make(chan url.Values, 1)
	cli := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/callback" {
			heard <- r.URL.Query()
		}
		answer.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(answer, "<!doctype html><html lang=en><title>trellis</title><link rel=icon href=data:,><main><h1>Back to your terminal</h1></main></html>")
	}))
	t.Cleanup(cli.Close)

	tab := browsertest.Open(t, w.server.URL+"/members")
	shown(tab, "signin")
	tab.Click("Sign in with " + i.Listener.Addr().String())
	tab.WaitText("Ada Lovelace")
	tab.Fill("E-mail address", "grace@example.com")
	tab.Fill("Role", "Viewer")
	tab.Click("Invite")
	tab.WaitText("grace@example.com is invited as viewer")
	shown(tab, "members")

	request := cliRequest()
	at, err := url.Parse(cli.URL)
	if err != nil {
		t.Fatal(err)
	}
	request.Set("port", at.Port())
	tab.Visit(w.server.URL + "/cli/authorize?" + request.Encode())
	shown(tab, "cli-authorize")
	tab.Click("Allow")
	tab.WaitText("Back to your terminal")
	if status, token := w.exchange(t, (<-heard).Get("code"), verifier); status != http.StatusOK {
		t.Errorf("exchange of the code that the CLI was sent = %d %s, want 200", status, token)
	}

	tab.Visit(w.server.URL + "/account")
	tab.Fill("Name", "ci")
	tab.Click("Create token")
	tab.WaitText("Copy it now")
	shown(tab, "account")
	tab.Click("Sign out everywhere")
	tab.Click("Sign me out")
	tab.WaitText("You are signed out.")
	tab.Visit(w.server.URL + "/signin/link?code=x")
	shown(tab, "link")
	tab.Allow("403")
	tab.Click("Sign in")
	tab.WaitText("This link has been used, or is too old.")
	shown(tab, "link-used")
}

// shown looks at a page in both themes and on a phone.
func shown(tab *browsertest.Tab, name string) {
	looks := browsertest.Looks()
	for _, look := range []browsertest.Look{looks[3], looks[1], looks[0]} {
		tab.Look(look)
		tab.Screenshot(name)
		if tab.NoOverflow(); look.Width > 380 {
			tab.Axe()
		}
	}
}
