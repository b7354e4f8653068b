package site

import (
	"net"
	"sync"
	"testing"
)

// Accepting is a port of this machine that accepts connections and closes them, until the test
// ends.
func Accepting(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	})
	tb.Cleanup(accepting.Wait)
	tb.Cleanup(func() { _ = l.Close() })
	return l
}
