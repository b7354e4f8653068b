// Package peer finds the address of the client of an HTTP request, and limits how
// often each client may call.
//
// Behind a proxy that the operator trusts, the client is the last address in
// X-Forwarded-For that no trusted proxy has. One IPv6 client owns a /64, so limits
// count networks, not addresses.
//
// The package must not know what clients ask for.
package peer

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// Address is who asks. X-Forwarded-For counts as far as trusted proxies
// have written it: from its end, up to the first address that is none of them.
// Before that anybody may have written anything.
func Address(r *http.Request, trusted []netip.Prefix) netip.Addr {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	address := from.Addr().Unmap()
	said := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, one := range slices.Backward(said) {
		if !slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(address) }) {
			break
		}
		before, ok := forwarded(strings.TrimSpace(one))
		if !ok {
			break
		}
		address = before.Unmap()
	}
	return address
}

// forwarded reads an address; some proxies write the port as well.
func forwarded(text string) (netip.Addr, bool) {
	address, err := netip.ParseAddr(text)
	if err == nil {
		return address, true
	}
	both, err := netip.ParseAddrPort(text)
	return both.Addr(), err == nil
}

// Network is what counts as one address: of IPv6 a /64, for a customer gets
// at least that many.
func Network(address netip.Addr) netip.Prefix {
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	network, _ := address.WithZone("").Prefix(bits) // an address that is none: all of those together
	return network
}

// maxAddresses is how many addresses are remembered. Who is forgotten begins
// with a full allowance, so forgetting never refuses anybody.
const maxAddresses = 1 << 14

// Rates bounds how often each address may ask.
type Rates struct {
	perSecond rate.Limit
	burst     int
	known     *lru.Cache[netip.Prefix, *rate.Limiter] // nil: no bound
}

// NewRates allows so many requests a second, in bursts of burst; any number when
// perSecond is not above 0.
func NewRates(perSecond float64, burst int) *Rates {
	r := &Rates{perSecond: rate.Limit(perSecond), burst: max(1, burst)}
	if perSecond > 0 {
		r.known, _ = lru.New[netip.Prefix, *rate.Limiter](maxAddresses) // fails for no size only
	}
	return r
}

// Allow reports whether a request may go on, else how long to wait.
func (r *Rates) Allow(address netip.Addr) (time.Duration, bool) {
	if r.known == nil {
		return 0, true
	}
	network := Network(address)
	limiter, ok := r.known.Get(network)
	if !ok {
		limiter = rate.NewLimiter(r.perSecond, r.burst)
		// Two that come at once: the first counts.
		if before, there, _ := r.known.PeekOrAdd(network, limiter); there {
			limiter = before
		}
	}
	if limiter.Allow() {
		return 0, true
	}
	return time.Duration(float64(time.Second) / float64(r.perSecond)), false
}
