package agent

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tracing"
)

// watch hears how one delivery gets on, for metrics and for the health of the
// agent. It is a delivery.Observer.
type watch struct {
	status    *status
	observer  Observer
	loops     *health.Loops
	operation provision.Operation
	loop      atomic.Pointer[health.Loop] // nil while nothing is delivered
	// oldest is since when the oldest line waits, in nanoseconds; 0: none does.
	oldest atomic.Int64

	trace *runTrace // nil: none is wanted

	// For who delivers.
	stage provision.Stage // the one that the run is in; "" where that is not known
	since time.Time
}

// run begins to watch a run that was claimed just now, with which its first stage begins.
// The caller ends it.
func (w *watch) run(a provision.Assignment, t *tracing.Tracer) *watch {
	w.operation, w.stage, w.since = a.Operation, provision.StageCheckout, time.Now()
	w.trace = newRunTrace(t, a)
	w.status.begin(w)
	return w
}

// leftover begins to watch a spool that waits for its delivery. The last of it is
// nowhere else, so that has waited since it was written.
func (w *watch) leftover(s *claimFiles, t *tracing.Tracer) *watch {
	w.operation, w.trace = s.about.Operation, leftoverTrace(t, s.about)
	if info, err := os.Lstat(s.path(linesSuffix)); err == nil && info.Size() > 0 {
		w.Waits(info.ModTime())
	}
	w.status.begin(w)
	return w
}

// end ends the watch. It may be called more than once.
func (w *watch) end() {
	w.status.end(w)
	w.trace.record()
}

// turning adds the delivery to the loops that are to turn, until over is called.
func (w *watch) turning(number int64) (over func()) {
	loop := w.loops.Begin(fmt.Sprintf("delivery of provision %d", number))
	w.loop.Store(loop)
	return func() {
		w.loop.Store(nil)
		loop.End()
	}
}

// ended says how the run has ended, as the database knows.
func (w *watch) ended(report provision.Report) {
	w.trace.over(report)
	w.observer.RunEnded(w.operation, report.Status, report.Detail.ErrorCode)
}

// Turns implements delivery.Observer.
func (w *watch) Turns(waits time.Duration) { w.loop.Load().Turns(waits) }

// Waits implements delivery.Observer.
func (w *watch) Waits(since time.Time) {
	if since.IsZero() {
		w.oldest.Store(0)
		return
	}
	w.oldest.Store(since.UnixNano())
}

// Stored implements delivery.Observer.
func (w *watch) Stored(chunks int) { w.observer.ChunksStored(chunks) }

// SetAside implements delivery.Observer.
func (w *watch) SetAside(kind string) { w.observer.SetAside(kind) }

// Heard implements delivery.Observer.
func (w *watch) Heard(report provision.Report, at time.Time) { w.trace.reported(report, at) }

// Reported implements delivery.Observer. A stage is over when the next one, or
// the end, is told. What an earlier delivery has told is passed over; and that a
// checkout is done does not say when it began.
func (w *watch) Reported(report provision.Report, at time.Time) {
	stage, ends := report.Detail.Stage, report.Status.EndsRun()
	if at.IsZero() {
		at = time.Now()
	}
	w.trace.reported(report, at)
	if at.Before(w.since) || !ends && (stage == "" || stage == w.stage || stage == provision.StageCheckout) {
		return
	}
	if w.stage != "" {
		w.observer.StageTook(w.stage, at.Sub(w.since), w.trace.sampled())
	}
	w.stage, w.since = stage, at
	if ends {
		w.stage = ""
	}
}
