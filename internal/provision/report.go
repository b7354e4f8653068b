package provision

import (
	"encoding/json"
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

	Plan      *PlanSummary      `json:"plan,omitempty"`
	Outputs   map[string]Output `json:"outputs,omitempty"`
	Resources []Resource        `json:"resources,omitempty"` // the whole workspace; nil leaves what is known
	Events    []Event           `json:"events,omitempty"`

	ErrorCode    Code   `json:"error_code,omitempty"`
	ErrorMessage string `json:"error_message,omitempty"`
}

// MaxDetail is the most bytes of JSON the database takes as a detail.
const MaxDetail = 1 << 20

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
	// Resources lists what changes, without values; at most MaxPlanResources.
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
}

// Output is one output value of a template. A sensitive one carries no value,
// only the marker Sensitive.
type Output struct {
	Type      json.RawMessage `json:"type,omitempty"` // Terraform's type, as JSON
	Value     json.RawMessage `json:"value,omitempty"`
	Sensitive bool            `json:"sensitive,omitempty"`
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
}

// Event is something that happened to one resource during an apply.
type Event struct {
	// Kind is resource_started, resource_finished or resource_failed.
	Kind    string    `json:"kind"`
	Address string    `json:"address,omitempty"`
	Action  string    `json:"action,omitempty"`
	Message string    `json:"message,omitempty"`
	Seconds float64   `json:"seconds,omitempty"`
	At      time.Time `json:"at"`
}
