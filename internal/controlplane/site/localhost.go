package site

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

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
		page := (r.Method == http.MethodGet || r.Method == http.MethodHead) && !strings.HasPrefix(r.URL.Path, "/api/") && !strings.HasPrefix(r.URL.Path, "/assets/") && r.URL.Path != "/live"
		if page && r.Header.Get("Authorization") == "" {
			http.Redirect(w, r, "http://"+name+port+r.URL.RequestURI(), http.StatusTemporaryRedirect) //nolint:gosec // the host is ours, whatever the path
			return
		}
		r = r.Clone(r.Context())
		r.Header.Del("Cookie")
		next.ServeHTTP(w, r)
	})
}

// shared reports whether a host is this machine's loopback by an address or name
// other than this server's.
func shared(host, name string) bool {
	host = strings.ToLower(host)
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && address.Unmap().IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost") && host != name
}
