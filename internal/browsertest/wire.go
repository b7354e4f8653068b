package browsertest

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Wire is a network between browsers and a site: a TCP proxy that can be cut.
type Wire struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	cut      bool
	open     map[net.Conn]struct{}
	running  sync.WaitGroup
}

// NewWire begins at an address of its own and leads to another one, until the test
// is over.
func NewWire(t testing.TB, to string) *Wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{listener: l, to: to, open: map[net.Conn]struct{}{}}
	w.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.running.Go(func() { w.carry(conn) })
		}
	})
	t.Cleanup(w.Close)
	return w
}

// URL is where the wire begins.
func (w *Wire) URL() string { return "http://" + w.listener.Addr().String() }

// carry brings bytes both ways until either side ends or the wire is cut.
func (w *Wire) carry(in net.Conn) {
	defer in.Close() //nolint:errcheck // whatever becomes of it
	out, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer out.Close() //nolint:errcheck // likewise
	if !w.holds(in, out) {
		return
	}
	defer w.drops(in, out)
	var ways sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		ways.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // either end may go at any time
			_ = in.Close()
			_ = out.Close()
		})
	}
	ways.Wait()
}

func (w *Wire) holds(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return false
	}
	for _, c := range conns {
		w.open[c] = struct{}{}
	}
	return true
}

func (w *Wire) drops(conns ...net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		delete(w.open, c)
	}
}

// Sever ends all connections, and lets none through until mended.
func (w *Wire) Sever(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	for c := range w.open {
		if cut {
			_ = c.Close() // that is the point
		}
	}
}

// Close ends it before the test is over.
func (w *Wire) Close() {
	_ = w.listener.Close()
	w.Sever(true)
	w.running.Wait()
}
