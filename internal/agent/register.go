package agent

import (
	"context"

	"github.com/tendril-run/tendril/internal/queue"
)

// register introduces this boot. A database that cannot be reached is waited
// for; one that says no is not.
func (b *boot) register(ctx context.Context) (queue.Registration, error) {
	trouble := outage{log: b.log, what: "register with the database"}
	retry := newRetry()
	for {
		registration, err := b.queue.Register(ctx)
		if err == nil {
			trouble.over()
			return registration, nil
		}
		if queue.KindOf(err) != queue.Unavailable || ctx.Err() != nil {
			return queue.Registration{}, err
		}
		trouble.met(err)
		if !wait(ctx, queue.Wait(err, retry.NextBackOff())) {
			return queue.Registration{}, ctx.Err()
		}
	}
}
