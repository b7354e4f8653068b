package agent

import (
	"context"

	"github.com/tendril-run/tendril/internal/queue"
)

// register introduces this boot. A refusal of the contract ends the agent, and so do
// credentials that are not accepted: they are the agent's own configuration. A
// database that can't be reached, has no contract at the moment or lacks privileges
// is waited for.
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
		if queue.Final(err) || queue.KindOf(err) == queue.Unauthorized || ctx.Err() != nil {
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
