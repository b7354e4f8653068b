package rpcgateway

import (
	"net/netip"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/tendril-run/tendril/internal/controlplane/peer"
)

// bodyShare is the part of the budget for bodies that one address may hold:
// whoever sends large ones slowly would else keep all others out.
const bodyShare = 4

// shares is what each address holds of what all share: half of it at most, so
// that one whose calls are slow, be it for locks of its own, leaves the others
// something. Calls of one address wait for each other, not for a connection.
type shares struct {
	conns, calls, bytes int64 // the most of one address

	mu   sync.Mutex
	held map[netip.Prefix]*share
}

// share is that of one address.
type share struct {
	conns, calls, bytes *semaphore.Weighted
	requests            int // under way
}

func newShares(o Options) *shares {
	return &shares{
		conns: half(o.MaxConns), calls: half(o.MaxCalls), bytes: max(bodyBudget/bodyShare, o.MaxBody),
		held: map[netip.Prefix]*share{},
	}
}

func half(n int) int64 { return int64(n+1) / 2 }

// of returns an address's share. It is remembered until done is called, for each
// request that has it.
func (s *shares) of(address netip.Addr) (one *share, done func()) {
	network := peer.Network(address)
	s.mu.Lock()
	defer s.mu.Unlock()
	one = s.held[network]
	if one == nil {
		one = &share{conns: semaphore.NewWeighted(s.conns), calls: semaphore.NewWeighted(s.calls), bytes: semaphore.NewWeighted(s.bytes)}
		s.held[network] = one
	}
	one.requests++
	return one, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if one.requests--; one.requests == 0 {
			delete(s.held, network)
		}
	}
}
