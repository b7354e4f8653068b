package githosts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/githubapp"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/secretfile"
)

// Reader reads the credentials of an agent's configuration. It is safe for
// concurrent use.
type Reader struct {
	hosts config.GitHosts
	apps  map[string]*githubapp.App
}

// New returns a Reader that has read nothing yet.
func New(c config.Git) *Reader {
	r := &Reader{hosts: c.Hosts, apps: map[string]*githubapp.App{}}
	transport := &authorities{file: c.CAFile}
	for name, host := range c.Hosts {
		if host.AppID != "" {
			r.apps[name] = githubapp.New(githubapp.Options{
				ID: host.AppID, Installation: host.AppInstallationID, API: apiURL(name, host.AppAPIURL), Transport: transport,
				Key: func() (string, error) { return readSecret(host.AppKeyFile) },
			})
		}
	}
	return r
}

// Read returns the credentials as they are now, in the order of the hosts.
func (r *Reader) Read(ctx context.Context) []job.GitHost {
	hosts := make([]job.GitHost, len(r.hosts))
	var reading sync.WaitGroup
	for i, name := range slices.Sorted(maps.Keys(r.hosts)) {
		reading.Go(func() { hosts[i] = r.read(ctx, name) })
	}
	reading.Wait()
	return hosts
}

// appUser is the name that GitHub wants beside an App's token. With others it
// takes any, and so does GitLab.
const appUser = "x-access-token"

func (r *Reader) read(ctx context.Context, name string) job.GitHost {
	c := r.hosts[name]
	host := job.GitHost{Host: name, Username: appUser, Repos: c.Repos, KnownHostsFile: c.KnownHostsFile}
	problem := func(key string, err error) string { return fmt.Sprintf("%s of [git.hosts.%q]: %v", key, name, err) }
	var err error
	if app := r.apps[name]; app != nil {
		if host.Token, err = app.Token(ctx); err != nil {
			host.TokenProblem = problem("the GitHub App", err)
		}
	} else if c.TokenFile != "" {
		if c.Username != "" {
			host.Username = c.Username
		}
		if host.Token, err = readToken(c.TokenFile); err != nil {
			host.TokenProblem = problem("token_file", err)
		}
	}
	if c.SSHKeyFile != "" {
		if host.Key, err = readSecret(c.SSHKeyFile); err != nil {
			host.KeyProblem = problem("ssh_key_file", err)
		}
	}
	if c.KnownHostsFile != "" {
		text, err := os.ReadFile(c.KnownHostsFile)
		if err != nil {
			host.Key, host.KeyProblem = "", problem("known_hosts_file", err)
		}
		host.KnownHosts = string(text)
	}
	return host
}

// minToken is the fewest bytes of a token that a log can be kept free of.
const minToken = 8

func readToken(path string) (string, error) {
	text, err := readSecret(path)
	if err != nil {
		return "", err
	}
	text = strings.TrimSpace(text)
	if len(text) < minToken || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s holds no token, which is one word of %d characters or more", path, minToken)
	}
	return text, nil
}

func readSecret(path string) (string, error) {
	text, err := secretfile.Read(path)
	if err != nil {
		return "", fmt.Errorf("%s %w", path, err)
	}
	if strings.TrimSpace(text) == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return text, nil
}

// apiURL is where GitHub has its API for a host.
func apiURL(host, configured string) string {
	switch {
	case configured != "":
		return configured
	case host == "github.com" || strings.HasSuffix(host, ".ghe.com"):
		return "https://api." + host
	default: // GitHub Enterprise Server
		return "https://" + host + "/api/v3"
	}
}

// authorities is a transport that trusts a file of certificates beside the
// system's. They are read when the first request is made.
type authorities struct {
	file string

	once   sync.Once
	next   *http.Transport
	failed error
}

// RoundTrip implements http.RoundTripper.
func (a *authorities) RoundTrip(req *http.Request) (*http.Response, error) {
	a.once.Do(a.read)
	if a.failed != nil {
		return nil, a.failed
	}
	return a.next.RoundTrip(req)
}

func (a *authorities) read() {
	// A request an hour: no connection is kept for that.
	a.next = &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if a.file == "" {
		return
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		a.failed = fmt.Errorf("read the system's certificates: %w", err)
		return
	}
	pem, err := os.ReadFile(a.file)
	if err == nil && !roots.AppendCertsFromPEM(pem) {
		err = errors.New("it holds no certificate in PEM")
	}
	if err != nil {
		a.failed = fmt.Errorf("[git] ca_file: %w", err)
		return
	}
	a.next.TLSClientConfig.RootCAs = roots
}
