package signin

import (
	"errors"
	"math"
	"net/http"
	"strconv"

	"github.com/tendril-run/tendril/internal/controlplane/peer"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
)

// triesPerSecond is how often one address may show what signs in, in bursts of
// triesAtOnce. Guessing 130 bits is hopeless at any rate: this keeps the database
// from being asked.
const (
	triesPerSecond = 1
	triesAtOnce    = 30

	// Of JWTs that were not verified lately: one of an unknown key has the issuer
	// asked for its keys.
	verifiesPerSecond = 5
	verifiesAtOnce    = 100
)

// mayTry reports whether who asks may show a secret now, and answers if not.
func (s *SignIn) mayTry(w http.ResponseWriter, r *http.Request) bool {
	wait, ok := s.rates.Allow(peer.Address(r, s.TrustedProxies))
	if !ok {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(max(1, wait.Seconds())))))
		problem.Refuse(w, r, http.StatusTooManyRequests, "too_many_tries", "Too many tries from your address. Try again in a moment.")
	}
	return ok
}

// errTooMany says that somebody has shown more JWTs than are looked at.
var errTooMany = errors.New("too many JWTs to look at")

// mayVerify reports whether a JWT of that address's is looked at now.
func (s *SignIn) mayVerify(r *http.Request) bool {
	_, ok := s.verifies.Allow(peer.Address(r, s.TrustedProxies))
	return ok
}
