package agent

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// The waits between tries of something that does not work.
const (
	retrySoon   = 250 * time.Millisecond
	retrySeldom = 15 * time.Second
)

func newRetry() *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{
		InitialInterval: retrySoon, MaxInterval: retrySeldom, Multiplier: 2, RandomizationFactor: 0.5,
	}
	b.Reset()
	return b
}

// wait returns true after d, and false when ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// The bounds of the intervals that a database may advise.
const (
	leastInterval = 100 * time.Millisecond
	mostInterval  = time.Minute
)

// advised keeps an interval that came from the database within bounds. None, or
// nonsense, is no advice.
func advised(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return min(max(d, leastInterval), mostInterval)
}

// mostJitter is the most that jitter makes of d.
func mostJitter(d time.Duration) time.Duration { return d + d/5 + 1 }

// jitter spreads d by up to a fifth either way, so that agents which were
// started, or cut off, together do not call together for ever.
func jitter(d time.Duration) time.Duration {
	d = max(d, 0)
	return d - d/5 + rand.N(d/5*2+1) //nolint:gosec // nobody gains by guessing it
}
