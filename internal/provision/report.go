package provision

import (
	"encoding/json"
	"slices"
	"time"
)

// Report is what a run tells the database about itself, as it goes and at its
// end. Only what is set is changed.
type Report struct {
	// Status is Processing while the run goes on, else how it ended.
	Status Status `json:"status"`
	Detail Detail `json:"detail"`
}

// Detail is the p_detail of update_provision_status; at most MaxDetail bytes
// as JSON.
type Detail struct {
	// Number numbers the reports of a claim from 1; the database ignores a
	// repeat. 0: not numbered.
	Number int64 `json:"n,omitempty"`

	Stage   Stage `json:"stage,omitempty"`
	Percent *int  `json:"percent,omitempty"` // 0…100

	Commit        string `json:"commit,omitempty"`
	Engine        string `json:"engine,omitempty"` // "terraform" or "tofu"
	EngineVersion string `json:"engine_version,omitempty"`
	// LocalState binds the workspace to this agent's instance, because its
	// state is a file in the agent's data directory.
	LocalState bool `json:"local_state,omitempty"`
	// StateUnsaved says whether this agent keeps a state of the workspace that
	// an engine could not store. While it does, only this agent may run the
	// workspace. Nil says nothing.
	StateUnsaved *bool `json:"state_unsaved,omitempty"`

	// PlanDigest goes with AwaitingApproval, and with AwaitingInput where the plan is not
	// approved: the plan that awaits a person, SHA-256 in hexadecimal. With StageApply it
	// is the plan that is to be applied.
	PlanDigest string `json:"plan_digest,omitempty"`
	// Detachable goes with StageApply: the work continues by itself when the run is set
	// down, and the agent that takes it up carries on the plan of PlanDigest.
	Detachable bool `json:"detachable,omitempty"`
	// Input goes with AwaitingInput: what a person is to do.
	Input *InputRequest `json:"input,omitempty"`
	// ResultDigest goes with Success: what the run leaves for who asked for it,
	// SHA-256 in hexadecimal of the sealed bytes.
	ResultDigest string `json:"result_digest,omitempty"`
	// Running are the resources being worked on; empty but not nil: none.
	Running []Running `json:"running,omitzero"`
	// Drift is what a refresh found to have changed outside; empty but not nil:
	// nothing has.
	Drift []PlannedChange `json:"drift,omitzero"`
	// StateWrite goes from a run to its agent alone, which stores the state.
	StateWrite *StateWrite `json:"state_write,omitempty"`
	// Marks likewise say how long parts of a stage took, for the agent's trace.
	Marks []Mark `json:"marks,omitempty"`
	// Places likewise asks for places of machines: the agent gives the run the answer.
	Places *PlaceRequest `json:"places,omitempty"`
	// StateLock is who holds the state's lock, with CodeStateLocked.
	StateLock *StateLock `json:"state_lock,omitempty"`

	// Variables are what the template declares; empty but not nil: none.
	Variables []Variable `json:"variables,omitzero"`
	// About is what the template says of itself, told with Variables.
	About *About `json:"about,omitempty"`

	Plan    *PlanSummary      `json:"plan,omitempty"`
	Outputs map[string]Output `json:"outputs,omitempty"`
	// Resources are those of the whole workspace; empty but not nil: none are
	// left. ResourcesOmitted is how many there was no room for.
	Resources        []Resource `json:"resources,omitzero"`
	ResourcesOmitted int        `json:"resources_omitted,omitempty"`
	// Machines are those of the whole workspace; empty but not nil: none are left.
	// MachinesOmitted is how many there was no room for.
	Machines        []Machine `json:"machines,omitzero"`
	MachinesOmitted int       `json:"machines_omitted,omitempty"`
	Events          []Event   `json:"events,omitempty"`

	ErrorCode    Code   `json:"error_code,omitempty"`
	ErrorMessage string `json:"error_message,omitempty"`

	// SetAside says, in a line of the log that the database writes, what of the
	// report was left out because the database did not take it, and why; or what a
	// run waits for that has no log of its own yet.
	SetAside string `json:"set_aside,omitempty"`
}

// Mark is a part of a run that has ended, such as one start of the engine. Its name is one of
// ours, and holds no value.
type Mark struct {
	Name  string    `json:"name"`
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
}

