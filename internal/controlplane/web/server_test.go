package web_test

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves a handler until the test is over.
func start(t *testing.T, handler http.Handler, limits web.Limits) (address string, server *web.Server, said *outputtest.Buffer) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said = &outputtest.Buffer{}
	server = web.Start(listener, handler, limits, nil, slog.New(slog.NewTextHandler(said, nil)), func(err error) { t.Errorf("broken: %v", err) })
	t.Cleanup(server.Stop)
	return listener.Addr().String(), server, said
}

func get(t *testing.T, url string, header http.Header) (int, string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		request.Header = header
	}
	request.Close = true
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

func TestPanicsAreToldOf(t *testing.T) {
	t.Parallel()
	address, server, said := start(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("on purpose") }), web.Limits{})
	if _, _, err := get(t, "http://"+address, nil); err == nil {
		t.Error("a request whose handler panics succeeds, want it cut")
	}
	server.Stop()
	if text := said.String(); !strings.Contains(text, "on purpose") {
		t.Errorf("the log is %q, want the panic in it", text)
	}
}

func TestLargeHeadersAreRefused(t *testing.T) {
	t.Parallel()
	address, _, _ := start(t, http.NotFoundHandler(), web.Limits{MaxHeader: 4096})
	header := http.Header{"X-Large": {strings.Repeat("x", 32<<10)}}
	if status, _, err := get(t, "http://"+address, header); err == nil && status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of 32 KiB = %d, want 431", status)
	}
	if status, _, err := get(t, "http://"+address, nil); err != nil || status != http.StatusNotFound {
		t.Errorf("a small one = %d, %v, want it to reach the handler", status, err)
	}
}

// What is open at the end is finished before Stop returns.
func TestStopLetsRequestsFinish(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	address, server, _ := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-leave
		_, _ = io.WriteString(w, "done")
	}), web.Limits{})
	answered := make(chan string, 1)
	go func() {
		_, body, err := get(t, "http://"+address, nil)
		if err != nil {
			body = err.Error()
		}
		answered <- body
	}()
	<-entered
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.Stop()
	}()
	select {
	case <-stopped:
		t.Error("Stop returned while a request was open")
	default:
	}
	close(leave)
	if body := <-answered; body != "done" {
		t.Errorf("the open request was answered %q, want done", body)
	}
	<-stopped
}
