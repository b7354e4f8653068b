// Package cookie sets the cookies of the control plane. No script can read them.
// Another site's request carries none, except a link that a person follows. Where
// browsers use HTTPS, no other host can set them.
//
// Browsers send a cookie to every port of a host. Over plain HTTP its name therefore
// has the port, so several control planes can run on one machine.
//
// The package must not know what a cookie holds.
package cookie

import (
	"net"
	"net/http"
	"strings"
)

// Jar sets the cookies of a server that browsers reach at PublicURL; "" where
// nobody said: then over https where they came by TLS. What a proxy's headers say
// does not count, for anybody can send them.
type Jar struct {
	PublicURL string
	// LocalHost is a host name that browsers resolve to their own machine, where
	// trellis up answers over plain HTTP whatever PublicURL says; "": none.
	LocalHost string
}

// Secure reports whether browsers reach this server by https.
func (j Jar) Secure(r *http.Request) bool {
	return r.TLS != nil || strings.HasPrefix(j.PublicURL, "https://") && !j.local(r.Host)
}

func (j Jar) local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return j.LocalHost != "" && strings.EqualFold(host, j.LocalHost)
}

// name is what a cookie is called. Under https no other host can set it, nor one
// on plain http. On plain http cookies are shared by all ports of a host, so the
// port is in the name: several control planes may run on one machine.
func (j Jar) name(r *http.Request, name string) string {
	if j.Secure(r) {
		return "__Host-" + name
	}
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		return name + "_" + port
	}
	return name
}

// Get returns what a cookie has, "" where there is none.
func (j Jar) Get(r *http.Request, name string) string {
	if c, err := r.Cookie(j.name(r, name)); err == nil {
		return c.Value
	}
	return ""
}

// Set sets a cookie. A followed link brings it along, no other request of a foreign
// page's does. seconds below 0: it goes.
func (j Jar) Set(w http.ResponseWriter, r *http.Request, name, value string, seconds int) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // Secure wherever browsers come by https
		Name: j.name(r, name), Value: value, Path: "/", MaxAge: seconds,
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: j.Secure(r),
	})
}
