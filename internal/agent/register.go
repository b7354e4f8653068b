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
	loop := b.options.Loops.Begin("registration")
	defer loop.End()
	for {
		loop.Turns(0)
		registration, err := b.queue.Register(ctx)
		if err == nil {
			trouble.over()
			return registration, nil
		}
		if queue.KindOf(err) != queue.Unavailable || ctx.Err() != nil {
			return queue.Registration{}, err
		}
		trouble.met(err)
		b.options.Standing.Missed(inTheWay(err))
		again := queue.Wait(err, retry.NextBackOff())
		loop.Turns(again)
		if !wait(ctx, again) {
			return queue.Registration{}, ctx.Err()
		}
	}
}
