// Package gittest is a real git server for tests: bare repositories in a
// temporary directory, served by git-http-backend over HTTPS (or plain HTTP)
// or by git-upload-pack over SSH, with counters and ways to misbehave. It
// needs the git binary and is for tests only; it must not know what is tested.
package gittest

import (
	"crypto/subtle"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Server serves every repository below Root by git's smart HTTP protocol.
type Server struct {
	// URL has no trailing slash; a repository's is URL/NAME.git.
	URL string
	// CAFile is the server's certificate in PEM; "" over plain HTTP.
	CAFile string
	// Root holds the bare repositories.
	Root string

	t       testing.TB
	http    *httptest.Server
	backend http.Handler

	mu       sync.Mutex
	requests Requests
	override http.Handler
	user     string
	password string
}

// Requests counts what a server was asked for.
type Requests struct {
	Refs  int   // listings of references
	Packs int   // requests for a pack
	Other int   // anything else
	Bytes int64 // bytes answered to requests for a pack
}

// Option changes a new Server.
type Option func(*options)

type options struct {
	host           string
	plain          bool
	user, password string
}

// Listen has the server at another of the machine's addresses than the loopback
// one, for clients with a network of their own.
func Listen(host string) Option { return func(o *options) { o.host = host } }

func collect(opts []Option) options {
	o := options{host: "127.0.0.1"}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// listen takes a free port.
func (o options) listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(o.host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// PlainHTTP serves without TLS.
func PlainHTTP() Option { return func(o *options) { o.plain = true } }

// BasicAuth has the server answer 401 to everyone else.
func BasicAuth(user, password string) Option {
	return func(o *options) { o.user, o.password = user, password }
}

// NewServer starts a server that ends with the test.
func NewServer(t testing.TB, opts ...Option) *Server {
	t.Helper()
	o := collect(opts)
	s := &Server{t: t, Root: t.TempDir(), user: o.user, password: o.password}
	backend := &cgi.Handler{
		Path: filepath.Join(execPath(t), "git-http-backend"),
		Env: append(environment(s.Root),
			"GIT_PROJECT_ROOT="+s.Root, "GIT_HTTP_EXPORT_ALL=1"),
		// What git has to say reaches the client as well.
		Stderr: io.Discard, Logger: log.New(io.Discard, "", 0),
	}
	if _, err := os.Stat(backend.Path); err != nil {
		t.Fatalf("git-http-backend is not where git keeps its programs (%v); install the full git package", err)
	}
	s.backend = backend
	s.http = &httptest.Server{Listener: o.listen(t), Config: &http.Server{Handler: s.handler()}}
	if o.plain {
		s.http.Start()
	} else {
		s.http.StartTLS()
		// Whoever fetches may be another user than the test.
		s.CAFile = filepath.Join(t.TempDir(), "ca.pem")
		if err := os.Chmod(filepath.Dir(filepath.Dir(s.CAFile)), 0o711); err != nil {
			t.Fatal(err)
		}
		block := &pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw}
		if err := os.WriteFile(s.CAFile, pem.EncodeToMemory(block), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// A test of a refused certificate would otherwise print the handshake error.
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.URL = s.http.URL
	t.Cleanup(s.http.Close)
	return s
}

// Close stops the server before the test ends.
func (s *Server) Close() { s.http.Close() }

// Requests returns what was counted since the start or the last call of Reset.
func (s *Server) Requests() Requests {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// Reset sets all counters to zero.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = Requests{}
}

// Override answers all requests by h instead of git; nil ends that. Requests
// are still counted.
func (s *Server) Override(h http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.override = h
}

// Git is what serves repositories, for an override that does more.
func (s *Server) Git() http.Handler { return s.backend }

// Expect has the server answer to these from now on, in place of BasicAuth's.
func (s *Server) Expect(user, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.user, s.password = user, password
}

// Anyone may ask from now on, whatever BasicAuth has said.
func (s *Server) Anyone() { s.Expect("", "") }

func (s *Server) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		pack := strings.HasSuffix(r.URL.Path, "/git-upload-pack")
		switch {
		case strings.HasSuffix(r.URL.Path, "/info/refs"):
			s.requests.Refs++
		case pack:
			s.requests.Packs++
		default:
			s.requests.Other++
		}
		next := s.backend
		if s.override != nil {
			next = s.override
		}
		user, password := s.user, s.password
		s.mu.Unlock()

		if user != "" && !authorised(r, user, password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="gittest"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		counted := &countingWriter{ResponseWriter: w}
		next.ServeHTTP(counted, r)
		if pack {
			s.mu.Lock()
			s.requests.Bytes += counted.n
			s.mu.Unlock()
		}
	})
}

func authorised(r *http.Request, user, password string) bool {
	u, p, ok := r.BasicAuth()
	return ok && subtle.ConstantTimeCompare([]byte(u+"\x00"+p), []byte(user+"\x00"+password)) == 1
}

// countingWriter counts the bytes of a body.
type countingWriter struct {
	http.ResponseWriter
	n int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	return n, err
}

// Unwrap lets handlers flush and hijack.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// execPath is where git keeps its programs.
func execPath(t testing.TB) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "--exec-path").Output()
	if err != nil {
		t.Fatalf("these tests need git: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// environment keeps the machine's git configuration out of the tests.
func environment(home string) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull,
		"GIT_AUTHOR_NAME=Test", "GIT_AUTHOR_EMAIL=test@example.com",
		"GIT_COMMITTER_NAME=Test", "GIT_COMMITTER_EMAIL=test@example.com",
	}
}
