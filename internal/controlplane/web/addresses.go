package web

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/peer"
)

// addresses bounds what one address has open: connections from the moment they are accepted,
// before TLS and before any memory is spent on them, and requests, of which HTTP/2 has
// many in a connection. An IPv6 /64 is one address. Connections of trusted proxies are not
// bounded, for they are many clients', whose requests are.
type addresses struct {
	most    int
	trusted []netip.Prefix
	log     *slog.Logger

	mu       sync.Mutex
	conns    map[netip.Prefix]int
	requests map[netip.Prefix]int
	refused  int       // since the log said so
	said     time.Time // when it did
}

func newAddresses(most int, trusted []netip.Prefix, log *slog.Logger) *addresses {
	return &addresses{most: most, trusted: trusted, log: log, conns: map[netip.Prefix]int{}, requests: map[netip.Prefix]int{}}
}

// saySeldom is how often the log says at most that connections are refused: strangers cause
// as many as they like.
const saySeldom = time.Minute

// take counts one more of an address, and reports whether there was room.
func (a *addresses) take(open map[netip.Prefix]int, address netip.Prefix) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if open[address] < a.most {
		open[address]++
		return true
	}
	a.refused++
	if now := time.Now(); now.Sub(a.said) >= saySeldom {
		a.log.Warn("refused connections or requests of an address that has too many open: see --max-address-connections and --trusted-proxy",
			"address", address.Addr().String(), "limit", a.most, "refused", a.refused)
		a.refused, a.said = 0, now
	}
	return false
}

func (a *addresses) leave(open map[netip.Prefix]int, address netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if open[address]--; open[address] == 0 {
		delete(open, address)
	}
}

// bounded is a listener that closes connections of addresses that have too many.
type bounded struct {
	net.Listener
	by *addresses
}

// Accept implements net.Listener.
func (l *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, isTCP := conn.RemoteAddr().(*net.TCPAddr)
		if !isTCP {
			return conn, nil
		}
		address := from.AddrPort().Addr().Unmap()
		if slices.ContainsFunc(l.by.trusted, func(p netip.Prefix) bool { return p.Contains(address) }) {
			return conn, nil
		}
		network := peer.Network(address)
		if l.by.take(l.by.conns, network) {
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { l.by.leave(l.by.conns, network) })}, nil
		}
		_ = conn.Close() // nothing was read
	}
}

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// bound refuses requests of addresses that have too many under way.
func (a *addresses) bound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		network := peer.Network(peer.Address(r, a.trusted))
		if !a.take(a.requests, network) {
			w.Header().Set("Retry-After", "1")
			w.Header().Set("Connection", "close")
			http.Error(w, "too many requests under way from one address", http.StatusServiceUnavailable)
			return
		}
		defer a.leave(a.requests, network)
		next.ServeHTTP(w, r)
	})
}
