package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/delivery"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// deliveries sends spools to the database: those of children that live, those of
// children that have ended, and those that an earlier boot has left. Before the database
// hears of a plan or of a state, that is stored.
type deliveries struct {
	queue  queue.Queue
	dir    *dataDir // for what the database does not take
	keys   *keys
	notes  workspaceNotes
	checks *checkNotes
	// pools are those that the runs of a workspace may use; nil: none.
	pools func(workspace string, id uuid.UUID) ([]pool.Config, error)
	// notifier is told of runs that start to wait for a person.
	notifier *notifier
	// noted gets what is known of the workspace after each state that is stored; nil: no call.
	noted func(notes []byte)
	// retrying is called at each failure: heartbeats report an outage, and its end.
	retrying func()
	// ctx ends when what is not delivered is left to the next start, which stop says.
	ctx  context.Context
	stop context.CancelFunc
}

// ongoing is the delivery of one spool while its child lives.
type ongoing struct {
	// dead is closed when the child has ended.
	dead   chan struct{}
	result chan *outcome
}

// outcome is how a delivery ended.
type outcome struct {
	delivery.Delivered
	err error
}

// progress is what a run's delivery and its supervisor tell each other.
type progress struct {
	// applying is set when the database has agreed to the apply, or is being
	// asked: from then on the run is finished, whatever becomes of the claim.
	applying atomic.Bool
	// detachable is set before applying when the work continues without a process here.
	detachable atomic.Bool
	// ending is set when the database has heard of the end, or is being told:
	// from then on it may call the claim lost, and that is as it should be.
	ending atomic.Bool
}

// begin delivers the spool of a child that lives, until it is told that the child is
// dead. acked passes the database's answers on to the child.
func (d *deliveries) begin(s *claimFiles, p *progress, log *slog.Logger, w *watch, wake <-chan struct{}, acked func(job.Control)) *ongoing {
	one := &ongoing{dead: make(chan struct{}), result: make(chan *outcome, 1)}
	places := d.newPlaceQueue(s)
	go func() {
		defer w.turning(s.about.Number)()
		one.result <- d.pump(s, p, places, log, w, delivery.PumpOptions{
			Acked: func(n int64, refused *provision.Failure) {
				acked(job.Control{Ack: n, Refused: refused, Places: places.answer()})
			},
		}, wake, one.dead)
	}()
	return one
}

// resume delivers what is left of a spool whose child has ended; p is nil for one that
// an earlier start has left.
func (d *deliveries) resume(s *claimFiles, p *progress, log *slog.Logger, w *watch) *outcome {
	dead := make(chan struct{})
	close(dead)
	defer w.turning(s.about.Number)()
	return d.pump(s, p, d.newPlaceQueue(s), log, w, delivery.PumpOptions{Resume: true}, nil, dead)
}

