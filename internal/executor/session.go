package executor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// session is this process's talk with its agent: reports one way, answers and
// the request to stop the other.
type session struct {
	log    *spool.Writer
	ctx    context.Context // ends when the run is to stop, with a *stopped as cause
	cancel context.CancelCauseFunc
	// grace ends when the grace period of a run that is being stopped is over:
	// nothing is begun any more.
	grace    context.Context
	graceEnd context.CancelFunc
	patience patience // for storing a state
	timer    *time.Timer
	// detach is closed when the run is to leave its work going on, if it can.
	detach     chan struct{}
	detachOnce sync.Once
	done       chan struct{} // the control pipe has ended

	// unsaved is whether a state of the workspace is kept here; told is whether
	// a report has said anything about it. Both belong to the run's goroutine.
	unsaved, told bool
	// ends is with what the run ends if it is to go on later: a person is to approve its
	// plan or to do its work, or another agent takes it up. nil: it does not.
	ends *provision.Report

	// result is the digest of what the run leaves for who asked for it.
	result string
	// marks are nil where the agent wants none.
	marks *marks

	mu      sync.Mutex
	answers map[int64]chan job.Control
}

// stopped is why a run ends before its time.
type stopped struct {
	reason job.StopReason
	err    error // what brought it about; nil where somebody asked for it
}

func (s *stopped) Error() string { return "stopped: " + string(s.reason) }

// newSession reads controls until the pipe ends.
func newSession(controls *job.Reader, log *spool.Writer, limit timeLimit, patience patience) *session {
	s := &session{log: log, patience: patience, done: make(chan struct{}), detach: make(chan struct{}), answers: map[int64]chan job.Control{}}
	s.grace, s.graceEnd = context.WithCancel(context.Background())
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if limit.after > 0 {
		s.timer = time.AfterFunc(limit.after, func() { s.cancel(&stopped{job.StopTimedOut, limit.reached()}) })
	}
	go s.listen(controls)
	return s
}

// wait returns when nothing of the session runs any more. The control pipe
// must be closed.
func (s *session) wait() {
	if s.timer != nil {
		s.timer.Stop()
	}
	<-s.done
	s.cancel(nil)
	s.graceEnd()
}

// setDown has the run leave its work going on, if it can.
func (s *session) setDown() { s.detachOnce.Do(func() { close(s.detach) }) }

// unlessAgentGone returns a context that ends with ctx, but not because the agent is gone:
// work that may be left going on is not cancelled for that.
func (s *session) unlessAgentGone(ctx context.Context) (context.Context, context.CancelFunc) {
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if s.stopReason() != job.StopAgentGone {
			cancel(context.Cause(ctx))
		}
	})
	return lasting, func() { stop(); cancel(nil) }
}

func (s *session) stop(reason job.StopReason) { s.cancel(&stopped{reason: reason}) }

// spoolFailed is told when what the run prints is lost.
func (s *session) spoolFailed(err error) { s.cancel(&stopped{job.StopSpoolFailed, err}) }

func (s *session) listen(controls *job.Reader) {
	defer close(s.done)
	for {
		c, err := controls.Next()
		if err != nil {
			// Its end, and whatever else can be wrong with it: nobody is there.
			s.setDown()
			s.stop(job.StopAgentGone)
			return
		}
		if c.Detach {
			s.setDown()
		}
		if c.Watched != nil {
			s.log.Watched(*c.Watched)
		}
		if c.Stop != "" {
			s.stop(c.Stop)
		}
		if c.Ack > 0 {
			s.answer(c.Ack) <- c
		}
	}
}

// answer is the channel on which the answer to update n comes; it has room for it.
func (s *session) answer(n int64) chan job.Control {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answers[n] == nil {
		s.answers[n] = make(chan job.Control, 1)
	}
	return s.answers[n]
}

// report tells of progress. A report that cannot be written (a full disk) ends
// the run: it could not tell its result either.
func (s *session) report(detail provision.Detail) error {
	detail.Marks = s.marks.take()
	if err := s.log.Update(provision.Report{Status: provision.Processing, Detail: detail}); err != nil {
		return fmt.Errorf("write to the spool: %w", err)
	}
	return nil
}

