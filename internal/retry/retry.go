// Package retry says how long to wait before something is tried again that did not work,
// and how agents that do the same thing keep out of each other's way.
//
//	Between   soon, then twice as long each time, up to seldom; each wait half as long to
//	          half as long again, by chance. Reset it when the thing has worked
//	Jitter    an interval, up to a fifth shorter or longer
//	Sleep     until the time is over, or the context
//
// Chance matters: agents that were cut off together, by one database that went away,
// must not come back together.
//
// The package must not know what is tried, or which errors are worth another try: that
// is for the caller, and for queue.Final and queue.Wait where the queue has answered.
package retry

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Waits are waits that grow. They are for one goroutine at a time.
type Waits = backoff.ExponentialBackOff

// Between returns Waits from soon to seldom.
func Between(soon, seldom time.Duration) *Waits {
	w := &Waits{InitialInterval: soon, MaxInterval: seldom, Multiplier: 2, RandomizationFactor: 0.5}
	w.Reset()
	return w
}

// Sleep returns true after d, and false when ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// MostJitter is the most that Jitter makes of d.
func MostJitter(d time.Duration) time.Duration { return d + d/5 + 1 }

// Jitter spreads d by up to a fifth either way.
func Jitter(d time.Duration) time.Duration {
	d = max(d, 0)
	return d - d/5 + rand.N(d/5*2+1) //nolint:gosec // nobody gains by guessing it
}
