package agent

import (
	"context"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/job"
)

// work claims until ctx ends and returns when all that was claimed is done
// with: finished, or stopped when the drain time was over. Heartbeats and
// deliveries go on all the while.
func (b *boot) work(ctx context.Context) {
	claimed := make(chan struct{}) // nothing more will be
	go func() {
		defer close(claimed)
		newPoller(b).run(ctx)
		// Only now: a question that was under way is waited for, and what it
		// was answered with is run.
		b.log.Info("nothing more is claimed")
	}()
	<-ctx.Done()
	b.options.Standing.Drains()
	done, childless := whenDone(claimed, &b.runs), whenDone(claimed, &b.children)
	b.log.Info("draining", "running", len(b.hand.claims()), "at_most", b.options.DrainTimeout)

	limit := time.NewTimer(b.options.DrainTimeout)
	defer limit.Stop()
	select {
	case <-childless:
	case <-limit.C:
		b.log.Warn("the drain time is over: stopping what still runs")
		b.hand.stopAll(job.StopDrained)
	case <-b.hurry:
		b.log.Warn("asked to end at once: stopping what still runs")
		b.hand.stopAll(job.StopDrained)
	}
	// Each child ends in its grace, or is killed, so this wait is bounded too.
	<-childless
	last := time.AfterFunc(b.limits.lastDelivery, b.stopDelivering)
	defer last.Stop()
	<-done
	b.log.Info("drained")
}

// whenDone returns a channel that is closed when the first is closed and then
// the group is done; only what comes before the former joins the group.
func whenDone(first <-chan struct{}, group *sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-first
		group.Wait()
	}()
	return done
}