// keeps tells whether a state of the workspace is kept here. Where the spool
// does not take it, the result says it again.
func (s *session) keeps(unsaved bool) {
	s.unsaved, s.told = unsaved, true
	_ = s.report(provision.Detail{StateUnsaved: &unsaved})
}

// ackPatience is how long an acknowledgement may take before the log says that it
// is waited for.
const ackPatience = 3 * time.Second

// reportAndWait tells of progress and waits until the database has said yes.
func (s *session) reportAndWait(ctx context.Context, detail provision.Detail) error {
	_, err := s.ask(ctx, detail)
	return err
}

// places has the database place machines, all or none.
func (s *session) places(ctx context.Context, wants []provision.PlaceWanted) ([]provision.Place, error) {
	answer, err := s.ask(ctx, provision.Detail{Places: &provision.PlaceRequest{Wants: wants}})
	return answer.Places, err
}

// release gives the places of machines back.
func (s *session) release(ctx context.Context, names []string) error {
	return s.reportAndWait(ctx, provision.Detail{Places: &provision.PlaceRequest{Release: names}})
}

// ask reports something and waits for the answer. Its error is the database's refusal, or why
// the run is to stop.
func (s *session) ask(ctx context.Context, detail provision.Detail) (answer job.Control, err error) {
	detail.Marks = s.marks.take()
	n, err := s.log.UpdateAck(provision.Report{Status: provision.Processing, Detail: detail})
	if err != nil {
		return answer, fmt.Errorf("write to the spool: %w", err)
	}
	what := "that the state is stored"
	switch {
	case detail.Stage != "":
		what = "stage " + string(detail.Stage)
	case detail.Places != nil:
		what = "the places of machines"
	}
	slow := time.AfterFunc(ackPatience, func() { s.log.System("Waiting for the database to acknowledge %s.", what) })
	defer slow.Stop()
	select {
	case answer = <-s.answer(n):
		if answer.Refused != nil {
			return answer, answer.Refused
		}
		return answer, nil
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	case <-s.done:
		return answer, &stopped{reason: job.StopAgentGone}
	}
}

// stopReason is why the run was asked to stop, or "" if it was not.
func (s *session) stopReason() job.StopReason {
	if why, ok := errors.AsType[*stopped](context.Cause(s.ctx)); ok {
		return why.reason
	}
	return ""
}

// countdownEvery is how often the log says how long the engine still has.
const countdownEvery = 10 * time.Second

// watchEnding waits for the request to stop, counts the grace period down in
// the log, and kills what is left when it is over. The interrupt itself goes to
// the engine through the context. It returns when the run is over.
func (s *session) watchEnding(over <-chan struct{}, grace time.Duration) {
	select {
	case <-over:
		return
	case <-s.ctx.Done():
	}
	s.log.System("%s The run is interrupted and has %s to stop on its own.", s.stopSentence(), grace)
	deadline := time.Now().Add(grace)
	tick := time.NewTicker(countdownEvery)
	defer tick.Stop()
	limit := time.NewTimer(grace)
	defer limit.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
			s.log.System("Still stopping; %s left.", time.Until(deadline).Round(time.Second))
		case <-limit.C:
			s.log.System("It did not stop in %s: everything it started is killed now.", grace)
			s.graceEnd()
			endDescendants(s.log)
			return
		}
	}
}

func (s *session) stopSentence() string {
	why, ok := errors.AsType[*stopped](context.Cause(s.ctx))
	if !ok {
		return ""
	}
	return why.sentence()
}

func (s *stopped) sentence() string {
	switch s.reason {
	case job.StopCancelled:
		return "Cancel requested."
	case job.StopDrained:
		return "The agent is shutting down and its drain time is over."
	case job.StopLost:
		return "The agent has lost its claim on this provision."
	case job.StopTimedOut:
		return fmt.Sprintf("The time limit for a run is reached (%v).", s.err)
	case job.StopAgentGone:
		return "The agent is gone."
	case job.StopSpoolFailed:
		return fmt.Sprintf("The disk of the agent's data directory does not take what the run prints (%v); lines are lost.", s.err)
	default:
		return fmt.Sprintf("Stopped (%s).", s.reason)
	}
}

