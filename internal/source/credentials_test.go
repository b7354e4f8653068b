package source

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

const testToken = "ghp_0123456789"

// private is a server that answers to bob with testToken, and the options of an
// agent that has credentials for it.
func private(t *testing.T, auth job.GitHost) (*gittest.Server, Options) {
	t.Helper()
	server := gittest.NewServer(t, gittest.BasicAuth("bob", testToken))
	opts := options(t, server)
	if auth.Host == "" {
		auth.Host = hostOf(server)
	}
	opts.Git.Hosts = []job.GitHost{auth}
	return server, opts
}

func hostOf(server *gittest.Server) string { return strings.TrimPrefix(server.URL, "https://") }

// Whether it was the token, its rights, its file or its absence, the message
// says so, and what to do, and never the token.
func TestPrivateRepository(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		auth   job.GitHost
		status int // answered by the server whoever asks; 0: as it is
		want   []string
	}{
		"right":              {auth: job.GitHost{Username: "bob", Token: testToken}},
		"none":               {want: []string{"asks for credentials", "set token_file under [git.hosts."}},
		"wrong token":        {auth: job.GitHost{Username: "bob", Token: "ghp_wrongwrong"}, want: []string{"refused the credentials of [git.hosts.", "wrong, expired or revoked"}},
		"wrong user":         {auth: job.GitHost{Username: "eve", Token: testToken}, want: []string{"another username"}},
		"no right":           {auth: job.GitHost{Username: "bob", Token: testToken}, status: 403, want: []string{"may not read this repository", "single sign-on"}},
		"not shown":          {auth: job.GitHost{Username: "bob", Token: testToken}, status: 404, want: []string{"not found", "may not see it"}},
		"not found":          {status: 404, want: []string{"not found", "has no credentials for it"}},
		"file missing":       {auth: job.GitHost{TokenProblem: `token_file of [git.hosts."h"]: /t cannot be read`}, want: []string{"/t cannot be read", "asked without credentials"}},
		"for another host":   {auth: job.GitHost{Host: "git.example.com", Username: "bob", Token: testToken}, want: []string{"asks for credentials"}},
		"for the other port": {auth: job.GitHost{Host: "127.0.0.1", Username: "bob", Token: testToken}, want: []string{"asks for credentials"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, opts := private(t, c.auth)
			repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
			if c.status != 0 {
				server.Override(gittest.Status(c.status))
				if c.auth.Token == "" {
					server.Anyone()
				}
			}
			err := tryCheckout(t.Context(), t, newSource(t, opts), Request{Repo: repo.URL, Version: "v1.0.0"})
			if len(c.want) == 0 {
				if err != nil {
					t.Errorf("checkout = %v, want none", err)
				}
				wantNowhere(t, opts.ReposDir, testToken, basicAuth("bob", testToken))
				return
			}
			wantFailure(t, err, provision.CodeCheckoutFailed, c.want...)
			for _, secret := range []string{testToken, "ghp_wrongwrong", basicAuth("bob", testToken)} {
				if strings.Contains(fmt.Sprintf("%+v", err), secret) {
					t.Errorf("error = %v, with the token in it", err)
				}
			}
		})
	}
}

// Probe says of a repository what a checkout would.
func TestProbe(t *testing.T) {
	t.Parallel()
	server, opts := private(t, job.GitHost{Username: "bob", Token: testToken})
	repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
	if err := newSource(t, opts).Probe(t.Context(), repo.URL); err != nil {
		t.Errorf("Probe(%s) = %v, want nil", repo.URL, err)
	}
	wantRequests(t, server, 1, 0)
	opts.Git.Hosts[0].Token = "ghp_wrongwrong"
	wantFailure(t, newSource(t, opts).Probe(t.Context(), repo.URL), provision.CodeCheckoutFailed, "refused the credentials")
	wantFailure(t, newSource(t, opts).Probe(t.Context(), "https://elsewhere/acme/app"), provision.CodeRepoRefused, "[policy] repos")
}

// A credential that cannot be read stops only what needs it.
func TestMissingCredentialThatNobodyNeeds(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
	opts := options(t, server)
	opts.Git.Hosts = []job.GitHost{{Host: hostOf(server), TokenProblem: "token_file: gone"}}
	checkout(t, newSource(t, opts), Request{Repo: repo.URL, Version: "v1.0.0"})
}

