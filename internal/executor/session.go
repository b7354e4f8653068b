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
	timer  *time.Timer
	done   chan struct{} // the control pipe has ended

	mu      sync.Mutex
	answers map[int64]chan job.Control
}

// stopped is why a run ends before its time.
type stopped struct{ reason job.StopReason }

func (s *stopped) Error() string { return "stopped: " + string(s.reason) }

// newSession reads controls until the pipe ends. A timeout of 0 is none.
func newSession(controls *job.Reader, log *logstream.Writer, timeout time.Duration) *session {
	s := &session{log: log, done: make(chan struct{}), answers: map[int64]chan job.Control{}}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if timeout > 0 {
		s.timer = time.AfterFunc(timeout, func() { s.stop(job.StopTimedOut) })
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
}

func (s *session) stop(reason job.StopReason) { s.cancel(&stopped{reason}) }

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

// patience is how long an acknowledgement may take before the log says that it
// is waited for.
const patience = 3 * time.Second

// reportAndWait tells of progress and waits until the database has said yes.
func (s *session) reportAndWait(ctx context.Context, detail provision.Detail) error {
	n, err := s.log.UpdateAck(provision.Report{Status: provision.Processing, Detail: detail})
	if err != nil {
		return fmt.Errorf("write to the spool: %w", err)
	}
	slow := time.AfterFunc(patience, func() {
		s.log.System("Waiting for the database to acknowledge stage %s.", detail.Stage)
	})
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
