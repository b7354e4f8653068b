package web_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/raced"
)

// dialFrom connects from an address of this machine.
func dialFrom(t *testing.T, from, to string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // it may be closed
	return conn
}

// awaitClosed waits until the other side has closed a connection.
func awaitClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience.For(time.Minute))) // an open connection has one
	_, err := io.Copy(io.Discard, conn)
	if timeout, is := errors.AsType[net.Error](err); is && timeout.Timeout() {
		t.Fatalf("reading from the connection = %v, want it closed", err)
	}
}

// used is how much memory the process uses for what is alive.
func used() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// A stranger who opens thousands of connections and sends half a header on each gets as many as
// one address may have, and others are answered meanwhile.
func TestSlowConnectionsOfOneAddress(t *testing.T) {
	const strangers, most, each = 3000, 2000, 40 << 10
	before := used()
	address, _, said := start(t, http.NotFoundHandler(), web.Limits{MaxConnections: 2 * strangers, MaxAddress: most, HeaderTimeout: time.Hour})
	conns := make([]net.Conn, strangers)
	for n := range conns {
		conns[n] = dialFrom(t, "127.0.0.2", address)
		_, _ = io.WriteString(conns[n], "POST /rest/v1/rpc/agent_heartbeat HTTP/1.1\r\nHost: x\r\nX-") // or it is refused
	}
	for _, conn := range conns[most:] {
		awaitClosed(t, conn)
	}
	if status, _, err := get(t, "http://"+address, nil); err != nil || status != http.StatusNotFound {
		t.Errorf("a request from another address = %d, %v, want an answer", status, err)
	}
	took := (used() - before) / most
	t.Logf("memory of a connection with half a header, both sides: %d bytes", took)
	if took > each && raced.Flags() == nil {
		t.Errorf("a connection takes %d bytes, want at most %d", took, each)
	}
	if text := said.String(); strings.Count(text, "too many open") != 1 || !strings.Contains(text, "127.0.0.2") {
		t.Errorf("the log is %q, want one line that names the address", text)
	}
	// The others are open: each is answered when its header is complete.
	for n := 0; n < most; n += most / 20 {
		_, _ = io.WriteString(conns[n], "Y: z\r\nConnection: close\r\n\r\n") // the answer tells
		if answer, err := io.ReadAll(conns[n]); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 404 ") {
			t.Errorf("connection %d is answered %.40q, %v, want 404", n, answer, err)
		}
	}
	// And what is closed makes room.
	patience.Await(t, "room for another connection", func() bool {
		conn := dialFrom(t, "127.0.0.2", address)
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") // the answer tells
		answer, _ := io.ReadAll(conn)
		return strings.HasPrefix(string(answer), "HTTP/1.1 404 ")
	})
}

// A connection without a whole header ends after a time, also when something arrives now and then.
func TestSlowHeadersEnd(t *testing.T) {
	t.Parallel()
	address, _, _ := start(t, http.NotFoundHandler(), web.Limits{HeaderTimeout: 200 * time.Millisecond})
	conn := dialFrom(t, "127.0.0.2", address)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond): // between two bytes
				_, _ = io.WriteString(conn, "G") // it ends
			}
		}
	}()
	awaitClosed(t, conn)
}

// Behind a proxy that is trusted the requests of each of its clients are counted; the proxy's
// connections are not.
func TestRequestsOfOneAddress(t *testing.T) {
	t.Parallel()
	const most = 3
	leave := make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			<-leave
		}
		_, _ = io.WriteString(w, "done")
	})
	address, _, _ := start(t, handler, web.Limits{MaxAddress: most, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.3/32")}})
	ask := func(path, client string) (status string) {
		conn := dialFrom(t, "127.0.0.3", address)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: %s\r\nConnection: close\r\n\r\n", path, client) //nolint:errcheck // the answer tells
		answer, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(answer)
	}
	var held sync.WaitGroup
	for range most {
		held.Go(func() {
			if got := ask("/held", "2001:db8::1"); got != "HTTP/1.1 200 OK" {
				t.Errorf("a request within the limit = %s, want 200", got)
			}
		})
	}
	patience.Await(t, "the first client's requests to fill its share", func() bool {
		return ask("/", "2001:db8::2") == "HTTP/1.1 503 Service Unavailable"
	})
	if got := ask("/", "2001:db8:0:1::1"); got != "HTTP/1.1 200 OK" {
		t.Errorf("another client's request = %s, want 200", got)
	}
	close(leave)
	held.Wait()
	if got := ask("/", "2001:db8::1"); got != "HTTP/1.1 200 OK" {
		t.Errorf("the first client's request when the others are over = %s, want 200", got)
	}
}
