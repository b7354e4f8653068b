package logstream

import (
	"errors"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// refusal says to the child, and so to people, why the database did not accept
// an update. It carries no cause: it goes through a pipe.
func refusal(err error) *provision.Failure {
	return provision.Fail(refusalCode(err), err.Error(), nil)
}

// refusalCode is the reason the database gave where that is a code of ours,
// else what the kind of its answer comes to.
func refusalCode(err error) provision.Code {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		switch code := provision.Code(e.Reason); code {
		case provision.CodeTagMoved, provision.CodeWorkspaceElsewhere, provision.CodeWorkspaceBound,
			provision.CodeCancelled, provision.CodeAgentLost, provision.CodeAgentRestarted,
			provision.CodeStateLocked, provision.CodeOperationRefused, provision.CodeBadSnapshot,
			provision.CodeApprovalNeeded, provision.CodePlanInvalid:
			return code
		case "plan_missing":
			return provision.CodePlanInvalid
		}
	}
	switch queue.KindOf(err) {
	case queue.CancelRequested:
		return provision.CodeCancelled
	case queue.ClaimLost:
		return provision.CodeAgentLost
	case queue.Superseded:
		return provision.CodeAgentRestarted
	default:
		return provision.CodeInternal
	}
}
