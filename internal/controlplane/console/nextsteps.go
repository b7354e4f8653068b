package console

import "github.com/tendril-run/tendril/internal/provision"

// nextStep is what a failure means and what a person does then.
type nextStep struct {
	What string // a heading: what happened
	Do   string // what to do
}

// nextSteps has an entry for each code in package provision (a test sees to it).
// The run's own message stands beside it and names what it is about.
var nextSteps = map[provision.Code]nextStep{
	provision.CodeAgentLost:      {"The agent was lost", "Nobody saw the end of this run. If its agent comes back, its result is recorded here. If apply had begun, the workspace is held until then: look at what exists, plan again, and have an admin release the workspace only when that agent's Terraform is surely dead."},
	provision.CodeAgentRestarted: {"The agent was restarted", "The run ended with it. Plan again to see what is still to be done; if apply had begun, look first at what exists."},
	provision.CodeRejected:       {"The plan was rejected", "Nothing was changed. Change what was objected to, and deploy again."},
	provision.CodeAgentDrained:   {"The agent was shut down", "It waited as long as it may, then stopped the run. Plan again when an agent is back; a longer drain time (run.drain_timeout) lets long runs finish."},
	provision.CodeExecDied:       {"The run's process died", "Often it was out of memory: see the agent's log and the machine's. Then retry."},
	provision.CodeSpoolFailed:    {"The agent's disk is full or broken", "Make room in the agent's data directory, then retry. Lines of this log may be missing."},
	provision.CodeInternal:       {"Something went wrong that is not of your doing", "Retry once. If it fails again, give the message and the agent's log to who runs Tendril."},

	provision.CodeCancelled:   {"Cancelled", "If apply had begun, some of it is done: plan again to see what is left."},
	provision.CodeTimedOut:    {"The time limit was reached", "Plan again to see what is left. Give it more time (timeout_seconds in the snapshot, up to the agent's run.timeout)."},
	provision.CodeBadSnapshot: {"The request cannot be understood", "The message names what is wrong by its path. Mend that, and deploy again."},

	provision.CodeRepoRefused:        {"The agent does not allow this repository", "Have who runs the agent add it (policy.repos in its configuration), or take a template that is allowed."},
	provision.CodeOperationRefused:   {"The agent does not grant this operation", "Have who runs the agent grant it (policy.operations in its configuration)."},
	provision.CodeCheckoutFailed:     {"The template could not be fetched", "See whether the git server answers the agent, and whether its credentials for it are valid. Then retry."},
	provision.CodeVersionNotFound:    {"There is no such version of the template", "Push the tag, or deploy a version that exists."},
	provision.CodeTagMoved:           {"The tag names another commit than before", "Give the new commit a new tag and deploy that, or deploy the full commit."},
	provision.CodePathRefused:        {"The template's directory is not there", "Correct the path in the template's source, and deploy again."},
	provision.CodeTemplateInvalid:    {"The template has a mistake", "The message says where. Mend it, tag it anew, and deploy that version."},
	provision.CodeVariablesInvalid:   {"The variables do not fit the template", "The message names each of them. Deploy again with what is wanted."},
	provision.CodeEngineMissing:      {"There is no engine to run it with", "See whether the agent may download it, put it on the agent's machine, or ask for a version that is there. Then retry."},
	provision.CodeInitFailed:         {"Terraform could not be initialised", "Mostly a provider, a module or the state's backend cannot be reached, or its credentials are wrong: the log says which. Then retry."},
	provision.CodePlanFailed:         {"No plan could be made", "Nothing was changed. The first error in the log says what is wrong: mend the variables or the template, and deploy again."},
	provision.CodeApplyFailed:        {"The apply failed", "What was done before the error stays, and is recorded below. Mend what the first error says, then plan again: only what is left is done."},
	provision.CodeStateLocked:        {"Somebody else holds the state's lock", "Wait for them and retry. If whoever it is will not come back, an admin takes the lock away on the workspace's page."},
	provision.CodeStateUnsaved:       {"A state is not stored yet", "An agent keeps what an apply has recorded and could not store. Mend what kept it from it (the message says), then deploy again: it is stored before anything else."},
	provision.CodeWorkspaceChanged:   {"The workspace is not the one that the agent knows", "If it was renamed on purpose, ask the agent's operator to accept it (tendril workspaces accept). Otherwise find out who changed the row."},
	provision.CodeWorkspaceElsewhere: {"The state is a file on another agent", "Start that agent, or move the state to a shared backend."},
	provision.CodeApprovalNeeded:     {"The plan must be approved first", "Deploy again: the plan then waits here for somebody who may approve it."},
	provision.CodePlanStale:          {"The state has changed since the plan", "What was approved fits no more, so nothing was changed. Plan again, look at it, and approve that."},
	provision.CodePlanInvalid:        {"The stored plan does not fit", "Nothing was changed. Plan again, look at it, and approve that."},
	provision.CodeApprovalExpired:    {"Nobody approved the plan in time", "Nothing was changed. Plan again if it is still wanted."},
	provision.CodePolicyRefused:      {"The policy does not allow this plan", "Nothing was changed. The log has what the policy says: change the request or the template, and deploy again."},
	provision.CodeSealedInvalid:      {"A sealed variable cannot be opened", "Enter its value again, so that it is sealed for this cluster, workspace and template, and deploy again."},
	provision.CodeCredentials:        {"The workspace's credentials cannot be read", "Have who runs the agent look at its [[credentials]] and the files they name. Then retry."},
	provision.CodeStateInvalid:       {"The stored state cannot be used", "Nothing was changed. Do not deploy until a person has looked at it: see the versions of the state on the workspace's page."},
	provision.CodeStateFailed:        {"The operation on the state failed", "The message says why. The state is as it was unless it says otherwise."},
	provision.CodeWorkspaceBound:     {"The workspace belongs to another template", "Deploy to another workspace, or have an admin rebind this one."},
}

// next is what to do about a code; also one that a newer agent has.
func next(code string) nextStep {
	if step, ok := nextSteps[provision.Code(code)]; ok {
		return step
	}
	return nextStep{sentence(code), "Look at the log, mend what it says, and deploy again."}
}

// waitSteps say what ends each reason for waiting that why_waiting has; the words
// are its own. Links are the template's.
var waitSteps = map[string]string{
	"workspace_locked":   "It goes on when the workspace is unlocked: who locked it, or an admin, does that on the workspace's page.",
	"workspace_held":     "It is free when that agent comes back. Should it not, an admin releases the workspace on its page.",
	"workspace_busy":     "It goes on when that run is over.",
	"workspace_reserved": "It goes on when that one is decided and over.",
	"awaits_approval":    "Look at the plan, then approve or reject it.",
	"higher_priority":    "It goes on when they are over. Cancel what is not needed.",
	"queued_behind":      "It goes on when they are over. Cancel what is not needed.",
	"not_due":            "Nothing needs to be done. Cancel it if you do not want to wait.",
	"cluster_paused":     "An admin resumes the cluster on its page.",
	"no_agent":           "Start an agent there. The cluster's page has the command.",
	"home_away":          "Start that agent again, with the data directory that it had.",
	"state_kept":         "Start that agent again. Should it not come back, an admin gives that state up by releasing the workspace.",
	"agent_too_old":      "Upgrade the cluster's agents.",
	"operation_refused":  "Have an agent grant it (policy.operations in its configuration), or cancel it.",
	"slots_busy":         "It goes on when one of them is over. For more at once, raise an agent's slots or start another agent.",
	"engine_missing":     "See why that run could not get it, or cancel this one.",
}
