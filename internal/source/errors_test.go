package source

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

func TestErrorsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		answer http.Handler
		parts  []string
	}{
		"401":    {gittest.Status(401), []string{"asks for credentials", "401"}},
		"403":    {gittest.Status(403), []string{"asks for credentials", "403"}},
		"404":    {gittest.Status(404), []string{"not found", "private"}},
		"429":    {gittest.Status(429), []string{"429"}},
		"500":    {gittest.Status(500), []string{"out of order", "500"}},
		"HTML":   {gittest.HTML(), []string{"not as a git server", "text/html"}},
		"broken": {http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), []string{"cannot reach the server", "connection broke"}},
		"rubbish": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = w.Write([]byte("001e# service=git-upload-pack\n0000zzzzrubbish\x1b[2J"))
		}), []string{"could not be used"}},
		"endless": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			first := strings.Repeat("a", 40) + " HEAD\x00side-band-64k\n"
			_, _ = fmt.Fprintf(w, "001e# service=git-upload-pack\n0000%04x%s", len(first)+4, first)
			line := []byte("003d" + strings.Repeat("a", 40) + " refs/tags/" + strings.Repeat("x", 5) + "\n")
			for range 1<<20/len(line) + 2 {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}), []string{"too many references: more than 1 MB"}},
	}
	server := gittest.NewServer(t)
	repo, commit := server.Repo("acme/app", hello(), "v1.0.0")
	s := newSource(t, options(t, server))
	s.limits.refs = 1 << 20
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			server.Override(tt.answer)
			defer server.Override(nil)
			_, err := s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"})
			wantFailure(t, err, provision.CodeCheckoutFailed, append(tt.parts, "/acme/app", "template_source.repo")...)
			if strings.Contains(err.Error(), "\x1b") {
				t.Errorf("message = %q, want no control characters", err)
			}
			_, err = s.Checkout(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"}, commit, t.TempDir())
			wantFailure(t, err, provision.CodeCheckoutFailed, tt.parts...)
		})
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, commit := server.Repo("acme/app", gittest.Text(map[string]string{"main.tf": noise(1 << 20)}), "v1.0.0")
	opts := options(t, server)
	opts.Git.Timeout = 300 * time.Millisecond
	s := newSource(t, opts)
	server.Override(gittest.Hang(make(chan struct{})))
	_, err := s.Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"})
	wantFailure(t, err, provision.CodeCheckoutFailed, "no answer within 300ms", "[git]")
	server.HangPack(10<<10, make(chan struct{}))
	_, err = s.Checkout(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"}, commit, t.TempDir())
	wantFailure(t, err, provision.CodeCheckoutFailed, "no answer within 300ms", "[git]")
}

func TestTLSFailures(t *testing.T) {
	t.Parallel()
	server := gittest.NewServer(t)
	repo, _ := server.Repo("acme/app", hello(), "v1.0.0")
	opts := options(t, server)
	opts.Git.CAFile = ""
	_, err := newSource(t, opts).Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"})
	wantFailure(t, err, provision.CodeCheckoutFailed, "secure connection", "ca_file")

	plain := gittest.NewServer(t, gittest.PlainHTTP())
	repo, _ = plain.Repo("acme/app", hello(), "v1.0.0")
	secure := strings.Replace(plain.URL, "http:", "https:", 1)
	opts.Policy.Repos = []string{secure + "/**"}
	_, err = newSource(t, opts).Resolve(t.Context(), Request{Repo: secure + "/acme/app", Version: "v1.0.0"})
	wantFailure(t, err, provision.CodeCheckoutFailed, "HTTP response to HTTPS client")
	_, err = newSource(t, opts).Resolve(t.Context(), Request{Repo: repo.URL, Version: "v1.0.0"})
	wantFailure(t, err, provision.CodeRepoRefused, "https://")
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	server, target := gittest.NewServer(t), gittest.NewServer(t)
	repo, commit := target.Repo("acme/app", hello(), "v1.0.0")
	server.Override(gittest.Redirect(target.URL))
	opts := options(t, server)
	req := Request{Repo: server.URL + "/acme/app.git", Version: "v1.0.0"}
	_, err := newSource(t, opts).Resolve(t.Context(), req)
	wantFailure(t, err, provision.CodeRepoRefused, "redirects to "+target.URL+"/acme/app", "[policy] repos")
	wantRequests(t, target, 0, 0)

	// Test servers share a certificate, so that one CA file serves both.
	opts.Policy.Repos = append(opts.Policy.Repos, target.URL+"/acme/*")
	resolved, _ := checkout(t, newSource(t, opts), req)
	if resolved.Commit != commit {
		t.Errorf("Resolve = %s, want %s of %s", resolved.Commit, commit, repo.URL)
	}
}

func TestUnresolvableHost(t *testing.T) {
	t.Parallel()
	const addr = "127.0.0.1:1" // where nobody listens
	s := newSource(t, Options{Policy: job.Policy{Repos: []string{"https://" + addr + "/**"}}, ReposDir: t.TempDir()})
	_, err := s.Resolve(t.Context(), Request{Repo: "https://" + addr + "/acme/app", Version: "v1"})
	wantFailure(t, err, provision.CodeCheckoutFailed, "cannot reach the server", "refused")
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	if _, err := New(Options{Policy: job.Policy{Repos: []string{"*"}}}); err == nil || !strings.Contains(err.Error(), "[policy] repos") {
		t.Errorf("New with a bad pattern = %v, want the setting named", err)
	}
	for _, file := range []string{"/does/not/exist.pem", "errors_test.go"} {
		if _, err := New(Options{Git: job.Git{CAFile: file}}); err == nil || !strings.Contains(err.Error(), "ca_file") {
			t.Errorf("New with CA file %s = %v, want the setting named", file, err)
		}
	}
}

// What is wrong with a mirror that was made a moment ago is the server's fault.
func TestFreshMirrorThatIsDamagedFailsTheCheckout(t *testing.T) {
	t.Parallel()
	a := address{canonical.Repository{Scheme: "https", Host: "git.example.com"}}
	err := stillCorrupt(a, blob("x"), fmt.Errorf("checkout: %w", &corruptError{errors.New("its content is another's")}))
	wantFailure(t, err, provision.CodeCheckoutFailed, "did not send all of commit "+blob("x").String(), "its content is another's")
	if err := stillCorrupt(a, blob("x"), io.EOF); !errors.Is(err, io.EOF) {
		t.Errorf("stillCorrupt(%v) = %v, want it as it was", io.EOF, err)
	}
}
