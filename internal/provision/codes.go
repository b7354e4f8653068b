package provision

// Codes lists all codes, those that SQL alone sets included.
var Codes = []Code{
	CodeAgentLost, CodeAgentRestarted, CodeRejected, CodeAgentDrained, CodeExecDied, CodeSpoolFailed,
	CodeInternal, CodeCancelled, CodeTimedOut, CodeBadSnapshot, CodeRepoRefused, CodeOperationRefused,
	CodeCheckoutFailed, CodeVersionNotFound, CodeTagMoved, CodePathRefused, CodeTemplateInvalid,
	CodeVariablesInvalid, CodeEngineMissing, CodeInitFailed, CodePlanFailed, CodeApplyFailed, CodeStateLocked,
	CodeStateUnsaved, CodeWorkspaceElsewhere, CodeWorkspaceChanged, CodeApprovalNeeded, CodePlanStale, CodePlanInvalid,
	CodeApprovalExpired, CodePolicyRefused, CodeSealedInvalid, CodeCredentials, CodeStateInvalid, CodeStateFailed,
	CodeWorkspaceBound,
}
