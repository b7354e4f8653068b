package signin

import (
	"net/url"
	"strings"
)

// sessionLasts is how long a browser keeps the cookie. The database decides how
// long it counts.
const sessionLasts = 30 * 24 * 60 * 60

// sessionCookie is the name of the cookie of a browser that has signed in.
const sessionCookie = "trellis"

// local returns where to go after signing in: a path of this server's, and "/"
// for anything else that somebody has put there.
func local(to string) string {
	u, err := url.Parse(to)
	// Browsers take a backslash for a slash, and leave out control characters.
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\t\r\n") {
		return "/"
	}
	return to
}
