package cookie_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/cookie"
)

// Over https where its keeper says so or TLS ends here, whatever a header says.
func TestSet(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		at, publicURL, local, forwarded, name string
		secure                                bool
	}{
		{"http://a.example:8080/", "", "", "https", "x_8080", false},
		{"http://a.example/", "", "", "https", "x", false},
		{"https://a.example/", "", "", "http", "__Host-x", true},
		{"http://10.0.0.1:8080/", "https://a.example", "", "http", "__Host-x", true},
		{"http://up.localhost:8080/", "https://a.example", "up.localhost", "http", "x_8080", false},
		{"http://other.localhost:8080/", "https://a.example", "up.localhost", "http", "__Host-x", true},
		{"http://other.localhost:8080/", "https://other.localhost", "", "http", "__Host-x", true},
	} {
		r := httptest.NewRequest(http.MethodGet, tt.at, nil)
		r.Header.Set("X-Forwarded-Proto", tt.forwarded)
		jar, answer := cookie.Jar{PublicURL: tt.publicURL, LocalHost: tt.local}, httptest.NewRecorder()
		jar.Set(answer, r, "x", "value", 60)
		c := answer.Result().Cookies()[0]
		if c.Name != tt.name || c.Secure != tt.secure || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Domain != "" {
			t.Errorf("cookie at %s with the public URL %q = %v, want %s, secure: %t", tt.at, tt.publicURL, c, tt.name, tt.secure)
		}
		r.AddCookie(&http.Cookie{Name: "x", Value: "another's"})
		r.AddCookie(c)
		if got := jar.Get(r, "x"); got != "value" && tt.name != "x" {
			t.Errorf("Get() at %s = %q, want what was set", tt.at, got)
		}
	}
}