// pump delivers a spool until it has a result, or all of it once dead is closed.
func (d *deliveries) pump(s *claimFiles, p *progress, places *placeQueue, log *slog.Logger, w *watch, o delivery.PumpOptions, wake, dead <-chan struct{}) *outcome {
	lines, err := s.open(os.O_RDONLY)
	if err != nil {
		return &outcome{err: fmt.Errorf("open the spool: %w", err)}
	}
	defer lines.Close() //nolint:errcheck // only read
	if o.Tail, err = s.openTail(os.O_RDONLY); err != nil {
		return &outcome{err: fmt.Errorf("open the tail of the log: %w", err)}
	}
	defer closeAll(o.Tail[:]...)
	o.SetAside = func(r delivery.Refused) error {
		log.Warn("the database does not take a part of the run for its content; it is kept in rejected/, and the rest goes on", "kind", r.Kind, "number", r.Number, "refused", r.Why)
		return s.setAside(r)
	}
	trouble := outage{log: log, what: "deliver the run's lines", patience: time.Minute}
	o.OnRetry = func(err error) {
		log.Debug("delivering again after a failure", "error", err)
		trouble.met(err)
		d.retrying()
	}
	o.Observer = w
	q := patientQueue{d.queue, p, &plans{to: d, spool: s, log: log}, &stateQueue{to: d, spool: s, log: log}, places, w}
	delivered, err := delivery.NewPump(q, s.claim, lines, o).Run(d.ctx, wake, dead)
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

// patientQueue waits for a token or a password that is refused as for a database
// that is away: it may be valid again, and the lines are safe meanwhile. It also
// notices when the apply is agreed to and when the run ends, and stores a plan
// that awaits a person or that another agent may carry on.
type patientQueue struct {
	queue.Queue
	progress *progress // nil: it is of a run of an earlier boot
	plans    *plans
	states   *stateQueue
	places   *placeQueue
	watch    *watch
}

// AppendLog implements delivery.Queue.
func (q patientQueue) AppendLog(ctx context.Context, claim uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	began := time.Now()
	next, err := q.Queue.AppendLog(ctx, claim, first, chunks)
	q.watch.trace.called("append_provision_log", began, err, false)
	if err == nil {
		q.watch.trace.stored(began, chunks)
	}
	if err == nil && next < first {
		q.states.rewound = true
	}
	return next, patiently(err)
}

// Report implements delivery.Queue.
func (q patientQueue) Report(ctx context.Context, claim uuid.UUID, report provision.Report) error {
	waits := 2 * storeLimit // a plan or a result may go before it
	if report.Detail.StateWrite != nil {
		waits = stateLimit
	}
	q.watch.Turns(waits)
	report.Detail.Marks = nil // for our trace, which has them
	if stored, err := q.states.report(&report); stored {
		return err
	}
	if asked, err := q.places.report(ctx, report); asked {
		return err
	}
	if len(report.Detail.Machines) > 0 {
		report.Detail.Machines = q.plans.to.keys.signChecks(q.plans.spool.about.Workspace, report.Detail.Machines)
	}
	report, err := q.leave(claim, report)
	if err != nil {
		return err
	}
	agreeing := q.progress != nil && report.Detail.Stage == provision.StageApply
	if agreeing {
		q.progress.detachable.Store(report.Detail.Detachable)
		q.progress.applying.Store(true) // from now on: the answer may be lost on its way
	}
	if q.progress != nil && report.Status.EndsRun() {
		q.progress.ending.Store(true) // likewise
	}
	began := time.Now()
	err = patiently(q.Queue.Report(ctx, claim, report))
	q.watch.trace.called("update_provision_status", began, err, report.Status.EndsRun())
	if err == nil {
		q.noteChecks(report.Detail.Machines)
	}
	if err == nil && report.Status.EndsRun() {
		q.watch.ended(report)
	}
	if err == nil && report.Status == provision.AwaitingInput {
		q.plans.to.notifier.awaitsInput(q.plans.spool)
	}
	if agreeing && err != nil && queue.KindOf(err) != queue.Unavailable {
		q.progress.applying.Store(false)
	}
	return err
}

// noteChecks remembers the checks of a report that is delivered: older ones are no longer done.
func (q patientQueue) noteChecks(listed []provision.Machine) {
	for _, m := range listed {
		if m.Check != nil && m.Check.Command != nil {
			if err := q.plans.to.checks.note(q.plans.spool.about.Workspace, m.Check.Command.Made); err != nil {
				q.plans.log.Warn("an older health check could be done after this run's", "error", err)
			}
			return // all of a report are made at once
		}
	}
}

// leave stores what a report speaks of, before the database hears of it: a plan, or a
// result. Where that is lost the report is another.
func (q patientQueue) leave(claim uuid.UUID, report provision.Report) (provision.Report, error) {
	var err error
	lost := q.plans.lost
	switch {
	case (report.Status.Awaits() || report.Detail.Detachable) && report.Detail.PlanDigest != "":
		err = q.plans.keep(claim, report.Detail.PlanDigest)
	case report.Detail.ResultDigest != "":
		err, lost = q.plans.leave(claim, report.Detail.ResultDigest), q.plans.notLeft
	}
	switch said, ok := errors.AsType[*queue.Error](err); {
	case err == nil, ok && said.Kind == queue.ClaimLost: // or the report has arrived already
		return report, nil
	case ok && said.Kind != queue.ContentRefused:
		return report, patiently(err)
	case report.Detail.Detachable: // the run waits for the answer, and must not go on
		q.plans.log.Error("the run's plan cannot be stored", "error", err)
		return report, &queue.Error{Kind: queue.Refused, Reason: string(provision.CodePlanInvalid), Message: "the agent could not store the plan for the agent that takes the run up; its log has the details", Err: err}
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
