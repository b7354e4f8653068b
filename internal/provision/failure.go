package provision

import (
	"errors"
	"syscall"
)

// Code names a kind of failure. It is stored in provisions.error_code, is
// stable, and is what documentation and alerts are keyed by.
type Code string

// The codes a run can end with. Those set by SQL alone say so.
const (
	CodeAgentLost        Code = "agent_lost"         // SQL: the lease ran out
	CodeAgentRestarted   Code = "agent_restarted"    // SQL: the agent came back without the run
	CodeRejected         Code = "rejected"           // SQL: a person turned its plan down
	CodeAgentDrained     Code = "agent_drained"      // the drain time ran out
	CodeExecDied         Code = "exec_died"          // the child process died without a result
	CodeRunnerNotStarted Code = "runner_not_started" // Kubernetes did not start the run's pod
	CodeSpoolFailed      Code = "spool_failed"       // the agent's disk had no room for the run's files, or for what it printed
	CodeInternal         Code = "internal"           // a defect or an exhausted machine, not the user's doing

	CodeCancelled   Code = "cancelled"
	CodeTimedOut    Code = "timed_out"
	CodeBadSnapshot Code = "bad_snapshot"

	CodeRepoRefused        Code = "repo_refused"         // the agent's policy does not allow the repository
	CodeOperationRefused   Code = "operation_refused"    // the agent's policy does not grant the operation
	CodeCheckoutFailed     Code = "checkout_failed"      // the git server did not answer as hoped
	CodeVersionNotFound    Code = "version_not_found"    // no such tag or commit
	CodeTagMoved           Code = "tag_moved"            // the tag names another commit than when first used
	CodePathRefused        Code = "path_refused"         // template_source.path leaves the checkout or is not there
	CodeTemplateInvalid    Code = "template_invalid"     // the template does not parse
	CodeVariablesInvalid   Code = "variables_invalid"    // unknown, missing or ill-typed variables
	CodeEngineMissing      Code = "engine_missing"       // no engine found and none could be installed
	CodeInitFailed         Code = "init_failed"          // init ended with an error
	CodePlanFailed         Code = "plan_failed"          // plan ended with an error
	CodeApplyFailed        Code = "apply_failed"         // apply ended with an error
	CodeStateLocked        Code = "state_locked"         // somebody holds the state's lock
	CodeStateUnsaved       Code = "state_unsaved"        // an earlier run left a state that is not stored yet
	CodeWorkspaceChanged   Code = "workspace_changed"    // its name or id is not what the agent knows
	CodeWorkspaceElsewhere Code = "workspace_elsewhere"  // its state is a file on another agent, or managed while this agent keeps files
	CodeApprovalNeeded     Code = "approval_needed"      // SQL: the plan must be approved before it is applied
	CodePlanStale          Code = "plan_stale"           // the state has moved on since the plan was made
	CodePlanInvalid        Code = "plan_invalid"         // the stored plan is not the one that was approved, or not from this cluster
	CodeApprovalExpired    Code = "approval_expired"     // SQL: nobody approved the plan in time
	CodeInputExpired       Code = "input_expired"        // SQL: nobody did in time what a person was to do
	CodeNoRoom             Code = "no_room"              // no node of a pool has room now
	CodePlacementRefused   Code = "placement_refused"    // a machine fits nowhere in its pool, or may not be there
	CodeServerNotFound     Code = "server_not_found"     // the template names a bare-metal server that the pool does not have
	CodeServerNotAvailable Code = "server_not_available" // the server is in use, or in a state in which it can't be deployed
	CodeNoServer           Code = "no_server"            // no bare-metal server with that class and those traits is free
	CodeImageNotFound      Code = "image_not_found"      // the pool has no such image, or it can't be fetched
	CodePoolUnreachable    Code = "pool_unreachable"     // what makes the machines of the pool does not answer
	CodeManualFailed       Code = "manual_failed"        // a person says that the work could not be done
	CodePolicyRefused      Code = "policy_refused"       // the agent's policy says no: its hook to the plan, or to so old an engine
	CodeSealedInvalid      Code = "sealed_invalid"       // a sealed variable cannot be opened or used
	CodeCredentials        Code = "credentials_missing"  // the agent cannot read the credentials of the workspace
	CodeStateInvalid       Code = "state_invalid"        // the stored state cannot be opened, or is not from this cluster
	CodeStateFailed        Code = "state_failed"         // a state operation ended with an error
	CodeWorkspaceBound     Code = "workspace_bound"      // the workspace belongs to another template
)

// Failure is an error made for the person who asked for the provision. Its
// message says what was tried, on what, what is wrong and what to do; it holds
// no secret and no stack trace.
type Failure struct { //nolint:errname // it is the field's word: a provision fails with a Failure
	Code    Code
	Message string
	Err     error // the cause, for the agent's own log; may be nil
}

// Fail returns a Failure with the given code and message that wraps cause.
func Fail(code Code, message string, cause error) *Failure {
	return &Failure{Code: code, Message: message, Err: cause}
}

func (f *Failure) Error() string { return f.Message }

func (f *Failure) Unwrap() error { return f.Err }

// AsFailure returns the Failure in err's chain. An error without one is our
// own fault rather than the user's: it becomes CodeInternal with its text, or
// CodeSpoolFailed where a disk has no room.
func AsFailure(err error) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return &Failure{Code: CodeSpoolFailed, Message: err.Error() + ". Make room on that disk of the agent's machine, then retry", Err: err}
	}
	return &Failure{Code: CodeInternal, Message: err.Error(), Err: err}
}

// Codes lists all codes, those that SQL alone sets included.
var Codes = []Code{
	CodeAgentLost, CodeAgentRestarted, CodeRejected, CodeAgentDrained, CodeExecDied, CodeRunnerNotStarted, CodeSpoolFailed,
	CodeInternal, CodeCancelled, CodeTimedOut, CodeBadSnapshot, CodeRepoRefused, CodeOperationRefused,
	CodeCheckoutFailed, CodeVersionNotFound, CodeTagMoved, CodePathRefused, CodeTemplateInvalid,
	CodeVariablesInvalid, CodeEngineMissing, CodeInitFailed, CodePlanFailed, CodeApplyFailed, CodeStateLocked,
	CodeStateUnsaved, CodeWorkspaceElsewhere, CodeWorkspaceChanged, CodeApprovalNeeded, CodePlanStale, CodePlanInvalid,
	CodeApprovalExpired, CodePolicyRefused, CodeSealedInvalid, CodeCredentials, CodeStateInvalid, CodeStateFailed,
	CodeWorkspaceBound, CodeInputExpired, CodeManualFailed, CodeNoRoom, CodePlacementRefused,
	CodeServerNotFound, CodeServerNotAvailable, CodeNoServer, CodeImageNotFound, CodePoolUnreachable,
}
