package provisioner

import "encoding/json"

// Log is a line for the run's log.
type Log struct {
	Level   Level  `json:"level,omitempty"`
	Message string `json:"message"`
}

// Level says how much a line of the log matters. The zero Level is info.
type Level string

// The levels.
const (
	LevelDebug Level = "debug"
	LevelInfo  Level = "info"
	LevelWarn  Level = "warn"
	LevelError Level = "error"
)

// Step says how far a stage of the work is.
type Step struct {
	// ID is the stage's: messages of the same id are about the same stage.
	ID string `json:"id"`
	// Label is the stage's name for people, such as "Waiting for network".
	Label string `json:"label,omitempty"`
	// Percent is from 0 to 100 and never goes back. At 100 the stage is done.
	Percent float64 `json:"percent" jsonschema:"minimum=0,maximum=100"`
	// Machine is the id of the machine that the stage belongs to, if it belongs to one.
	Machine string `json:"machine,omitempty"`
}

// Change is one thing that a plan would do, to a machine or to something else.
type Change struct {
	// Machine is a machine's id.
	Machine string `json:"machine,omitempty"`
	// Resource names what is no machine, such as "network/lan". A change has either.
	Resource   string      `json:"resource,omitempty"`
	Action     Action      `json:"action"`
	Attributes []Attribute `json:"attributes,omitempty"`
	// Why explains the change to the person who approves it.
	Why string `json:"why,omitempty"`
}

// Action is what a change, or an intent, does.
type Action string

// The actions. An intent is for create, replace or destroy.
const (
	ActionCreate  Action = "create"
	ActionChange  Action = "change"
	ActionReplace Action = "replace"
	ActionDestroy Action = "destroy"
	ActionNone    Action = "none"
)

// Attribute is one value that a change alters.
type Attribute struct {
	Name string `json:"name"`
	// Before is null for what isn't there yet.
	Before json.RawMessage `json:"before,omitempty"`
	// After is null for what goes away.
	After json.RawMessage `json:"after,omitempty"`
	// Sensitive hides both values from people.
	Sensitive bool `json:"sensitive,omitempty"`
}

// Intent says what the program is about to do, before it does it.
type Intent struct {
	// ID is the program's own. The acknowledgement has it.
	ID string `json:"id"`
	// Machine is the machine's id.
	Machine string `json:"machine"`
	Action  Action `json:"action"`
	// ExternalID is the id that the machine has, or will have, in its cloud.
	ExternalID string `json:"external_id,omitempty"`
	// Name is the name that the machine will have there, where its id isn't known yet.
	Name string `json:"name,omitempty"`
}

// Machine says what a machine is now. Each one replaces the one before it.
type Machine struct {
	// ID is the machine's id from the request.
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// ExternalID is the machine's id in its cloud.
	ExternalID string `json:"external_id,omitempty"`
	// Node is the host that it runs on.
	Node string `json:"node,omitempty"`
	// Address is the IP address to reach it at.
	Address string `json:"address,omitempty"`
	// Addresses are all its IP addresses.
	Addresses []string `json:"addresses,omitempty"`
	// SSHPort is 22 where it is left out.
	SSHPort int           `json:"ssh_port,omitempty" jsonschema:"minimum=0,maximum=65535"`
	Status  MachineStatus `json:"status"`
	// Credentials, such as root_password, go to the sealed state and nowhere else.
	Credentials map[string]string `json:"credentials,omitempty"`
}

// CredentialUser is the credential that is no secret: the name of the user whom the others
// sign in. Such a name is a word as others are, student for example, which logs and names of
// machines have as well.
const CredentialUser = "user"

// RescuePassword is the credential that signs in to a machine's rescue system. Tendril forgets it
// when the machine has left that.
const RescuePassword = "rescue_password"

// Secrets are the values of the machine's credentials that are masked wherever they appear.
func (m Machine) Secrets() (secrets []string) {
	for name, value := range m.Credentials {
		if name != CredentialUser {
			secrets = append(secrets, value)
		}
	}
	return secrets
}

// MachineStatus is what a machine is doing.
type MachineStatus string

