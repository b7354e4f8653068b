package rpcgateway_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/recorded"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// serve runs a gateway behind a real HTTP server until the test is over, and
// returns its URL. It fails the test if the log has what looks like a hash.
func serve(t testing.TB, o rpcgateway.Options) string {
	t.Helper()
	logged := &outputtest.Buffer{}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	o.LogAll = true
	gateway, err := rpcgateway.New(t.Context(), o)
	if err != nil {
		t.Fatalf("rpcgateway.New() = %v, want nil", err)
	}
	server := httptest.NewServer(gateway)
	t.Cleanup(func() {
		server.Close()
		gateway.Close()
		if t.Failed() {
			t.Logf("the gateway logged:\n%s", logged)
		}
	})
	return server.URL
}

// answer is a response that was read.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// send sends what was recorded.
func send(t testing.TB, url string, r recorded.Request) answer {
	t.Helper()
	method := r.Method
	if method == "" {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url+r.Path, bytes.NewReader(r.Payload()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", postgrest.ContentType)
	for name, value := range r.Header {
		request.Header.Set(name, value)
	}
	return do(t, request)
}

// post calls a function with a body of JSON.
func post(t testing.TB, url, function, body string) answer {
	t.Helper()
	return send(t, url, recorded.Request{Path: postgrest.RPCPath(function), Text: body})
}

func do(t testing.TB, request *http.Request) answer {
	t.Helper()
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatalf("%s %s: %v", request.Method, request.URL, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s %s: reading the answer: %v", request.Method, request.URL, err)
	}
	return answer{response.StatusCode, response.Header, body}
}

// check holds an answer to a recorded one.
func check(t testing.TB, got answer, want recorded.Response) {
	t.Helper()
	if got.status != want.Status {
		t.Fatalf("status = %d, want %d; body %s", got.status, want.Status, got.body)
	}
	for name, value := range want.Header {
		if is := got.header.Get(name); is != value {
			t.Errorf("%s = %q, want %q", name, is, value)
		}
	}
	if want.Payload() == nil {
		if len(got.body) > 0 {
			t.Errorf("body = %q, want none", got.body)
		}
		return
	}
	if err := recorded.Same(got.body, want.Payload()); err != nil {
		t.Error(err)
	}
}

// contains fails the test unless text has part in it.
func contains(t testing.TB, what, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s = %q, want %q in it", what, text, part)
	}
}
