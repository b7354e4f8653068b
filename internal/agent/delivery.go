package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/logstream"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// outcome is how a delivery ended.
type outcome struct {
	logstream.Delivered
	err error
}

// delivery is the delivery of one spool while its child lives.
type delivery struct {
	// dead is closed when the child has ended.
	dead   chan struct{}
	result chan *outcome
}

// patientQueue waits for a token or a password that is refused as for a database
// that is away: it may be valid again, and the lines are safe meanwhile. It also
// notices when the apply is agreed to and when the run ends, and stores a plan
// that awaits approval.
type patientQueue struct {
	queue.Queue
	run    *run // nil: it was of an earlier boot
	plans  *plans
	states *stateQueue
	watch  *watch
}

// AppendLog implements logstream.Queue.
func (q patientQueue) AppendLog(ctx context.Context, claim uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	next, err := q.Queue.AppendLog(ctx, claim, first, chunks)
	if err == nil && next < first {
		q.states.rewound = true
	}
	return next, patiently(err)
}

// Report implements logstream.Queue.
func (q patientQueue) Report(ctx context.Context, claim uuid.UUID, report provision.Report) error {
	waits := 2 * storeLimit // a plan or a result may go before it
	if report.Detail.StateWrite != nil {
		waits = stateLimit
	}
	q.watch.Turns(waits)
	if stored, err := q.states.report(&report); stored {
		return err
	}
	report, err := q.leave(claim, report)
	if err != nil {
		return err
	}
	agreeing := q.run != nil && report.Detail.Stage == provision.StageApply
	if agreeing {
		q.run.applying.Store(true) // from now on: the answer may be lost on its way
	}
	if q.run != nil && report.Status.EndsRun() {
		q.run.ending.Store(true) // likewise
	}
	err = patiently(q.Queue.Report(ctx, claim, report))
	if err == nil && report.Status.EndsRun() {
		q.watch.ended(report)
	}
	if agreeing && err != nil && queue.KindOf(err) != queue.Unavailable {
		q.run.applying.Store(false)
	}
	return err
}

// leave stores what a report speaks of, before the database hears of it: a plan
// that awaits approval, or a result. Where that is lost the report is another.
func (q patientQueue) leave(claim uuid.UUID, report provision.Report) (provision.Report, error) {
	var err error
	lost := q.plans.lost
	switch {
	case report.Status == provision.AwaitingApproval:
		err = q.plans.keep(claim, report.Detail.PlanDigest)
	case report.Detail.ResultDigest != "":
		err, lost = q.plans.leave(claim, report.Detail.ResultDigest), q.plans.notLeft
	}
	switch said, ok := errors.AsType[*queue.Error](err); {
	case err == nil, ok && said.Kind == queue.ClaimLost: // or the report has arrived already
		return report, nil
	case ok && said.Kind != queue.ContentRefused:
		return report, patiently(err)
	}
	return lost(err), nil
}

func patiently(err error) error {
	refused, ok := errors.AsType[*queue.Error](err)
	if !ok || refused.Kind != queue.Unauthorized {
		return err
	}
	patient := *refused
	patient.Kind = queue.Unavailable
	return &patient
}

// deliver starts to deliver a run's spool.
func (r *run) deliver(s *spool, wake <-chan struct{}, acked func(job.Control)) *delivery {
	d := &delivery{dead: make(chan struct{}), result: make(chan *outcome, 1)}
	go func() {
		defer r.watch.turning(r.assignment.Number)()
		d.result <- r.boot.pump(s, r.log, patientQueue{r.boot.queue, r, &plans{boot: r.boot, spool: s, log: r.log}, r.boot.statesOf(s, r.log), r.watch}, logstream.PumpOptions{
			Observer: r.watch,
			Acked:    func(n int64, refused *provision.Failure) { acked(job.Control{Ack: n, Refused: refused}) },
		}, wake, d.dead)
	}()
	return d
}

// pump delivers a spool until it has a result, or all of it once dead is closed.
func (b *boot) pump(s *spool, log *slog.Logger, q logstream.Queue, o logstream.PumpOptions, wake, dead <-chan struct{}) *outcome {
	lines, err := s.open(os.O_RDONLY)
	if err != nil {
		return &outcome{err: fmt.Errorf("open the spool: %w", err)}
	}
	defer lines.Close() //nolint:errcheck // only read
	if o.Tail, err = s.openTail(os.O_RDONLY); err != nil {
		return &outcome{err: fmt.Errorf("open the tail of the log: %w", err)}
	}
	defer closeAll(o.Tail[:]...)
	o.SetAside = func(r logstream.Refused) error {
		log.Warn("the database does not take a part of the run for its content; it is kept in rejected/, and the rest goes on", "kind", r.Kind, "number", r.Number, "refused", r.Why)
		return s.setAside(r)
	}
	trouble := outage{log: log, what: "deliver the run's lines", patience: time.Minute}
	o.OnRetry = func(err error) {
		log.Debug("delivering again after a failure", "error", err)
		trouble.met(err)
		b.heart.nudge() // it tells of an outage, and of its end
	}
	delivered, err := logstream.NewPump(q, s.claim, lines, o).Run(b.delivery, wake, dead)
	if err == nil {
		trouble.over()
	}
	if delivered.Refused > 0 {
		log.Warn("the database refused reports of the run", "count", delivered.Refused, "last", delivered.Refusal)
	}
	if delivered.Forged > 0 {
		log.Error("the spool held results that the run did not end with: its template may have tried to forge one", "count", delivered.Forged)
	}
	return &outcome{delivered, err}
}

// resume delivers what is left of a spool whose child has ended.
func (b *boot) resume(s *spool, log *slog.Logger, w *watch) *outcome {
	dead := make(chan struct{})
	close(dead)
	defer w.turning(s.about.Number)()
	return b.pump(s, log, patientQueue{b.queue, nil, &plans{boot: b, spool: s, log: log}, b.statesOf(s, log), w}, logstream.PumpOptions{Resume: true, Observer: w}, nil, dead)
}
