package agent

import (
	"strings"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

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

// neverHandedOver is what a run ends as that was stopped before its runner had it.
func neverHandedOver(reason job.StopReason) provision.Report {
	report, _ := stopped("It waited for its runner to start, and was never handed over.", reason, false)
	return report
}

// stopped is what a run ends as that did not tell its end itself. What was asked
// of it is believed to be what ended it.
func stopped(what string, reason job.StopReason, applying bool) (provision.Report, string) {
	so := "Apply had not begun, so nothing was changed."
	if applying {
		so = "Apply had begun: some resources may exist that the state does not know of. Check the log and the infrastructure, then deploy again."
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

// neverFetched is what a run ends as that was stopped meanwhile.
func neverFetched(reason job.StopReason) provision.Report {
	report, _ := stopped("It waited for what it needs from the database, and was never started.", reason, false)
	return report
}

// failed is the report of a run that Tendril itself failed on.
func failed(message string) provision.Report {
	return provision.Report{Status: provision.Failed, Detail: provision.Detail{
		ErrorCode: provision.CodeInternal, ErrorMessage: message,
	}}
}
