package source

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
)

// identify shows each server the credentials that are for it, and no other: a
// redirect takes none along, which net/http does to another port and to a
// subdomain, and go-git to wherever a redirect has led.
type identify struct {
	next   http.RoundTripper
	source *Source
}

func (i *identify) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Del("Authorization")
	if a, err := parseAddress(repositoryOf(req.URL)); err == nil {
		if user, token := i.source.basic(a); token != "" {
			req.Header.Set("Authorization", "Basic "+basicAuth(user, token))
		}
	}
	return i.next.RoundTrip(req)
}

func basicAuth(user, token string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + token))
}

// repositoryOf is the repository that a request of git's protocol is about.
func repositoryOf(u *url.URL) string {
	target := *u
	target.RawQuery, target.Fragment = "", ""
	for _, end := range []string{"/info/refs", "/git-upload-pack"} {
		target.Path = strings.TrimSuffix(target.Path, end)
	}
	target.RawPath = ""
	return target.String()
}
