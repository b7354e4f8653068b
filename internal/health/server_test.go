package health

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// served is a server on a port of this machine, with its loops and standing.
type served struct {
	*Server
	loops    *Loops
	standing *Standing
}

func serve(t *testing.T, margin time.Duration) served {
	t.Helper()
	return serveWith(t, margin, headerTimeout)
}

func serveWith(t *testing.T, margin, headerTimeout time.Duration) served {
	t.Helper()
	s := served{loops: NewLoops(margin), standing: NewStanding()}
	measured := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "measured") })
	var err error
	if s.Server, err = listen("127.0.0.1:0", Handler(s.loops, s.standing, measured), headerTimeout); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (s served) ask(t *testing.T, method, path string) (status int, body string) {
	t.Helper()
	ctx, cancel := patience.Context(t.Context(), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+s.Address()+path, strings.NewReader("x=1"))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	read, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(read))
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	s := serve(t, time.Nanosecond) // whatever has begun is stuck
	for _, tc := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/healthz", 200, `{"status":"ok","loops":[]}`},
		{"GET", "/readyz", 503, `{"status":"not ready","reason":"it has not registered with the database yet"}`},
		{"GET", "/metrics", 200, "measured"},
		{"HEAD", "/healthz", 200, ""},
		{"POST", "/healthz", 405, "Method Not Allowed"},
		{"DELETE", "/metrics", 405, "Method Not Allowed"},
		{"GET", "/", 404, "404 page not found"},
		{"GET", "/debug/pprof/", 404, "404 page not found"},
		{"GET", "/healthz/x", 404, "404 page not found"},
	} {
		if status, body := s.ask(t, tc.method, tc.path); status != tc.status || body != tc.body {
			t.Errorf("%s %s = %d %q, want %d %q", tc.method, tc.path, status, body, tc.status, tc.body)
		}
	}

	defer s.loops.Begin("delivery of provision 7").End()
	status, body := s.ask(t, "GET", "/healthz")
	want := regexp.MustCompile(`^\{"status":"stuck","reason":"delivery of provision 7 has not turned for (\d+)s","loops":\["delivery of provision 7"\],"stuck":\[\{"loop":"delivery of provision 7","seconds":(\d+)\}\]\}$`)
	if said := want.FindStringSubmatch(body); status != 503 || said == nil || said[1] != said[2] {
		t.Errorf("GET /healthz = %d %q, want 503 %s", status, body, want)
	}
	s.standing.Beat(time.Minute)
	status, body = s.ask(t, "GET", "/readyz")
	var said struct {
		Status        string
		LastHeartbeat time.Time `json:"last_heartbeat"`
	}
	if err := json.Unmarshal([]byte(body), &said); err != nil || status != 200 || said.Status != "ready" || time.Since(said.LastHeartbeat) > time.Minute {
		t.Errorf("GET /readyz = %d %q (%v), want 200, ready, with the time of the last heartbeat", status, body, err)
	}
}

func TestPortIsTaken(t *testing.T) {
	t.Parallel()
	first := serve(t, time.Minute)
	_, err := Listen(first.Address(), http.NotFoundHandler())
	want := fmt.Sprintf("health.listen = %q: another program, or another agent, has that port already; name a free one", first.Address())
	if err == nil || err.Error() != want {
		t.Errorf("Listen(a port in use) error = %v, want %s", err, want)
	}
}

// Whoever opens connections and says nothing keeps no probe out, and costs no more
// than a few descriptors.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	s := serveWith(t, time.Minute, time.Hour)
	silent := s.silence(t)
	if status, _ := s.ask(t, "GET", "/healthz"); status != 200 {
		t.Errorf("GET /healthz = %d, want 200", status)
	}
	if err := silent[0].SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent[0].Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest of %d connections is still open, want it closed for a later one", len(silent))
	}
}

func TestSilentConnectionsEnd(t *testing.T) {
	t.Parallel()
	for _, conn := range serve(t, time.Minute).silence(t) { // the last ones when their time is over
		if n, _ := io.Copy(io.Discard, conn); n > 0 {
			t.Errorf("a silent connection was answered with %d bytes, want none", n)
		}
	}
}

// silence opens more connections than there may be, which begin to ask and end
// there.
func (s served) silence(t *testing.T) (silent []net.Conn) {
	t.Helper()
	for range 2 * connections {
		conn, err := net.Dial("tcp", s.Address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })                   // nothing is to be written
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\n") // the oldest may be closed already
		silent = append(silent, conn)
	}
	return silent
}

func TestLargeHeader(t *testing.T) {
	t.Parallel()
	s := serve(t, time.Minute)
	conn, err := net.Dial("tcp", s.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // a reader's
	if _, err := fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("a", 4*headerLimit)); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status = %d, want 431", res.StatusCode)
	}
}
