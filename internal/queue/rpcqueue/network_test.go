package rpcqueue_test

import (
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

// quick is the call time-out of an agent that is to notice soon.
const quick = 5 * time.Second

// overWire opens a queue whose connections go by way of something that fails.
func overWire(t *testing.T, timeout time.Duration) (*queuetest.World, *wiretest.Proxy, queue.Queue) {
	t.Helper()
	w := queuetest.NewWorld(t)
	gateway := gatewaytest.Serve(t, w)
	wire := wiretest.NewHTTPS(t, gateway.Address)
	q := dial(t, rpcqueue.Options{
		URL: wire.URL(gateway.URL), APIKey: gateway.APIKey, CAFile: gateway.CAFile, Token: w.Token, CallTimeout: timeout,
	})
	t.Cleanup(func() { wire.Cut() })
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w, wire, q
}

// lose has the first request or reply of a function lost.
func lose(wire *wiretest.Proxy, function string, fate wiretest.Fate) (lost func() bool) {
	done := make(chan struct{}, 1)
	wire.Judge(func(c wiretest.Call) wiretest.Fate {
		if c.Function == function && len(done) == 0 {
			done <- struct{}{}
			return fate
		}
		return wiretest.Deliver
	})
	return func() bool { return len(done) > 0 }
}

// A connection that breaks before or after the database has committed: the
// caller sees neither, and nothing is done twice.
func TestBrokenConnectionIsNotSeen(t *testing.T) {
	t.Parallel()
	w, wire, q := overWire(t, time.Minute)
	id := w.Deploy(t, "a")
	claim := uuid.New()
	for _, fate := range []wiretest.Fate{wiretest.LoseRequest, wiretest.LoseReply} {
		lost := lose(wire, "fetch_next_provision", fate)
		a, err := q.Claim(t.Context(), claim)
		if err != nil || a == nil || a.ProvisionID != id || !lost() {
			t.Fatalf("Claim() = %+v, %v, lost %t, want provision %s though the exchange was lost", a, err, lost(), id)
		}
		lost = lose(wire, "insert_provision_log", fate)
		next, err := q.AppendLog(t.Context(), claim, 1, []provision.LogChunk{{Stream: provision.Stdout, Text: "once\n", EmittedAt: time.Now()}})
		if err != nil || next != 2 || !lost() {
			t.Fatalf("AppendLog() = %d, %v, lost %t, want 2 though the exchange was lost", next, err, lost())
		}
	}
	if got := w.Log(t, id); got != "once\n" {
		t.Errorf("log = %q, want the line once", got)
	}
}

// What stands between has lost its table: connections are there and carry
// nothing. The next calls get new ones.
func TestLeavesABlackHole(t *testing.T) {
	t.Parallel()
	_, wire, q := overWire(t, quick)
	wire.BlackHole()
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); queue.KindOf(err) != queue.Unavailable || err == nil {
		t.Fatalf("Heartbeat() in a black hole = %v, want it unavailable", err)
	}
	wire.Pass() // the connections of before stay lost
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
		t.Errorf("the Heartbeat() after it = %v, want nil", err)
	}
}

// router passes connections on as they are, encrypted, until it has lost its
// table: then those that are there carry nothing, and new ones work.
type router struct {
	net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
	lost  map[net.Conn]bool
	wg    sync.WaitGroup
}

func newRouter(t *testing.T, to string) *router {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &router{Listener: listener, to: to, lost: map[net.Conn]bool{}}
	r.wg.Go(func() {
		for {
			here, err := listener.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", to)
			if err != nil {
				_ = here.Close()
				continue
			}
			r.mu.Lock()
			r.conns = append(r.conns, here, there)
			r.mu.Unlock()
			r.wg.Go(func() { r.carry(here, there) })
			r.wg.Go(func() { r.carry(there, here) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		r.mu.Lock()
		for _, conn := range r.conns {
			_ = conn.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

func (r *router) carry(from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		r.mu.Lock()
		lost := r.lost[from]
		r.mu.Unlock()
		if lost && err == nil {
			continue
		}
		if err != nil {
			if !lost {
				_ = to.Close()
			}
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (r *router) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		r.lost[conn] = true
	}
}

// By HTTP/2 all calls share the connection that was lost, those under way too.
func TestSharedConnectionIsLost(t *testing.T) {
	t.Parallel()
	server, caFile := encrypted(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(beat)) })
	lost := newRouter(t, server.Listener.Addr().String())
	q := dial(t, rpcqueue.Options{URL: "https://" + lost.Addr().String(), CAFile: caFile, CallTimeout: time.Second})
	if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err != nil {
		t.Fatal(err)
	}
	lost.forget()
	const forever = time.Minute
	began := time.Now()
	var calls sync.WaitGroup
	for range 4 { // at different times, so that the connection always has one
		calls.Go(func() {
			for {
				if _, err := q.Heartbeat(t.Context(), queue.Beat{}); err == nil || time.Since(began) > forever {
					return
				}
			}
		})
	}
	calls.Wait()
	took := time.Since(began)
	if took > forever {
		t.Errorf("calls do not work %s after their connection was lost", took)
	}
	t.Logf("calls worked %s after their connection was lost", took)
}
