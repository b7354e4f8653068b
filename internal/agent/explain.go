package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/logstream"
	"github.com/tendril-run/tendril/internal/provision"
)

// explain says, in place of a child that died without a result, what became of
// its run, and delivers that.
func (r *run) explain(s *spool, c *child, unsaved bool) *outcome {
	how, oom := c.how(), c.outOfMemory()
	r.log.Error("the run's process ended without a result", "how", how, "memory", oom)
	if err := r.writeEnd(s, how, oom, unsaved); err != nil {
		return &outcome{err: fmt.Errorf("write the run's end: %w", err)}
	}
	return r.boot.resume(s, r.log, r.watch)
}

func (r *run) writeEnd(s *spool, how, oom string, unsaved bool) (err error) {
	lines, err := s.open(os.O_RDWR | os.O_APPEND)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lines.Close()) }()
	tail, err := s.openTail(os.O_RDWR | os.O_APPEND)
	if err != nil {
		return err
	}
	defer closeAll(tail[:]...)
	w, err := logstream.Resume(lines, tail)
	if err != nil {
		return err
	}
	report, line := verdict(how, oom, r.stopReason(), r.applying.Load())
	if unsaved {
		report.Detail.StateUnsaved = &unsaved
		line += " A state that the engine could not store is kept on this agent; its next run in the workspace stores it first."
	}
	w.System("%s", line)
	return errors.Join(w.Update(report), w.Close())
}

// verdict is what a run ends as whose process died, and the line its log ends
// with. oom is a sentence for one that was out of memory, else empty.
func verdict(how, oom string, reason job.StopReason, applying bool) (provision.Report, string) {
	return stopped(strings.TrimSpace("The process that carried this run out "+how+" before it had a result. "+oom), reason, applying)
}

// neverStarted is what a run ends as that was stopped while it waited for an
// earlier one's process.
func neverStarted(reason job.StopReason) provision.Report {
	report, _ := stopped("It waited for an earlier run's process to leave the workspace's directory, and was never started.", reason, false)
	return report
}

// stopped is what a run ends as that did not tell its end itself. What was asked
// of it is believed to be what ended it.
func stopped(what string, reason job.StopReason, applying bool) (provision.Report, string) {
	so := "Apply had not begun, so nothing was changed."
	if applying {
		so = "Apply had begun: some resources may exist that the state does not know of. Look at the log and the infrastructure, then deploy again."
	}
	end := func(status provision.Status, code provision.Code, why string) (provision.Report, string) {
		message := why + what + " " + so
		return provision.Report{Status: status, Detail: provision.Detail{ErrorCode: code, ErrorMessage: message}}, message
	}
	switch {
	case reason == job.StopCancelled && !applying:
		return end(provision.Cancelled, provision.CodeCancelled, "Cancelled. ")
	case reason == job.StopDrained:
		return end(provision.Failed, provision.CodeAgentDrained, "The agent was shut down and its drain time was over. ")
	case reason == job.StopLost:
		return end(provision.Failed, provision.CodeAgentLost, "The agent had lost its claim. ")
	case reason == job.StopTimedOut:
		return end(provision.Failed, provision.CodeTimedOut, "The time limit for a run was reached. ")
	default:
		return end(provision.Failed, provision.CodeExecDied, "")
	}
}
