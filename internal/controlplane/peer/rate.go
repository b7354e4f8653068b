package peer

import (
	"net/netip"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

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
