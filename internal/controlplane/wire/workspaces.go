package wire

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Standing is a workspace as lists show it.
type Standing struct {
	ID        uuid.UUID  `json:"id" doc:"Its id."`
	Name      string     `json:"name" doc:"The workspace's name."`
	Cluster   string     `json:"cluster" doc:"The name of the cluster it is on."`
	Template  string     `json:"template,omitempty" doc:"The template that it belongs to: repository//path."`
	Resources int        `json:"resources" doc:"How many resources exist there."`
	Doing     string     `json:"doing,omitempty" doc:"What goes on there, or keeps it from being used, for people. Absent: nothing."`
	Number    *int64     `json:"number,omitempty" doc:"Its newest provision."`
	Status    *string    `json:"status,omitempty" enum:"QUEUED,PROCESSING,AWAITING_APPROVAL,AWAITING_INPUT,SUCCESS,FAILED,CANCELLED" doc:"How that stands."`
	Since     *time.Time `json:"since,omitempty" doc:"Since when: when it ended, else when it was asked for."`
}

// WorkspaceDetail is everything about one workspace but what exists there.
type WorkspaceDetail struct {
	Standing
	Home         string     `json:"home,omitempty" doc:"The agent that has the state as a local file, and its host. Absent where the state is shared."`
	LockedAt     *time.Time `json:"locked_at,omitempty" doc:"Since when a person has kept it from running anything."`
	LockedBy     *uuid.UUID `json:"locked_by,omitempty" doc:"Who has."`
	LockReason   *string    `json:"lock_reason,omitempty" doc:"Why."`
	StateVersion *int64     `json:"state_version,omitempty" doc:"The newest managed state, counted here. Absent where the state is elsewhere."`
	StateSerial  *int64     `json:"state_serial,omitempty" doc:"The serial that it has within."`
	StateAt      *time.Time `json:"state_at,omitempty" doc:"When it was written."`
	StateLock    *HeldLock  `json:"state_lock,omitempty" doc:"Who holds the lock of the state, as far as a run met it."`
	DriftCount   *int       `json:"drift_count,omitempty" doc:"How many resources have changed outside. Absent: not known."`
	DriftAt      *time.Time `json:"drift_at,omitempty" doc:"When that was looked for."`
	CreatedAt    time.Time  `json:"created_at" doc:"When it was made."`
}

// Resource is one object that a workspace's state records.
type Resource struct {
	Address     string    `json:"address" doc:"What it is called in the template."`
	Type        string    `json:"type" doc:"Its type."`
	Provider    *string   `json:"provider,omitempty" doc:"Which provider it is of."`
	ExternalID  *string   `json:"external_id,omitempty" doc:"What it is known by at the provider."`
	IPAddresses []string  `json:"ip_addresses,omitempty" doc:"Its own IP addresses, as far as they are not sensitive."`
	Status      *string   `json:"status,omitempty" doc:"created, or tainted: left half made by an apply that failed."`
	UpdatedAt   time.Time `json:"updated_at" doc:"When something of this last changed."`
}

// Drift is what is known of how a workspace's infrastructure differs from its
// state.
type Drift struct {
	Workspace string                    `json:"workspace" doc:"The name of the workspace."`
	Cluster   string                    `json:"cluster" doc:"The name of the cluster it is on."`
	Every     *float64                  `json:"every_seconds,omitempty" doc:"How often it is looked for, in seconds. Absent: only when asked to."`
	LookedAt  *time.Time                `json:"looked_at,omitempty" doc:"When it was looked for last. Absent: never, or what was found is put right since."`
	Count     int                       `json:"count" doc:"How many resources have changed outside."`
	Changes   []provision.PlannedChange `json:"changes,omitempty" doc:"Each of them, at most 200."`
}

// StateVersion is one of the states that are kept of a workspace.
type StateVersion struct {
	Version     int64      `json:"version" doc:"Which one, counted from 1."`
	Serial      *int64     `json:"serial,omitempty" doc:"The serial that it has within."`
	Bytes       int64      `json:"bytes" doc:"How large it is, sealed, in bytes."`
	StoredAt    time.Time  `json:"stored_at" doc:"When it was written."`
	ProvisionID *uuid.UUID `json:"provision_id,omitempty" doc:"The provision whose run wrote it."`
}

// AppliedAnswerBody is what was applied to a workspace last.
type AppliedAnswerBody struct {
	ClusterID uuid.UUID       `json:"cluster_id" doc:"The cluster it was applied on."`
	Snapshot  json.RawMessage `json:"config_snapshot" doc:"What was applied."`
}

// LockInputBody locks a workspace.
type LockInputBody struct {
	Reason string `json:"reason" minLength:"1" maxLength:"1000" doc:"Why; others are shown it." example:"the network is being moved"`
}

// WorkspaceReasonInputBody unlocks or releases a workspace.
type WorkspaceReasonInputBody struct {
	Reason string `json:"reason" required:"false" maxLength:"1000" doc:"Why; others are shown it." example:"the network is being moved"`
}

// RebindInputBody binds a workspace to another template.
type RebindInputBody struct {
	Repo   string `json:"repo" minLength:"1" maxLength:"500" doc:"The template's repository." example:"https://git.example/acme/envtempl"`
	Path   string `json:"path,omitempty" maxLength:"500" doc:"Its directory there; empty: the root." example:"envs/prod"`
	Reason string `json:"reason" minLength:"1" maxLength:"1000" doc:"Why; others are shown it." example:"the template has moved"`
}

// WatchDriftInputBody sets how often drift is looked for.
type WatchDriftInputBody struct {
	Every int64 `json:"every_seconds" minimum:"0" maximum:"31622400" doc:"How often to look, in seconds: from 300 (5 minutes) to 31622400 (366 days). 0: never." example:"86400"`
}