// PlanSummary counts what a plan will do.
type PlanSummary struct {
	Add     int `json:"add"`
	Change  int `json:"change"`
	Destroy int `json:"destroy"`
	Replace int `json:"replace"`
	Import  int `json:"import"`
	Move    int `json:"move"`
	// Forget counts what leaves the state and stays in the world.
	Forget int `json:"forget,omitempty"`
	// Resources lists what changes; at most MaxPlanResources.
	Resources []PlannedChange `json:"resources,omitempty"`
	// Truncated is how many changes are not listed.
	Truncated int `json:"truncated,omitempty"`
}

// MaxPlanResources is how many changes a summary lists.
const MaxPlanResources = 1000

// Empty reports whether the plan would change no resource.
func (p PlanSummary) Empty() bool {
	return p.Add+p.Change+p.Destroy+p.Replace+p.Import+p.Move+p.Forget == 0
}

// PlannedChange is one resource of a plan.
type PlannedChange struct {
	Address string `json:"address"`
	// Action is create, update, delete, replace, import, move or forget.
	Action string `json:"action"`
	// From is where a moved resource was before, ID what is imported.
	From string `json:"from,omitempty"`
	ID   string `json:"id,omitempty"`
	// Reason is why, in the engine's word, where it gives one:
	// replace_because_tainted, delete_because_no_resource_config and the like.
	Reason string `json:"reason,omitempty"`
	// Attributes are those that change; at most MaxPlanAttributes.
	Attributes []AttributeChange `json:"attributes,omitempty"`
	// Truncated is how many attributes are not listed.
	Truncated int `json:"truncated,omitempty"`
}

// AttributeChange is one attribute of a resource that changes.
type AttributeChange struct {
	// Path is such as "tags.name" or "ports[0]".
	Path string `json:"path"`
	// Before and After are JSON, each absent where there is none, where either
	// side is sensitive, and where it is too long to be shown.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// Sensitive, Unknown (known after the apply) and Long say why a value is not
	// shown; Replaces, that this attribute makes the resource be replaced.
	Sensitive bool `json:"sensitive,omitempty"`
	Unknown   bool `json:"unknown,omitempty"`
	Long      bool `json:"long,omitempty"`
	Replaces  bool `json:"replaces,omitempty"`
}

// MaxPlanAttributes is how many attributes of one resource a summary lists.
const MaxPlanAttributes = 100

// Running is a resource being worked on.
type Running struct {
	Address string    `json:"address"`
	Action  string    `json:"action,omitempty"`
	Since   time.Time `json:"since"`
	// Step is the label of the step that it is in, at most MaxStepLabel characters, and
	// Percent how much of that is done.
	Step    string `json:"step,omitempty"`
	Percent *int   `json:"percent,omitempty"`
}

// MaxStepLabel is the most characters that the label of a step has.
const MaxStepLabel = 200

// StateWrite is a managed state that a run has written, sealed, into one of the
// two files that its agent has handed it.
type StateWrite struct {
	Number int64  `json:"number"` // the version
	Slot   int    `json:"slot"`   // 0 or 1
	Digest string `json:"digest"` // SHA-256 of what is in the file, in hexadecimal
	// Serial and Lineage are what the state says about itself.
	Serial  uint64 `json:"serial"`
	Lineage string `json:"lineage"`
}

// StateLock is who holds the lock of a state, as far as the engine says.
type StateLock struct {
	ID        string `json:"id"`
	Who       string `json:"who,omitempty"`
	Operation string `json:"operation,omitempty"`
	Created   string `json:"created,omitempty"`
}

// Output is one output value of a template. A sensitive one carries no value,
// only the marker Sensitive.
type Output struct {
	Type      json.RawMessage `json:"type,omitempty"` // Terraform's type, as JSON
	Value     json.RawMessage `json:"value,omitempty"`
	Sensitive bool            `json:"sensitive,omitempty"`
	// Sealed is the value of a sensitive one as JSON in an armoured age message
	// to Snapshot.RequesterKey, if there is such a key.
	Sealed string `json:"sealed,omitempty"`
	// Omitted says that the value was too large to be recorded.
	Omitted bool `json:"omitted,omitempty"`
}

