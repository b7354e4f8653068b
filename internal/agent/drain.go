package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/job"
)

// drain is how a boot ends its work:
//
//	asked to end ─▶ nothing more is claimed ─▶ children end, or are set down ──────▶ results delivered ─▶ drained
//	                    the time is over, or asked again ─▶ children are stopped ─▶  … or left to the next start
//
// A child is set down whose work continues by itself: another agent takes it up. Heartbeats
// and deliveries go on all the while.
type drain struct {
	log      *slog.Logger
	standing *health.Standing
	inflight *inflight
	// children is until each run's child has ended, runs until nothing of a run is left
	// to do. Only what is claimed joins them.
	children, runs *sync.WaitGroup
	// timeout is how long children may go on; now cuts that short.
	timeout time.Duration
	now     <-chan struct{}
	// lastDelivery is how long the last results wait for a database that cannot be
	// reached; then stopDelivering is called.
	lastDelivery   time.Duration
	stopDelivering func()
}

// after claims until ctx ends and returns when all that was claimed is done with:
// finished, or stopped.
func (d *drain) after(ctx context.Context, claim func(context.Context)) {
	claimed := make(chan struct{}) // nothing more will be
	go func() {
		defer close(claimed)
		claim(ctx)
		// Only now: a question that was under way is waited for, and what it
		// was answered with is run.
		d.log.Info("nothing more is claimed")
	}()
	<-ctx.Done()
	d.standing.Drains()
	d.inflight.detachAll()
	done, childless := whenDone(claimed, d.runs), whenDone(claimed, d.children)
	d.log.Info("draining", "running", len(d.inflight.claims()), "at_most", d.timeout)

	limit := time.NewTimer(d.timeout)
	defer limit.Stop()
	select {
	case <-childless:
	case <-limit.C:
		d.log.Warn("the drain time is over: stopping what still runs")
		d.inflight.stopAll(job.StopDrained)
	case <-d.now:
		d.log.Warn("asked to end at once: stopping what still runs")
		d.inflight.stopAll(job.StopDrained)
	}
	// Each child ends in its grace, or is killed, so this wait is bounded too.
	<-childless
	last := time.AfterFunc(d.lastDelivery, d.stopDelivering)
	defer last.Stop()
	<-done
	d.log.Info("drained")
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
