package agent

import (
	"context"
	"errors"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/retry"
)

// The waits between tries of something that does not work.
const (
	retrySoon   = 250 * time.Millisecond
	retrySeldom = 15 * time.Second
)

func newRetry() *retry.Waits { return retry.Between(retrySoon, retrySeldom) }

// wait returns true after d, and false when ctx ends first.
func wait(ctx context.Context, d time.Duration) bool { return retry.Sleep(ctx, d) }

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

// persist repeats a call until the database accepts or refuses it.
func persist(ctx context.Context, call func(context.Context) error) error {
	waits := newRetry()
	for {
		err := call(ctx)
		if err == nil || queue.Final(err) {
			return err
		}
		if !wait(ctx, queue.Wait(err, waits.NextBackOff())) {
			return errors.Join(ctx.Err(), err)
		}
	}
}
