package site_test

import (
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/site"
)

const audience = "https://tendril.example/api"

// What a program sends counts when the issuer has signed it, for us, and for now;
// each way in which it may not be so is tried by itself.
func TestBearerJWTs(t *testing.T) {
	t.Parallel()
	first, second := newKey(t, "first", jwt.SigningMethodRS256), newKey(t, "second", jwt.SigningMethodES256)
	i := newIssuer(t, first)
	w := newWorld(t, func(o *site.Options) {
		o.OIDC = signin.OIDC{Issuer: i.URL, ClientID: clientID, ClientSecret: clientSecret, Audience: audience}
	})
	claims := func(change func(jwt.MapClaims)) jwt.MapClaims {
		c := i.claims()
		c["aud"] = []string{"another", audience}
		if change != nil {
			change(c)
		}
		return c
	}
	set := func(name string, value any) jwt.MapClaims { return claims(func(c jwt.MapClaims) { c[name] = value }) }
	status := func(token string) int {
		t.Helper()
		status, _ := w.whoami(t, browser(t), "Authorization", "Bearer "+token)
		return status
	}
	good := first.sign(t, claims(nil), nil)
	if got, body := w.whoami(t, browser(t), "Authorization", "bearer "+good); got != http.StatusOK || !strings.Contains(body, "Ada Lovelace") {
		t.Errorf("a JWT that counts: %d %s, want 200 and her name", got, body)
	}

	none, err := jwt.NewWithClaims(jwt.SigningMethodNone, claims(nil)).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	// With the public key for a secret, as whoever verifies by any algorithm would take it.
	der, err := x509.MarshalPKIXPublicKey(first.pair.Public())
	if err != nil {
		t.Fatal(err)
	}
	shared := jwt.NewWithClaims(jwt.SigningMethodHS256, claims(nil))
	shared.Header["kid"] = "first"
	hmac, err := shared.SignedString(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	header, rest, _ := strings.Cut(good, ".")
	payload, _, _ := strings.Cut(rest, ".")
	past, future := time.Now().Add(-time.Minute).Unix(), time.Now().Add(time.Hour).Unix()
	for what, token := range map[string]string{
		"of another issuer":                      first.sign(t, set("iss", "https://issuer.example"), nil),
		"for another audience":                   first.sign(t, set("aud", "https://another.example"), nil),
		"for the browsers' client":               first.sign(t, set("aud", clientID), nil),
		"for nobody":                             first.sign(t, claims(func(c jwt.MapClaims) { delete(c, "aud") }), nil),
		"expired":                                first.sign(t, set("exp", past), nil),
		"without an end":                         first.sign(t, claims(func(c jwt.MapClaims) { delete(c, "exp") }), nil),
		"for later":                              first.sign(t, set("nbf", future), nil),
		"of nobody":                              first.sign(t, set("sub", ""), nil),
		"signed by none":                         none,
		"signed with the public key as a secret": hmac,
		"signed by another's key of that name":   newKey(t, "first", jwt.SigningMethodRS256).sign(t, claims(nil), nil),
		"signed by a key that is not there yet":  second.sign(t, claims(nil), nil),
		"without its signature":                  header + "." + payload + ".",
		"cut off":                                header + "." + payload,
		"with another's claims":                  header + "." + strings.Split(first.sign(t, set("sub", "eve"), nil), ".")[1] + "." + strings.Split(good, ".")[2],
		"no JWT":                                 "x",
	} {
		if got := status(token); got != http.StatusUnauthorized {
			t.Errorf("a JWT %s: %d, want 401", what, got)
		}
	}
	// Keys are rotated: a new one is asked for when it is met.
	i.mu.Lock()
	i.keys = []key{second}
	i.mu.Unlock()
	// Who comes while the last answer is being put away is given that one, which
	// has the old keys.
	got := status(second.sign(t, claims(nil), nil))
	for tries := 0; got != http.StatusOK && tries < 20; tries++ {
		got = status(second.sign(t, claims(nil), nil))
	}
	if got != http.StatusOK {
		t.Errorf("a JWT signed by the new key: %d, want 200", got)
	}
	if got := status(first.sign(t, set("jti", "another"), nil)); got != http.StatusUnauthorized {
		t.Errorf("a JWT signed by the key that is gone: %d, want 401", got)
	}
	// It was verified a moment ago, and an issuer that is away costs nothing.
	i.Close()
	if got := status(good); got != http.StatusOK {
		t.Errorf("the first JWT, the issuer away: %d, want 200", got)
	}
	var people int
	if err := w.Conn.QueryRow(t.Context(), "SELECT count(*) FROM tendril.identities WHERE subject = 'ada|1815'").Scan(&people); err != nil || people != 1 {
		t.Errorf("people made = %d, %v, want one", people, err)
	}
}