// settle writes how the run ended.
func (s *session) settle(err error) error {
	reason := s.stopReason()
	switch {
	case err == nil && s.ends != nil:
		s.ends.Detail.Marks = s.marks.take()
		return s.log.Update(*s.ends)
	case err == nil:
		// Also when a stop came too late to matter: the work is done.
		s.log.System("Done.")
		return s.log.Update(provision.Report{Status: provision.Success, Detail: provision.Detail{Stage: provision.StageDone, ResultDigest: s.result, Marks: s.marks.take()}})
	case reason == job.StopAgentGone:
		s.log.System("Stopped: %s", provision.AsFailure(err).Message)
		if s.unsaved {
			s.keeps(true) // before the agent's next start lets others at the workspace
		}
		return nil // the agent's next start says what became of it
	}
	report := provision.Report{Status: provision.Failed, Detail: provision.Detail{Marks: s.marks.take()}}
	failure := provision.AsFailure(err)
	if s.told {
		report.Detail.StateUnsaved = &s.unsaved
	}
	switch code, status, ok := stoppedAs(reason); {
	case ok && failure.Code == provision.CodeStateUnsaved:
		// What a person must know of, however the run came to it.
		failure = provision.Fail(failure.Code, s.stopSentence()+" "+sentence(failure.Message), err)
	case ok:
		report.Status = status
		failure = provision.Fail(code, s.stopSentence()+" "+sentence(failure.Message), err)
	case failure.Code == provision.CodeCancelled:
		// The database told of the cancel first, when it was asked for the apply.
		report.Status = provision.Cancelled
		failure = provision.Fail(failure.Code, "Cancel requested. "+sentence(failure.Message), err)
	}
	report.Detail.ErrorCode, report.Detail.ErrorMessage = failure.Code, failure.Message
	if s.unsaved && failure.Code != provision.CodeStateUnsaved {
		s.log.System("The state of an earlier run is still kept on this agent; the next run stores it before anything else.")
	}
	if report.Status == provision.Cancelled {
		s.log.System("Cancelled. %s", failure.Message)
	} else {
		s.log.System("Failed (%s): %s", failure.Code, failure.Message)
	}
	return s.log.Update(report)
}

// stoppedAs is what a run that was stopped ends as.
func stoppedAs(reason job.StopReason) (provision.Code, provision.Status, bool) {
	switch reason {
	case job.StopCancelled:
		return provision.CodeCancelled, provision.Cancelled, true
	case job.StopDrained:
		return provision.CodeAgentDrained, provision.Failed, true
	case job.StopLost:
		return provision.CodeAgentLost, provision.Failed, true
	case job.StopTimedOut:
		return provision.CodeTimedOut, provision.Failed, true
	case job.StopSpoolFailed:
		return provision.CodeSpoolFailed, provision.Failed, true
	default:
		return "", "", false
	}
}

// timeLimit is how long a run may take, and who says so.
type timeLimit struct {
	after time.Duration // 0: for ever
	by    string
}

// limitOf is the agent's limit for the operation, or the snapshot's where that is
// shorter. A snapshot that cannot be read has none: the run ends for it anyway.
func limitOf(j job.Job) timeLimit {
	operation := j.Assignment.Operation
	limit := timeLimit{j.Settings.TimeLimit(operation), "run.timeout in the agent's configuration"}
	if _, ok := j.Settings.Timeouts[operation]; ok {
		limit.by = fmt.Sprintf("run.timeouts.%s in the agent's configuration", operation)
	}
	snapshot, err := provision.ParseSnapshot(j.Assignment.Snapshot)
	if err != nil || snapshot.TimeoutSeconds == 0 {
		return limit
	}
	if wanted := time.Duration(snapshot.TimeoutSeconds) * time.Second; limit.after == 0 || wanted < limit.after {
		return timeLimit{wanted, "timeout_seconds in the snapshot"}
	}
	return limit
}

func (l timeLimit) reached() error { return fmt.Errorf("%s, by %s", l.after, l.by) }