// Resource is one object that exists in a workspace. It holds no attribute
// that a provider marks sensitive.
type Resource struct {
	Address    string `json:"address"`
	Type       string `json:"type"`
	Provider   string `json:"provider,omitempty"`
	ExternalID string `json:"external_id,omitempty"`
	// IPAddresses are those that its attributes say openly.
	IPAddresses []string `json:"ip_addresses,omitempty"`
	// Status is "created" or, for what a failed apply left half made, "tainted".
	Status string `json:"status,omitempty"`
}

// About is what a template says of itself in tendril.hcl.
type About struct {
	Title       string `json:"title,omitempty"`       // at most 100 characters
	Description string `json:"description,omitempty"` // at most 4,000
	Icon        string `json:"icon,omitempty"`        // lowercase letters, digits and dashes; at most 40
	// Provisioner is what carries it out: terraform, script, manual or machine.
	Provisioner string `json:"provisioner"`
	// File is tendril.hcl itself where it has machines that get places in pools, at most
	// MaxTemplateFile bytes. The database keeps it beside the inspection, for previews.
	File string `json:"file,omitempty" hidden:"true"`
	// Readme is the template's README.md, at most MaxReadme bytes; the database keeps it likewise.
	Readme string `json:"readme,omitempty" hidden:"true"`
}

// MaxReadme is the largest README.md of a template that is kept, in bytes.
const MaxReadme = 32 << 10

// MaxTemplateFile is the largest tendril.hcl that is kept for previews of a placement.
const MaxTemplateFile = 64 << 10

