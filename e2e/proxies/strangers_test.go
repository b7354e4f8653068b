package proxies

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// A stranger opens thousands of connections from one address, and is slow on each: without a
// handshake, with half a header, with half a body, and with calls that ask to be held. An agent
// of another address hears of work and takes it within a second, and the server's memory
// stays small.
func TestSlowStranger(t *testing.T) {
	t.Parallel()
	// Without a limit for one address, strangers would have all connections.
	strangers, most, all, memory := 6000, 4000, 5400, int64(400<<20)
	if os.Getenv("TENDRIL_TEST_FAULTS") == "all" {
		strangers, most, all, memory = 14_000, 10_000, 13_000, 1000<<20
	}
	w := queuetest.NewWorld(t)
	server := site.Address(t)
	certificate, key := site.Certificate(t)
	_, pid := serve(t, w, server, "--tls-cert", certificate, "--tls-key", key, "--max-address-connections", strconv.Itoa(most), "--max-connections", strconv.Itoa(all))
	before := residentOf(t, pid)
	for n := range strangers {
		slow(t, server, n)
	}
	during := residentOf(t, pid)
	t.Logf("memory of trellis serve: %d MiB, with %d slow connections %d MiB", before>>20, most, during>>20)
	if during > memory {
		t.Errorf("trellis serve has %d MiB, want at most %d", during>>20, memory>>20)
	}
	q, err := rpcqueue.New(rpcqueue.Options{URL: "https://" + server, CAFile: certificate, Token: w.Token, Agent: queuetest.NewAgent("one")})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := range 5 {
		answer := make(chan time.Time, 1)
		for known := false; !known; { // the first answer says that calls are held
			pulse, err := q.Heartbeat(t.Context(), queue.Beat{Free: true})
			known = err == nil && !pulse.Work
		}
		go func() {
			for {
				pulse, err := q.Heartbeat(t.Context(), queue.Beat{Free: true, Wait: queue.MaxHeld})
				if err != nil || pulse.Work {
					answer <- time.Now()
					return
				}
			}
		}()
		id := w.Deploy(t, fmt.Sprintf("w%d", n))
		began := time.Now()
		<-answer
		a, err := q.Claim(t.Context(), uuid.New())
		took := time.Since(began)
		if err != nil || a == nil || a.ProvisionID != id {
			t.Fatalf("Claim() = %+v, %v, want the provision", a, err)
		}
		t.Logf("inserted → claimed = %s", took)
		if took > patience.For(soon) {
			t.Errorf("inserted → claimed = %s while a stranger is slow, want at most %s", took, soon)
		}
	}
}

// slow opens the n-th of a stranger's connections, and leaves it as it is.
func slow(t *testing.T, server string, n int) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the server may have closed it
	const header = "POST /rest/v1/rpc/agent_heartbeat HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	say := func(text string) {
		_ = conn.SetDeadline(time.Now().Add(patience.For(10 * time.Second))) // a connection has one
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})    // a stranger does not care
		_, _ = io.WriteString(secure, header+text)                           // or it is refused
	}
	switch n % 8 { // most are cheap for the stranger
	case 0:
		say("X-")
	case 1:
		say("Content-Length: 1000000\r\n\r\n{")
	case 2:
		say("Prefer: wait=50\r\nContent-Length: 2\r\n\r\n{}")
	case 3:
		_, _ = io.WriteString(conn, "\x16\x03\x01") // a handshake begins so
	}
}

// residentOf is how many bytes of memory a process has.
func residentOf(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
