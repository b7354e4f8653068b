package rpcqueue

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcwire"
)

// What cuts requests after the same time twice shortens the wait; a server that is stopped at
// any time does not.
func TestWaitIsShortened(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cuts []time.Duration // 0: one that was whole
		want time.Duration
	}{
		"never":          {nil, queue.MaxHeld},
		"once":           {[]time.Duration{15 * time.Second}, queue.MaxHeld},
		"twice":          {[]time.Duration{15 * time.Second, 15200 * time.Millisecond}, 12 * time.Second},
		"at any time":    {[]time.Duration{15 * time.Second, 3 * time.Second, 9 * time.Second}, queue.MaxHeld},
		"whole between":  {[]time.Duration{15 * time.Second, 0, 15 * time.Second}, queue.MaxHeld},
		"after a moment": {[]time.Duration{time.Second, time.Second, time.Second, time.Second}, leastWait},
	} {
		h := holding{wait: queue.MaxHeld, knows: true}
		for _, after := range c.cuts {
			if after == 0 {
				h.whole()
			} else {
				h.cut(after)
			}
		}
		if got := h.asks(); got != c.want {
			t.Errorf("%s: the wait is %s, want %s", name, got, c.want)
		}
	}
	h := holding{wait: 5 * time.Second, knows: true, longerAt: time.Now().Add(-time.Second)}
	if got := h.asks(); got != 10*time.Second {
		t.Errorf("the wait after a while is %s, want it longer again", got)
	}
}

// pipes is a network in memory, in which time is the test's.
type pipes struct {
	calls chan net.Conn
	ended chan struct{}
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.calls:
		return conn, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error {
	close(p.ended)
	return nil
}

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	p.calls <- there
	return here, nil
}

// impatient is a gateway that has nothing to tell, behind a proxy that gives up each call after
// a time: it hangs up, or answers 504.
type impatient struct {
	patience time.Duration // 0: it waits as long as it takes
	hangsUp  bool
	asked    []time.Duration // for how long, of each call that was to be held
}

// ServeHTTP implements http.Handler.
func (p *impatient) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // what it says does not matter
	prefer := r.Header.Get("Prefer")
	var wait time.Duration
	if prefer != "" {
		wait, _ = time.ParseDuration(prefer[len(preferWait):] + "s")
		p.asked = append(p.asked, wait)
	}
	switch {
	case p.patience == 0 || wait < p.patience:
		time.Sleep(wait)
	case p.hangsUp:
		time.Sleep(p.patience)
		panic(http.ErrAbortHandler)
	default:
		time.Sleep(p.patience)
		w.WriteHeader(http.StatusGatewayTimeout)
		return
	}
	if wait > 0 {
		w.Header().Set("Preference-Applied", prefer)
	}
	w.Header().Set("Content-Type", "application/json")
	work := false
	_ = json.NewEncoder(w).Encode(rpcwire.Pulse{Cancel: []uuid.UUID{}, Lost: []uuid.UUID{}, Poll: 5, Heartbeat: 10, Work: &work}) // the client's error tells
}

// A proxy that cuts calls is noticed after two of them, the wait is short enough from then on,
// and when the proxy is gone the wait becomes what it was.
func TestProxyThatCutsCalls(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for name, c := range map[string]struct {
		proxy impatient
		want  []time.Duration // how long the first calls ask to be held
	}{
		"hangs up after 5 s":  {impatient{patience: 5 * s, hangsUp: true}, []time.Duration{20 * s, 20 * s, 4 * s, 4 * s}},
		"504 after 5 s":       {impatient{patience: 5 * s}, []time.Duration{20 * s, 20 * s, 4 * s, 4 * s}},
		"504 after 20 s":      {impatient{patience: 20 * s}, []time.Duration{20 * s, 20 * s, 16 * s, 16 * s}},
		"hangs up after 20 s": {impatient{patience: 20 * s, hangsUp: true}, []time.Duration{20 * s, 20 * s, 16 * s, 16 * s}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				proxy := c.proxy
				network := &pipes{calls: make(chan net.Conn), ended: make(chan struct{})}
				server := &http.Server{Handler: &proxy, ErrorLog: log.New(io.Discard, "", 0)}
				go func() { _ = server.Serve(network) }() // until it is closed
				q, err := New(Options{
					URL: "http://gateway.example", Token: "tnd_x", Agent: queue.Agent{Name: "one"},
					Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
				})
				if err != nil {
					t.Fatal(err)
				}
				q.transport.DialContext = network.dial
				defer func() {
					q.Close()
					_ = server.Close() // it listens nowhere
					synctest.Wait()
				}()
				beat := func() {
					t.Helper()
					pulse, err := q.Heartbeat(t.Context(), queue.Beat{Wait: queue.MaxHeld, Free: true})
					if err != nil || !pulse.Held {
						t.Fatalf("Heartbeat() = %+v, %v, want one to follow at once", pulse, err)
					}
				}
				for len(proxy.asked) < len(c.want) {
					beat()
				}
				if !slices.Equal(proxy.asked, c.want) {
					t.Errorf("calls ask to be held for %v, want %v", proxy.asked, c.want)
				}

				// After a while a longer wait is tried, and given up again after two cuts.
				began, settled := time.Now(), c.want[len(c.want)-1]
				for proxy.asked = nil; time.Since(began) < longerAfter+time.Minute; {
					beat()
				}
				longer := 0
				for _, asked := range proxy.asked {
					if asked != settled {
						longer++
					}
				}
				if last := proxy.asked[len(proxy.asked)-1]; longer != 2 || last != settled {
					t.Errorf("%d calls ask for longer in %s, the last for %s; want 2, and %s", longer, longerAfter, last, settled)
				}

				proxy.patience = 0
				for began = time.Now(); time.Since(began) < 4*longerAfter; {
					beat()
				}
				if last := proxy.asked[len(proxy.asked)-1]; last != queue.MaxHeld {
					t.Errorf("when the proxy is gone a call asks for %s, want %s", last, queue.MaxHeld)
				}
			})
		})
	}
}