// What a machine may be doing. Report gone only for a machine that you know doesn't exist,
// and unknown where you couldn't ask.
const (
	StatusCreating MachineStatus = "creating"
	StatusRunning  MachineStatus = "running"
	StatusStopped  MachineStatus = "stopped"
	StatusFailed   MachineStatus = "failed"
	StatusUnknown  MachineStatus = "unknown"
	StatusGone     MachineStatus = "gone"
)

// Output is a value that the run gives to people and to other runs.
type Output struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
	// Sensitive values are stored sealed and never shown.
	Sensitive bool `json:"sensitive,omitempty"`
}

// State is what the program wants to know the next time. Each one replaces the one before.
type State struct {
	Value json.RawMessage `json:"value"`
}

// Result ends a conversation.
type Result struct {
	OK bool `json:"ok"`
	// Code is a short word for what is wrong. See the constants.
	Code string `json:"code,omitempty"`
	// Message explains it in a sentence: what was tried, on what, what is wrong, what to do.
	Message string `json:"message,omitempty"`
	// Retry says that the same request may succeed later.
	Retry bool `json:"retry,omitempty"`

	// Status is partial where the machines exist and some later stages failed.
	Status ResultStatus `json:"status,omitempty"`
	// StagesCompleted are the ids of the stages that succeeded.
	StagesCompleted []string `json:"stages_completed,omitempty"`

	// Plan answers plan. It is any JSON, and comes back with apply.
	Plan json.RawMessage `json:"plan,omitempty"`
	// Health answers health.
	Health HealthStatus `json:"health,omitempty"`

	// The rest answers describe.

	// Protocol is the version that the program picked of those that it was offered.
	Protocol string `json:"protocol,omitempty"`
	Name     string `json:"name,omitempty"`
	Version  string `json:"version,omitempty"`
	// Actions are the types of requests that the program carries out. Plan, apply and
	// destroy must be among them.
	Actions []string `json:"actions,omitempty"`
	// Idempotent says that apply may be repeated after a crash at any moment: the program
	// finds what it made by the machine's id, and doesn't make it a second time.
	Idempotent bool `json:"idempotent,omitempty"`
	// Detachable says that the work continues when the program ends, and that the same request
	// takes it up again: see [Detach].
	Detachable bool `json:"detachable,omitempty"`
}

// ResultStatus says how much of a request was done.
type ResultStatus string

// How much was done.
const (
	ResultCompleted ResultStatus = "completed"
	ResultPartial   ResultStatus = "partial"
)

// HealthStatus says how a machine is.
type HealthStatus string

// How a machine may be. It is unknown where it couldn't be asked.
const (
	Healthy       HealthStatus = "healthy"
	Unhealthy     HealthStatus = "unhealthy"
	HealthUnknown HealthStatus = "unknown"
)

// Codes of results. A program may have others, of the form [a-z][a-z0-9_]*.
const (
	CodeUnsupported         = "unsupported"          // the request's type is not among the actions
	CodeUnsupportedProtocol = "unsupported_protocol" // no version that was offered is spoken here
	CodeInvalid             = "invalid"              // the request or its variables can't be used
	CodeRefused             = "refused"              // an intent was not acknowledged
	CodeCancelled           = "cancelled"            // it stopped after cancel
	CodeDetached            = "detached"             // it left its work going on after detach
	CodeNoCapacity          = "no_capacity"          // there is no room for the machine
	CodeUnreachable         = "unreachable"          // the cloud could not be asked
	CodeStalePlan           = "stale_plan"           // what the plan was made for has changed
	CodeFailed              = "failed"               // anything else
)

// Type implements [Message].
func (*Log) Type() string { return "log" }

// Type implements [Message].
func (*Step) Type() string { return "step" }

// Type implements [Message].
func (*Change) Type() string { return "change" }

// Type implements [Message].
func (*Intent) Type() string { return "intent" }

// Type implements [Message].
func (*Machine) Type() string { return "machine" }

// Type implements [Message].
func (*Output) Type() string { return "output" }

// Type implements [Message].
func (*State) Type() string { return "state" }

// Type implements [Message].
func (*Result) Type() string { return "result" }
