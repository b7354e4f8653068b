package agent

import (
	"context"
	"log/slog"

	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/queue"
)

// registration is how a start of the agent introduces itself.
type registration struct {
	queue    queue.Queue
	log      *slog.Logger
	loops    *health.Loops
	standing *health.Standing
}

// await introduces this start. A refusal of the contract ends the agent, and so do
// credentials that are not accepted: they are the agent's own configuration. A
// database that can't be reached, has no contract at the moment or lacks privileges
// is waited for.
func (r registration) await(ctx context.Context) (queue.Registration, error) {
	trouble := outage{log: r.log, what: "register with the database"}
	retry := newRetry()
	loop := r.loops.Begin("registration")
	defer loop.End()
	for {
		loop.Turns(0)
		answer, err := r.queue.Register(ctx)
		if err == nil {
			trouble.over()
			return answer, nil
		}
		if queue.Final(err) || queue.KindOf(err) == queue.Unauthorized || ctx.Err() != nil {
			return queue.Registration{}, err
		}
		trouble.met(err)
		r.standing.Missed(inTheWay(err))
		again := queue.Wait(err, retry.NextBackOff())
		loop.Turns(again)
		if !wait(ctx, again) {
			return queue.Registration{}, ctx.Err()
		}
	}
}
