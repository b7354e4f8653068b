package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

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
	s.log.System("%s The run is interrupted and has %s to stop by itself.", s.stopSentence(), grace)
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
	case err == nil && s.awaiting != "":
		return s.log.Update(provision.Report{Status: provision.AwaitingApproval, Detail: provision.Detail{PlanDigest: s.awaiting}})
	case err == nil:
		// Also when a stop came too late to matter: the work is done.
		s.log.System("Done.")
		return s.log.Update(provision.Report{Status: provision.Success, Detail: provision.Detail{Stage: provision.StageDone, ResultDigest: s.result}})
	case reason == job.StopAgentGone:
		s.log.System("Stopped: %s", provision.AsFailure(err).Message)
		if s.unsaved {
			s.keeps(true) // before the agent's next start lets others at the workspace
		}
		return nil // the agent's next start says what became of it
	}
	report := provision.Report{Status: provision.Failed}
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
