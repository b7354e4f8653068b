package provision

import "slices"

// Status is where a provision stands. The values are those of the column
// provisions.status; the database refuses every change that is not drawn in
// transitions, whichever program asks.
type Status string

// The states of a provision.
const (
	Queued           Status = "QUEUED"
	Processing       Status = "PROCESSING"
	AwaitingApproval Status = "AWAITING_APPROVAL"
	Success          Status = "SUCCESS"
	Failed           Status = "FAILED"
	Cancelled        Status = "CANCELLED"
)

// transitions is the drawing in the design, section 2. FAILED has a way out
// only for a run whose agent was given up (CodeAgentLost) and then reported
// after all: see Provision's late settlement in the SQL contract.
var transitions = map[Status][]Status{
	Queued:           {Processing, Cancelled},
	Processing:       {Success, Failed, Cancelled, AwaitingApproval},
	AwaitingApproval: {Queued, Cancelled},
}

// CanBecome reports whether the state machine has an arrow from s to next.
// Late settlement of an agent_lost run is not among them: it depends on the
// claim and is decided by the database alone.
func (s Status) CanBecome(next Status) bool { return slices.Contains(transitions[s], next) }

// Terminal reports whether a provision in this state is over.
func (s Status) Terminal() bool { return s == Success || s == Failed || s == Cancelled }

// EndsRun reports whether a run that reports this status is over: there is
// nothing more to come under its claim.
func (s Status) EndsRun() bool { return s.Terminal() || s == AwaitingApproval }

// Operation is what a provision does to its workspace.
type Operation string

// The operations of the contract.
const (
	OperationPlan    Operation = "plan"
	OperationApply   Operation = "apply"
	OperationDestroy Operation = "destroy"
	// OperationRefresh plans only to record what changed outside: drift.
	OperationRefresh Operation = "refresh"
	// OperationUnlock releases the lock that somebody holds on the state.
	OperationUnlock Operation = "unlock"
	// OperationState reads or changes the state itself, see StateCommand.
	OperationState Operation = "state"
	// OperationInspect reads which variables a template declares, and runs
	// nothing of it. SQL alone asks for it, in a workspace of its own kind.
	OperationInspect Operation = "inspect"
)

// Operations lists all operations.
var Operations = []Operation{
	OperationPlan, OperationApply, OperationDestroy, OperationRefresh, OperationUnlock, OperationState, OperationInspect,
}

// Approval says when a plan must be approved by a person before it is applied.
type Approval string

// The rules for approval, each stricter than the one before.
const (
	ApprovalNever       Approval = "never"
	ApprovalDestructive Approval = "destructive" // when something is destroyed, replaced or forgotten
	ApprovalAlways      Approval = "always"
)

// Stage is how far a running provision has come. Stages are reached in the
// order of Stages.
type Stage string

// The stages of a run.
const (
	StageQueued   Stage = "queued" // told by SQL alone
	StageCheckout Stage = "checkout"
	StageValidate Stage = "validate"
	StageEngine   Stage = "engine"
	StageInit     Stage = "init"
	StagePlan     Stage = "plan"
	StageApproval Stage = "approval"
	StageApply    Stage = "apply"
	StageOutputs  Stage = "outputs"
	StageDone     Stage = "done"
)

// Stages lists all stages in the order a run reaches them.
var Stages = []Stage{
	StageQueued, StageCheckout, StageValidate, StageEngine, StageInit, StagePlan,
	StageApproval, StageApply, StageOutputs, StageDone,
}
