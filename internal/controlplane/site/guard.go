package site

import (
	"fmt"
	"net/http"

	"github.com/tendril-run/tendril/internal/controlplane/problem"
)

// policy allows pages what they need of this server, and nothing else: no
// inline script or style, no foreign frame, no plug-in.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
	"manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guarded sets the headers that every answer has, and refuses what a foreign
// page makes a browser send. Pages at publicURL are our own: a proxy may have
// another name for this server than browsers, and those tell no more than the
// name over plain http.
func guarded(next http.Handler, publicURL string) (http.Handler, error) {
	protection := http.NewCrossOriginProtection()
	if publicURL != "" {
		if err := protection.AddTrustedOrigin(publicURL); err != nil {
			return nil, fmt.Errorf("the public URL %q is no scheme and host alone: %w", publicURL, err)
		}
	}
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		problem.Refuse(w, r, http.StatusForbidden, "foreign_page", "A page of another site has made your browser send this, so nothing was done. Do it from this server's own pages.")
	}))
	return protection.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})), nil
}
