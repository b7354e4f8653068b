package rpcgateway

import (
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/tendril-run/tendril/internal/postgrest"
)

// maxAddresses is how many addresses are remembered. Who is forgotten begins
// with a full allowance, so forgetting never refuses anybody.
const maxAddresses = 1 << 14

// rates bounds how often each address may ask.
type rates struct {
	perSecond rate.Limit
	burst     int
	known     *lru.Cache[netip.Prefix, *rate.Limiter] // nil: no bound
}

func newRates(perSecond float64) *rates {
	r := &rates{perSecond: rate.Limit(perSecond), burst: max(1, int(2*perSecond))}
	if perSecond > 0 {
		r.known, _ = lru.New[netip.Prefix, *rate.Limiter](maxAddresses) // fails for no size only
	}
	return r
}

// allow reports whether a request may go on, else how long to wait.
func (r *rates) allow(address netip.Addr) (time.Duration, bool) {
	if r.known == nil {
		return 0, true
	}
	network := networkOf(address)
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

// networkOf is what counts as one address: of IPv6 a /64, for a customer gets
// at least that many.
func networkOf(address netip.Addr) netip.Prefix {
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	network, _ := address.WithZone("").Prefix(bits) // an address that is none: all of those together
	return network
}

func tooMany(wait time.Duration) *refusal {
	return &refusal{status: http.StatusTooManyRequests, retryAfter: strconv.Itoa(int(math.Ceil(max(1, wait.Seconds())))),
		body: postgrest.NewError("429", "API rate limit exceeded", "rate_limited", "slow down")}
}