// Machine is one machine of a workspace as people see it. No credential is in it.
type Machine struct {
	// Name is its identity within the workspace; at most MaxMachineName characters.
	Name   string        `json:"name"`
	Status MachineStatus `json:"status"`
	// Address is that of its resource in the state, by which targets name it.
	Address    string `json:"address,omitempty"`
	Pool       string `json:"pool,omitempty"`
	Node       string `json:"node,omitempty"`
	ExternalID string `json:"external_id,omitempty"`
	// IPAddresses has the one to reach it at first.
	IPAddresses []string          `json:"ip_addresses,omitempty"`
	SSHPort     int               `json:"ssh_port,omitempty"`
	SSHUser     string            `json:"ssh_user,omitempty"`
	Image       string            `json:"image,omitempty"`
	Cores       int               `json:"cores,omitempty"`
	MemoryMiB   int               `json:"memory_mib,omitempty"`
	DiskGiB     int               `json:"disk_gib,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	// Actions are what a run can do to this machine alone, see MachineActions.
	Actions []MachineAction `json:"actions,omitempty"`
	// Check says how its health is checked; nil: it is not.
	Check *HealthCheck `json:"check,omitempty"`
}

// MachineAction is what a run can do to one machine.
type MachineAction string

// The actions on one machine.
const (
	MachineDestroys  MachineAction = "destroy"
	MachineRebuilds  MachineAction = "rebuild"
	MachineRefreshes MachineAction = "refresh"
	MachinePowers    MachineAction = "power"
	MachineReveals   MachineAction = "reveal" // its credentials
	MachineRescues   MachineAction = "rescue" // boots it from a rescue system
	MachineUnrescues MachineAction = "unrescue"
)

// MachineActions lists all actions on one machine.
var MachineActions = []MachineAction{MachineDestroys, MachineRebuilds, MachineRefreshes, MachinePowers, MachineReveals, MachineRescues, MachineUnrescues}

// MachineStatus is what a machine was doing when it was last reported.
type MachineStatus string

// The statuses that are reported; one that is reported no more is gone.
const (
	MachineCreating MachineStatus = "creating"
	MachineRunning  MachineStatus = "running"
	MachineStopped  MachineStatus = "stopped"
	MachineFailed   MachineStatus = "failed"
	MachineUnknown  MachineStatus = "unknown"
)

// Event is something that happened to one resource during an apply.
type Event struct {
	// Kind is resource_started, resource_finished or resource_failed, or the
	// same of a provisioner, whose name is the Action then; or machine_intent,
	// before anything is done to the machine whose id is the Message, and machine_found, when
	// that is done or another agent would find the machine by its mark; or step_declared,
	// step_started, step_finished or step_failed: the Action is the step's id, the Message
	// its label, and the Address the machine's, if the step is of one.
	Kind    string    `json:"kind"`
	Address string    `json:"address,omitempty"`
	Action  string    `json:"action,omitempty"`
	Message string    `json:"message,omitempty"`
	Seconds float64   `json:"seconds,omitempty"`
	At      time.Time `json:"at"`
}

// Status is where a provision stands. The values are those of the column
// provisions.status; the database refuses every change that is not drawn in
// transitions, whichever program asks.
type Status string

// The states of a provision.
const (
	Queued           Status = "QUEUED"
	Processing       Status = "PROCESSING"
	AwaitingApproval Status = "AWAITING_APPROVAL"
	AwaitingInput    Status = "AWAITING_INPUT"
	Success          Status = "SUCCESS"
	Failed           Status = "FAILED"
	Cancelled        Status = "CANCELLED"
	// SetDown is what a run reports whose work continues by itself: the provision is queued
	// again, for another agent to take up. No provision has it.
	SetDown Status = "SET_DOWN"
)

// transitions is the drawing in the design, section 2. FAILED has a way out
// only for a run whose agent was given up (CodeAgentLost) and then reported
// after all: see Provision's late settlement in the SQL contract.
var transitions = map[Status][]Status{
	Queued:           {Processing, Cancelled},
	Processing:       {Success, Failed, Cancelled, AwaitingApproval, AwaitingInput, Queued},
	AwaitingApproval: {Queued, Cancelled},
	AwaitingInput:    {Queued, Cancelled},
}

// CanBecome reports whether the state machine has an arrow from s to next.
// Late settlement of an agent_lost run is not among them: it depends on the
// claim and is decided by the database alone.
func (s Status) CanBecome(next Status) bool { return slices.Contains(transitions[s], next) }

// Terminal reports whether a provision in this state is over.
func (s Status) Terminal() bool { return s == Success || s == Failed || s == Cancelled }

// EndsRun reports whether a run that reports this status is over: there is
// nothing more to come under its claim.
func (s Status) EndsRun() bool { return s.Terminal() || s.Awaits() || s == SetDown }

// Awaits reports whether a provision in this state waits for a person.
func (s Status) Awaits() bool { return s == AwaitingApproval || s == AwaitingInput }

// Operation is what a provision does to its workspace.
type Operation string

// The operations of the contract.
const (
	OperationPlan    Operation = "plan"
	OperationApply   Operation = "apply"
	OperationDestroy Operation = "destroy"
	// OperationRefresh plans only to record what changed outside: drift.
	OperationRefresh Operation = "refresh"
	// OperationPower starts, stops or restarts machines, or boots a rescue system, see Power. It has
	// no plan.
	OperationPower Operation = "power"
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
	OperationPlan, OperationApply, OperationDestroy, OperationRefresh, OperationPower, OperationUnlock, OperationState, OperationInspect,
}

// Power is what to do with a machine's power, or with what it boots from.
type Power string

// The actions on a machine's power.
const (
	PowerStart    Power = "start"
	PowerStop     Power = "stop"
	PowerRestart  Power = "restart"
	PowerRescue   Power = "rescue"
	PowerUnrescue Power = "unrescue"
)

// Powers lists all actions on a machine's power.
var Powers = []Power{PowerStart, PowerStop, PowerRestart, PowerRescue, PowerUnrescue}

// ServerHealth is how a bare-metal server is.
type ServerHealth string

// How a bare-metal server may be.
const (
	ServerOK       ServerHealth = "ok"
	ServerWarning  ServerHealth = "warning"  // it works, and somebody should read why
	ServerCritical ServerHealth = "critical" // something failed, and it stays so until somebody acts
	ServerUnknown  ServerHealth = "unknown"  // nobody knows: its BMC does not answer
)

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
	StageInput    Stage = "input"
	StageApply    Stage = "apply"
	StageOutputs  Stage = "outputs"
	StageDone     Stage = "done"
)

// Stages lists all stages in the order a run reaches them.
var Stages = []Stage{
	StageQueued, StageCheckout, StageValidate, StageEngine, StageInit, StagePlan,
	StageApproval, StageInput, StageApply, StageOutputs, StageDone,
}
