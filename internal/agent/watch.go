package agent

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/provision"
)

// watch hears how one delivery gets on, for metrics and for the health of the
// agent. It is a logstream.Observer.
type watch struct {
	boot      *boot
	operation provision.Operation
	loop      atomic.Pointer[health.Loop] // nil while nothing is delivered
	// oldest is since when the oldest line waits, in nanoseconds; 0: none does.
	oldest atomic.Int64

	// For who delivers.
	stage provision.Stage // the one that the run is in; "" where that is not known
	since time.Time
}

// watchRun begins to watch a run that was claimed just now, with which its first
// stage begins. The caller ends it.
func (b *boot) watchRun(operation provision.Operation) *watch {
	w := &watch{boot: b, operation: operation, stage: provision.StageCheckout, since: time.Now()}
	b.now.begin(w)
	return w
}

// watchLeftover watches a spool that waits for its delivery. The last of it is
// nowhere else, so that has waited since it was written.
func (b *boot) watchLeftover(s *spool) *watch {
	w := &watch{boot: b, operation: s.about.Operation}
	if info, err := os.Lstat(s.path(linesSuffix)); err == nil && info.Size() > 0 {
		w.Waits(info.ModTime())
	}
	b.now.begin(w)
	return w
}

// end ends the watch. It may be called more than once.
func (w *watch) end() { w.boot.now.end(w) }

// turning adds the delivery to the loops that are to turn, until over is called.
func (w *watch) turning(number int64) (over func()) {
	loop := w.boot.options.Loops.Begin(fmt.Sprintf("delivery of provision %d", number))
	w.loop.Store(loop)
	return func() {
		w.loop.Store(nil)
		loop.End()
	}
}

// ended says how the run has ended, as the database knows.
func (w *watch) ended(report provision.Report) {
	w.boot.options.Observer.RunEnded(w.operation, report.Status, report.Detail.ErrorCode)
}

// Turns implements logstream.Observer.
func (w *watch) Turns(waits time.Duration) { w.loop.Load().Turns(waits) }

// Waits implements logstream.Observer.
func (w *watch) Waits(since time.Time) {
	if since.IsZero() {
		w.oldest.Store(0)
		return
	}
	w.oldest.Store(since.UnixNano())
}

// Stored implements logstream.Observer.
func (w *watch) Stored(chunks int) { w.boot.options.Observer.ChunksStored(chunks) }

// SetAside implements logstream.Observer.
func (w *watch) SetAside(kind string) { w.boot.options.Observer.SetAside(kind) }

// Reported implements logstream.Observer. A stage is over when the next one, or
// the end, is told. What an earlier delivery has told is passed over; and that a
// checkout is done does not say when it began.
func (w *watch) Reported(report provision.Report, at time.Time) {
	stage, ends := report.Detail.Stage, report.Status.EndsRun()
	if at.IsZero() {
		at = time.Now()
	}
	if at.Before(w.since) || !ends && (stage == "" || stage == w.stage || stage == provision.StageCheckout) {
		return
	}
	if w.stage != "" {
		w.boot.options.Observer.StageTook(w.stage, at.Sub(w.since))
	}
	w.stage, w.since = stage, at
	if ends {
		w.stage = ""
	}
}
