package tools

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// mostTokens is how many tokens are counted at once; past it those that have been
	// quiet for longer than forgetAfter are forgotten.
	mostTokens  = 10_000
	forgetAfter = 2 * time.Minute
)

// limits count the calls of each token.
type limits struct {
	mu     sync.Mutex
	tokens map[string]*counted
}

type counted struct {
	*rate.Limiter
	seen time.Time
}

func newLimits() *limits { return &limits{tokens: map[string]*counted{}} }

// take counts a call, and answers how long to wait if there were too many; 0: go on. A
// token may use up its minute at once, and then as much as comes in by time.
func (l *limits) take(key string, perMinute int, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.tokens[key]
	if c == nil || c.Burst() != perMinute {
		if len(l.tokens) >= mostTokens {
			for old, c := range l.tokens {
				if now.Sub(c.seen) > forgetAfter {
					delete(l.tokens, old)
				}
			}
		}
		c = &counted{Limiter: rate.NewLimiter(rate.Limit(float64(perMinute)/60), perMinute)}
		l.tokens[key] = c
	}
	c.seen = now
	r := c.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait > 0 {
		r.CancelAt(now)
	}
	return wait
}
