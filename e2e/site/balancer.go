package site

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// Balancer joins each connection to one of several servers, in turn.
type Balancer struct {
	Address string
	// Opened is how many connections it was asked for.
	Opened atomic.Int64
}

// Balance listens for connections, and joins each to the next of the addresses that takes it.
func Balance(t testing.TB, addresses ...string) *Balancer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &Balancer{Address: listener.Addr().String()}
	ctx, stop := context.WithCancel(context.Background())
	var open sync.WaitGroup
	t.Cleanup(func() {
		stop()
		_ = listener.Close() // it was only listened on
		open.Wait()
	})
	open.Go(func() {
		for next := 0; ; next++ {
			client, err := listener.Accept()
			if err != nil {
				return // it is closed
			}
			b.Opened.Add(1)
			open.Go(func() { joinTo(ctx, client, slices.Concat(addresses[next%len(addresses):], addresses)) })
		}
	})
	return b
}

func joinTo(ctx context.Context, client net.Conn, addresses []string) {
	defer client.Close() //nolint:errcheck // it is over
	for _, address := range addresses {
		server, err := net.Dial("tcp", address)
		if err != nil {
			continue
		}
		both := func() { _, _ = client.Close(), server.Close() }
		defer context.AfterFunc(ctx, both)()
		var copying sync.WaitGroup
		for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
			copying.Go(func() {
				defer both()
				_, _ = io.Copy(way[0], way[1]) // a broken connection is what is tested
			})
		}
		copying.Wait()
		return
	}
}
