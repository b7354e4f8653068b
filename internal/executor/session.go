package executor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/logstream"
	"github.com/tendril-run/tendril/internal/provision"
)

// session is this process's talk with its agent: reports one way, answers and
// the request to stop the other.
type session struct {
	log    *logstream.Writer
	ctx    context.Context // ends when the run is to stop, with a *stopped as cause
	cancel context.CancelCauseFunc
	// grace ends when the grace period of a run that is being stopped is over:
	// nothing is begun any more.
	grace    context.Context
	graceEnd context.CancelFunc
	patience patience // for storing a state
	timer    *time.Timer
	done     chan struct{} // the control pipe has ended

	// unsaved is whether a state of the workspace is kept here; told is whether
	// a report has said anything about it. Both belong to the run's goroutine.
	unsaved, told bool
	// awaiting is the digest of the plan with which the run ends, if it is to be
	// approved.
	awaiting string

	// result is the digest of what the run leaves for who asked for it.
	result string

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
func newSession(controls *job.Reader, log *logstream.Writer, limit timeLimit, patience patience) *session {
	s := &session{log: log, patience: patience, done: make(chan struct{}), answers: map[int64]chan job.Control{}}
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

func (s *session) stop(reason job.StopReason) { s.cancel(&stopped{reason: reason}) }

// spoolFailed is told when what the run prints is lost.
func (s *session) spoolFailed(err error) { s.cancel(&stopped{job.StopSpoolFailed, err}) }

func (s *session) listen(controls *job.Reader) {
	defer close(s.done)
	for {
		c, err := controls.Next()
		if err != nil {
			// Its end, and whatever else can be wrong with it: nobody is there.
			s.stop(job.StopAgentGone)
			return
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
	n, err := s.log.UpdateAck(provision.Report{Status: provision.Processing, Detail: detail})
	if err != nil {
		return fmt.Errorf("write to the spool: %w", err)
	}
	what := "that the state is stored"
	if detail.Stage != "" {
		what = "stage " + string(detail.Stage)
	}
	slow := time.AfterFunc(ackPatience, func() { s.log.System("Waiting for the database to acknowledge %s.", what) })
	defer slow.Stop()
	select {
	case c := <-s.answer(n):
		if c.Refused != nil {
			return c.Refused
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stopReason is why the run was asked to stop, or "" if it was not.
func (s *session) stopReason() job.StopReason {
	if why, ok := errors.AsType[*stopped](context.Cause(s.ctx)); ok {
		return why.reason
	}
	return ""
}
