package source

import (
	"fmt"
	"strings"

	"github.com/tendril-run/tendril/internal/job"
)

// credentials are what this run has for the git servers that the agent's
// configuration names.
type credentials map[string]*credential

// credential is what there is for one host.
type credential struct {
	job.GitHost
	also Allowlist // what it may be used for beside what the policy allows
}

func newCredentials(hosts []job.GitHost) (credentials, error) {
	all := credentials{}
	for _, host := range hosts {
		also, err := parsePatterns(host.Repos, false)
		if err != nil {
			return nil, fmt.Errorf("%s repos: %w", table(host.Host), err)
		}
		all[host.Host] = &credential{GitHost: host, also: also}
	}
	return all, nil
}

// table is how the configuration calls a host's credentials.
func table(host string) string { return fmt.Sprintf("[git.hosts.%q]", host) }

// of returns what there is for the host of an address, an empty credential if it
// is not configured.
func (c credentials) of(a address) *credential {
	if found := c[a.hostPort()]; found != nil {
		return found
	}
	return &credential{GitHost: job.GitHost{Host: a.hostPort()}}
}

// hostPort is the host as the configuration names it.
func (a address) hostPort() string {
	if a.Port == "" {
		return a.Host
	}
	return a.Host + ":" + a.Port
}

// tokenOnly reports whether the one way in is HTTPS with a token. Then
// git@HOST:path is taken for https://HOST/path: modules are often named so, for
// the people who write them have keys.
func (c *credential) tokenOnly() bool {
	return (c.Token != "" || c.TokenProblem != "") && c.Key == "" && c.KeyProblem == "" && c.KnownHostsFile == ""
}

// overHTTPS is the address to ask for a: a itself, if it is not git@HOST:path of
// a host for which there is a token only.
func (c credentials) overHTTPS(a address) address {
	if a.Scheme != "ssh" || a.User != "git" || a.Port != "" || !c.of(a).tokenOnly() {
		return a
	}
	a.Scheme, a.User, a.DialPath = "https", "", "/"+strings.TrimPrefix(a.DialPath, "/")
	return a
}

// lends reports whether credentials may be used for a repository: for what the
// policy lets run here, and for what their own table names. A template that is
// allowed may name any module, and a module server that it chose gets nothing.
func (s *Source) lends(a address) bool {
	c := s.hosts.of(a)
	if s.allow.match(a) || c.also.match(a) {
		return true
	}
	switch { // its other name
	case a.Port != "":
		return false
	case a.Scheme == "https":
		a.Scheme, a.User = "ssh", "git"
	case a.Scheme == "ssh" && a.User == "git":
		a.Scheme, a.User = "https", ""
	}
	return s.allow.match(a) || c.also.match(a)
}

// basic returns the name and token to show at an HTTPS server for a repository,
// "" for none.
func (s *Source) basic(a address) (user, token string) {
	if c := s.hosts.of(a); a.Scheme == "https" && s.lends(a) {
		return c.Username, c.Token
	}
	return "", ""
}
