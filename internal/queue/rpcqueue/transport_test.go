package rpcqueue_test

import (
	"compress/gzip"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

func TestWhereFunctionsAre(t *testing.T) {
	t.Parallel()
	paths := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths <- r.Method + " " + r.URL.RequestURI()
		_, _ = w.Write([]byte(beat))
	}))
	defer server.Close()
	for path, want := range map[string]string{
		"":               "POST /rest/v1/rpc/agent_heartbeat",
		"/":              "POST /rest/v1/rpc/agent_heartbeat",
		"/rest/v1":       "POST /rest/v1/rpc/agent_heartbeat",
		"/rest/v1/":      "POST /rest/v1/rpc/agent_heartbeat",
		"/rest/v1/rpc":   "POST /rest/v1/rpc/agent_heartbeat",
		"/tendril/":      "POST /tendril/rest/v1/rpc/agent_heartbeat",
		"/postgrest/rpc": "POST /postgrest/rpc/agent_heartbeat",
	} {
		if _, err := dial(t, rpcqueue.Options{URL: server.URL + path}).Heartbeat(t.Context(), queue.Beat{}); err != nil {
			t.Fatal(err)
		}
		if got := <-paths; got != want {
			t.Errorf("with URL path %q: request = %s, want %s", path, got, want)
		}
	}
}

func TestUnusableURLs(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "postgres://db/x", "https://", "https://user:hunter2@host", "https://host?apikey=hunter2", "https://host#hunter2", "https://host:port hunter2", "\x7fhunter2"} {
		q, err := rpcqueue.New(rpcqueue.Options{URL: address, Token: token})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("New(%q) = %v, %v, want an error that does not show it", address, q, err)
		}
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	headers := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header
		_, _ = w.Write([]byte(beat))
	}))
	defer server.Close()
	for apiKey, authorization := range map[string]string{
		"":                         "",
		"sb_publishable_abc":       "",
		"eyJhbGciOi.eyJyb2xl.c2ln": "Bearer eyJhbGciOi.eyJyb2xl.c2ln",
	} {
		agent := queuetest.NewAgent("one")
		agent.Version = "v1.2.3"
		if _, err := dial(t, rpcqueue.Options{URL: server.URL, APIKey: apiKey, Agent: agent}).Heartbeat(t.Context(), queue.Beat{}); err != nil {
			t.Fatal(err)
		}
		got := <-headers
		for name, want := range map[string]string{
			"apikey": apiKey, "Authorization": authorization, "Content-Type": "application/json", "Accept": "application/json",
			"Content-Profile": "public", "User-Agent": "tendril/v1.2.3", "Idempotency-Key": "", "Accept-Encoding": "gzip",
		} {
			if got.Get(name) != want {
				t.Errorf("with key %q: header %s = %q, want %q", apiKey, name, got.Get(name), want)
			}
		}
	}
}

func TestCompressedAnswer(t *testing.T) {
	t.Parallel()
	q := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = z.Write([]byte(beat))
		_ = z.Close()
	})
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
		t.Errorf("Heartbeat() = %v, want nil", err)
	}
}

// A redirect would take the token's hash elsewhere.
func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer elsewhere.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		q := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, status) })
		if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err == nil {
			t.Errorf("Heartbeat() redirected by %d = nil, want an error", status)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("requests at the address redirected to = %d, want none", n)
	}
}

// encrypted starts a server under a certificate of its own and returns the file
// that vouches for it.
func encrypted(t *testing.T, handler http.HandlerFunc) (server *httptest.Server, caFile string) {
	t.Helper()
	server = httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.Config.ErrorLog = quiet
	server.StartTLS()
	t.Cleanup(server.Close)
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}
	if err := os.WriteFile(caFile, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return server, caFile
}

// Many calls at once share one connection, to a server that only a file of ours
// vouches for.
func TestEncryptedAndShared(t *testing.T) {
	t.Parallel()
	var connections sync.Map
	server, caFile := encrypted(t, func(w http.ResponseWriter, r *http.Request) {
		connections.Store(r.RemoteAddr+" "+r.Proto, true)
		_, _ = w.Write([]byte(beat))
	})
	q := dial(t, rpcqueue.Options{URL: server.URL, CAFile: caFile})
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
		t.Fatalf("Heartbeat() = %v, want nil", err)
	}
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
				t.Errorf("Heartbeat() = %v, want nil", err)
			}
		})
	}
	calls.Wait()
	n := 0
	connections.Range(func(connection, _ any) bool {
		if n++; !strings.HasSuffix(connection.(string), " HTTP/2.0") {
			t.Errorf("connection = %s, want HTTP/2", connection)
		}
		return true
	})
	if n != 1 {
		t.Errorf("connections = %d, want 1", n)
	}
}

func TestCertificateThatNobodyVouchesFor(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server, _ := encrypted(t, func(http.ResponseWriter, *http.Request) { requests.Add(1) })
	_, err := dial(t, rpcqueue.Options{URL: server.URL}).Heartbeat(t.Context(), queue.Beat{})
	e := asError(t, err)
	if e.Kind != queue.Unavailable || !strings.Contains(e.Error(), "certificate signed by unknown authority") || !strings.Contains(e.Hint, "queue.ca_file or SSL_CERT_FILE") {
		t.Errorf("Heartbeat() = %v, want it to say what is wrong and what to set", e)
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("requests = %d, want none: the hash is for nobody else", n)
	}
}

func TestUnusableCAFile(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{empty, empty + ".not"} {
		if _, err := rpcqueue.New(rpcqueue.Options{URL: "https://host", Token: token, CAFile: file}); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("New(CAFile %s) = %v, want an error that names it", file, err)
		}
	}
}

// A proxy is told the host's name and no more: what is said stays encrypted.
func TestProxy(t *testing.T) {
	t.Parallel()
	server, caFile := encrypted(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(beat)) })
	asked := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.RequestURI
		through(t, w, server.Listener.Addr().String())
	}))
	defer proxy.Close()
	address, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	// The name is in the server's certificate, and nowhere else.
	q := dial(t, rpcqueue.Options{URL: "https://example.com", CAFile: caFile, Proxy: http.ProxyURL(address)})
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
		t.Fatalf("Heartbeat() = %v, want nil", err)
	}
	if got := <-asked; got != "CONNECT example.com:443" {
		t.Errorf("the proxy was asked to %s, want CONNECT example.com:443", got)
	}
	q.Close()
}

// through connects a proxy's client with an address until either ends.
func through(t *testing.T, w http.ResponseWriter, address string) {
	there, err := net.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	defer there.Close() //nolint:errcheck // it ends with the other side
	w.WriteHeader(http.StatusOK)
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	defer here.Close() //nolint:errcheck // it ends with the other side
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(here, there)
		_ = here.Close()
	}()
	_, _ = io.Copy(there, buffered)
	_ = there.Close()
	<-back
}

func TestProxyThatRefuses(t *testing.T) {
	t.Parallel()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusProxyAuthRequired)
	}))
	defer proxy.Close()
	address, err := url.Parse(strings.Replace(proxy.URL, "://", "://ada:hunter2@", 1))
	if err != nil {
		t.Fatal(err)
	}
	_, err = dial(t, rpcqueue.Options{URL: "https://queue.example", Proxy: http.ProxyURL(address)}).Heartbeat(t.Context(), queue.Beat{})
	if e := asError(t, err); e.Kind != queue.Unavailable || !strings.Contains(e.Error(), "Proxy Authentication Required") || strings.Contains(e.Error(), "hunter2") {
		t.Errorf("Heartbeat() = %v, want what the proxy says, without its password", e)
	}
}