// A redirect that the policy allows takes no credentials along, neither to the
// listing nor to the pack, unless the target has some of its own.
func TestRedirectTakesNoCredentials(t *testing.T) {
	t.Parallel()
	server, opts := private(t, job.GitHost{Username: "bob", Token: testToken})
	target := gittest.NewServer(t)
	target.Repo("acme/app", hello(), "v1.0.0")
	server.Override(gittest.Redirect(target.URL))
	seen := watchAuthorization(target)
	opts.Policy.Repos = append(opts.Policy.Repos, target.URL+"/**")
	checkout(t, newSource(t, opts), Request{Repo: server.URL + "/acme/app.git", Version: "v1.0.0"})
	if got := seen(); len(got) < 3 || strings.Join(got, "") != "" {
		t.Errorf("the target saw Authorization %q, want three requests or more without", got)
	}

	opts.Git.Hosts = append(opts.Git.Hosts, job.GitHost{Host: hostOf(target), Username: "eve", Token: "glpat-12345"})
	opts.ReposDir = t.TempDir()
	checkout(t, newSource(t, opts), Request{Repo: server.URL + "/acme/app.git", Version: "v1.0.0"})
	for i, got := range seen() {
		if want := "Basic " + basicAuth("eve", "glpat-12345"); got != want {
			t.Errorf("request %d at the target has Authorization %q, want the target's own", i, got)
		}
	}
}

// watchAuthorization returns what the server's requests have in that header since
// the last call.
func watchAuthorization(server *gittest.Server) func() []string {
	var mu sync.Mutex
	var seen []string
	git := server.Git()
	server.Override(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Get("Authorization"))
		mu.Unlock()
		git.ServeHTTP(w, r)
	}))
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		defer func() { seen = nil }()
		return seen
	}
}

// git@HOST:path is https://HOST/path where there is a token and no key.
func TestOverHTTPS(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		auth       job.GitHost
		repo, want string
	}{
		{job.GitHost{Token: testToken}, "git@h:acme/app.git", "https://h/acme/app.git"},
		{job.GitHost{Token: testToken}, "ssh://git@h/acme/app", "https://h/acme/app"},
		{job.GitHost{TokenProblem: "gone"}, "git@h:acme/app", "https://h/acme/app"},
		{job.GitHost{Token: testToken}, "ssh://bob@h/acme/app", "ssh"},
		{job.GitHost{Token: testToken}, "ssh://git@h:2222/acme/app", "ssh"},
		{job.GitHost{Token: testToken}, "git@other:acme/app", "ssh"},
		{job.GitHost{Token: testToken, Key: "k"}, "git@h:acme/app", "ssh"},
		{job.GitHost{Key: "k"}, "git@h:acme/app", "ssh"},
		{job.GitHost{Token: testToken, KnownHostsFile: "f"}, "git@h:acme/app", "ssh"},
		{job.GitHost{}, "git@h:acme/app", "ssh"},
	} {
		c.auth.Host = "h"
		a, err := parseAddress(c.repo)
		if err != nil {
			t.Fatal(err)
		}
		hosts, err := newCredentials([]job.GitHost{c.auth})
		if err != nil {
			t.Fatal(err)
		}
		got := hosts.overHTTPS(a)
		if text := got.Scheme + "://" + got.Host + got.DialPath; text != c.want && got.Scheme != c.want {
			t.Errorf("overHTTPS(%s) with %+v = %s, want %s", c.repo, c.auth, text, c.want)
		}
	}
}

func TestLends(t *testing.T) {
	t.Parallel()
	s := newSource(t, Options{
		Policy: job.Policy{Repos: []string{"https://h/acme/*", "git@k:acme/*"}},
		Git: job.Git{Hosts: []job.GitHost{
			{Host: "h", Token: testToken, Repos: []string{"https://h/modules/**"}},
			{Host: "k", Token: testToken},
		}},
	})
	for repo, want := range map[string]bool{
		"https://h/acme/app":             true,
		"https://h/acme/app.git":         true,
		"git@h:acme/app":                 true, // the same repository
		"ssh://git@h/modules/a/b":        true,
		"https://k/acme/app":             true,
		"https://h/modules/a/b":          true,
		"https://h/acme":                 false,
		"https://h/acme/app/more":        false,
		"https://h/other/app":            false,
		"https://h:8443/acme/app":        false,
		"ssh://git@h:2222/acme/app":      false,
		"ssh://bob@h/acme/app":           false,
		"https://k/modules/a":            false,
		"https://elsewhere/modules/a":    false,
		"https://h.example.com/acme/app": false,
	} {
		a, err := parseAddress(repo)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.lends(a); got != want {
			t.Errorf("lends(%s) = %t, want %t", repo, got, want)
		}
	}
	if _, err := New(Options{Git: job.Git{Hosts: []job.GitHost{{Host: "h", Repos: []string{"*"}}}}}); err == nil || !strings.Contains(err.Error(), `[git.hosts."h"] repos`) {
		t.Errorf("New with a bad pattern = %v, want the setting named", err)
	}
}
