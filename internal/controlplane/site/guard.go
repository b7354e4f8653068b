package site

import (
	"compress/gzip"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/klauspost/compress/gzhttp"

	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/tools"
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

// localhost sends browsers that come by the loopback's address to a host name
// that only this server has. Cookies ignore ports: one of 127.0.0.1 would go to
// everything that listens there, such as the port that a CLI's sign-in names for
// its answer. So cookies do not count at that address. Programs, which send a
// Bearer, are served at either.
func localhost(next http.Handler, name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, port := r.Host, ""
		if h, p, err := net.SplitHostPort(r.Host); err == nil {
			host, port = h, ":"+p // the browser's port, which a tunnel may have changed
		}
		if r.TLS != nil || !shared(host, name) {
			next.ServeHTTP(w, r)
			return
		}
		page := (r.Method == http.MethodGet || r.Method == http.MethodHead) && !forPrograms(r.URL.Path)
		if page && r.Header.Get("Authorization") == "" {
			http.Redirect(w, r, "http://"+name+port+r.URL.RequestURI(), http.StatusTemporaryRedirect) //nolint:gosec // the host is ours, whatever the path
			return
		}
		r = r.Clone(r.Context())
		r.Header.Del("Cookie")
		next.ServeHTTP(w, r)
	})
}

// forPrograms reports whether a path is no page.
func forPrograms(path string) bool {
	return strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/assets/") || strings.HasPrefix(path, "/.well-known/") || path == "/live" || path == tools.Path
}

// shared reports whether a host is this machine's loopback by an address or name
// other than this server's.
func shared(host, name string) bool {
	host = strings.ToLower(host)
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && address.Unmap().IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost") && host != name
}

// compressor has a handler's answers gzipped for clients that take it. It is for
// what is the same for everybody (assets, the API's document and page) and for what
// programs GET (lists, logs), and for nothing else.
//
// From the length of what is compressed one learns how much of a text of one's own
// stands beside it as well (BREACH). So nothing is that answers with what the
// request says: pages, which repeat what somebody looks for, and problems; and
// nothing that tells a secret, which answers to POST alone do.
func compressor() (func(http.Handler) http.HandlerFunc, error) {
	return gzhttp.NewWrapper(gzhttp.CompressionLevel(gzip.BestSpeed), gzhttp.EnableZstd(false), gzhttp.ContentTypes([]string{
		"application/json", "application/openapi+json", "application/openapi+yaml", "text/plain", "text/html", "text/css", "text/javascript", "image/svg+xml",
	}))
}
