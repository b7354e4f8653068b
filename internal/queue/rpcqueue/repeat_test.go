package rpcqueue_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
)

// beat is the answer to a heartbeat.
const beat = `{"cancel": [], "lost": [], "poll_seconds": 5, "heartbeat_seconds": 10}`

// script answers the first requests by these statuses, 0 being a connection that
// breaks, and all later ones as a database.
func script(requests *atomic.Int32, statuses ...int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		n := int(requests.Add(1))
		switch {
		case n > len(statuses):
			_, _ = w.Write([]byte(beat))
		case statuses[n-1] == 0:
			panic(http.ErrAbortHandler)
		default:
			http.Error(w, "no", statuses[n-1])
		}
	}
}

func TestHiccupsAreMet(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		statuses []int
		requests int32
		works    bool
	}{
		{[]int{503}, 2, true},
		{[]int{502, 500}, 3, true},
		{[]int{429, 408}, 3, true},
		{[]int{0, 0}, 3, true},
		{[]int{520, 0}, 3, true},
		{[]int{503, 503, 503}, 3, false},
		{[]int{0, 0, 0}, 3, false},
		{[]int{400}, 1, false},
		{[]int{401}, 1, false},
		{[]int{404}, 1, false},
		{[]int{409}, 1, false},
		{[]int{413}, 1, false},
		{[]int{422}, 1, false},
		{[]int{503, 403}, 2, false},
	} {
		var requests atomic.Int32
		_, err := serve(t, script(&requests, tc.statuses...)).Heartbeat(t.Context(), queue.Beat{})
		if n := requests.Load(); (err == nil) != tc.works || n != tc.requests {
			t.Errorf("Heartbeat() with %v = %v after %d requests, want success %t after %d", tc.statuses, err, n, tc.works, tc.requests)
		}
	}
}

// While an outage lasts the callers wait, and a call is one request.
func TestOutageIsLeftToTheCaller(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	q := serve(t, script(&requests, 503, 503, 503, 503, 503, 503)) // then it is there
	for i, want := range []int32{3, 1, 1, 1, 1} {
		before := requests.Load()
		_, err := q.Heartbeat(t.Context(), queue.Beat{})
		if n := requests.Load() - before; n != want || (err == nil) != (i == 4) {
			t.Errorf("call %d = %v after %d requests, want %d, and success at the fifth", i+1, err, n, want)
		}
	}
	requests.Store(0) // it is away again: a new outage begins with a hiccup
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err == nil || requests.Load() != 3 {
		t.Errorf("Heartbeat() in the next outage = %v after %d requests, want an error after 3", err, requests.Load())
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		about       string
		status      int
		retryAfter  string
		least, most time.Duration // of what the caller is told
		requests    int32
		tookLeast   time.Duration
	}{
		{"seconds, too long to wait here", 429, "7", 7 * time.Second, 8400 * time.Millisecond, 1, 0},
		{"a date by the server's clock", 503, noon.Add(9 * time.Second).Format(http.TimeFormat), 9 * time.Second, 10800 * time.Millisecond, 1, 0},
		{"an hour is cut", 503, "3600", 30 * time.Second, 36 * time.Second, 1, 0},
		{"the past", 503, noon.Add(-time.Hour).Format(http.TimeFormat), 0, 0, 3, 0},
		{"zero", 503, "0", 0, 0, 3, 0},
		{"nonsense", 503, "soon", 0, 0, 3, 0},
		{"less than nothing", 503, "-5", 0, 0, 3, 0},
		{"of a refusal", 403, "7", 0, 0, 1, 0},
	} {
		t.Run(strings.ReplaceAll(tc.about, " ", "_"), func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			q := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				w.Header().Set("Date", noon.Format(http.TimeFormat))
				w.Header().Set("Retry-After", tc.retryAfter)
				w.WriteHeader(tc.status)
			})
			_, err := q.Heartbeat(t.Context(), queue.Beat{})
			e := asError(t, err)
			if e.RetryAfter < tc.least || e.RetryAfter > tc.most || requests.Load() != tc.requests {
				t.Errorf("Heartbeat() = retry after %s, %d requests, want %s to %s, %d requests", e.RetryAfter, requests.Load(), tc.least, tc.most, tc.requests)
			}
			if got := queue.Wait(err, time.Millisecond); got != max(e.RetryAfter, time.Millisecond) {
				t.Errorf("Wait() = %s, want what the answer asked for, %s", got, e.RetryAfter)
			}
		})
	}
}

// A call ends with its caller's patience, also between two tries.
func TestCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	q := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := q.Heartbeat(ctx, queue.Beat{})
	if e := asError(t, err); e.Kind != queue.Unavailable || !strings.Contains(e.Message, "did not answer in time") {
		t.Errorf("Heartbeat() = %v, want it to say that there was no answer in time", err)
	}
}

// A server closes a connection that was kept just as it is used again: nobody
// need wait for that.
func TestKeptConnectionThatWasClosed(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // the test is over
	var connections atomic.Int32
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			// One answer for each connection, which then ends under the next request.
			requests := bufio.NewReader(conn)
			for answered := false; ; answered = true {
				r, err := http.ReadRequest(requests)
				if err == nil {
					_, err = io.Copy(io.Discard, r.Body)
				}
				if err != nil || answered {
					break
				}
				_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(beat)) + "\r\n\r\n" + beat))
			}
			_ = conn.Close()
		}
	}()
	q := dial(t, rpcqueue.Options{URL: "http://" + listener.Addr().String()})
	const calls = 10
	quickest := time.Hour // of those that find a connection that was kept
	for i := range calls {
		began := time.Now()
		if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
			t.Fatalf("Heartbeat() %d = %v, want nil", i+1, err)
		}
		if i > 0 {
			quickest = min(quickest, time.Since(began))
		}
	}
	// One that meets a hiccup waits for 50 ms at the least.
	if quickest > 50*time.Millisecond {
		t.Errorf("the quickest Heartbeat() took %s, want no wait for a connection that was closed", quickest)
	}
	if n := connections.Load(); n != calls {
		t.Errorf("connections = %d, want %d: one for each request", n, calls)
	}
}

// Whatever comes back: the token's hash and the key are in no error.
func TestErrorsHoldNoSecret(t *testing.T) {
	t.Parallel()
	echo := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body := make([]byte, 1<<16)
			n, _ := r.Body.Read(body)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{"code":"` + strconv.Itoa(status) + `00","message":"` + strings.ReplaceAll(string(body[:n]), `"`, "'") + ` ` + r.Header.Get("apikey") + `","hint":"` + r.Header.Get("apikey") + `"}`))
		}
	}
	for _, status := range []int{200, 400, 401, 403, 404, 500} {
		server := httptest.NewServer(echo(status))
		defer server.Close()
		q := dial(t, rpcqueue.Options{URL: server.URL, APIKey: "the-api-key"})
		_, err := q.Heartbeat(t.Context(), queue.Beat{})
		text := asError(t, err).Error()
		if strings.Contains(text, tokenHash) || strings.Contains(text, token) || strings.Contains(text, "the-api-key") {
			t.Errorf("Heartbeat() answered by %d = %q, want one without the hash and the key", status, text)
		}
		if !strings.Contains(text, "[token]") {
			t.Errorf("Heartbeat() answered by %d = %q: the test's server echoes the hash, want to see where", status, text)
		}
	}
}
