package provision

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Assignment is one provision as an agent receives it with its claim.
type Assignment struct {
	ClaimID     uuid.UUID `json:"claim_id"`
	ProvisionID uuid.UUID `json:"provision_id"`
	// Number counts provisions across the database; people quote it.
	Number      int64     `json:"number"`
	WorkspaceID uuid.UUID `json:"workspace_id"`
	// Workspace is the workspace's name, unique within its cluster.
	Workspace string    `json:"workspace_name"`
	Operation Operation `json:"operation"`
	// Snapshot is provisions.config_snapshot as stored; ParseSnapshot reads it.
	Snapshot json.RawMessage `json:"config_snapshot"`
	// PinnedCommit is the commit that the snapshot's version meant when it was
	// first used in this org, or "" when it never was.
	PinnedCommit string `json:"pinned_commit,omitempty"`
	// Approval is the strictest rule of the snapshot, the template and the
	// cluster; "" counts as ApprovalNever.
	Approval Approval `json:"approval,omitempty"`
	// ApprovedPlan is the digest of the plan that was approved for this
	// provision, or carried out by a person: that very plan is applied, and no
	// other is made. "" for none.
	ApprovedPlan string `json:"approved_plan,omitempty"`
	// Input is the answer of the person who has done the work; nil: nobody was asked.
	Input *Input `json:"input,omitempty"`
	// Attempt is which automatic attempt this provision is, from 1; each is a
	// provision of its own. 0 where the database does not say.
	Attempt int `json:"attempt,omitempty"`
	// HasResources says that something exists in the workspace, as far as its
	// runs have told: an empty state is not all there is.
	HasResources bool `json:"has_resources,omitempty"`
	// QueuedSeconds is how long it had waited in the queue when it was claimed,
	// by the database's clock. Nil where the database does not say.
	QueuedSeconds *float64 `json:"queued_seconds,omitempty"`
	// Traceparent is the trace that the request for the run was in, as W3C Trace Context
	// writes it; "" for none, and where the agent records no traces.
	Traceparent string `json:"traceparent,omitempty"`
}

// Waited is how long the provision had waited in the queue when it was claimed;
// negative where that is not known.
func (a Assignment) Waited() time.Duration {
	if a.QueuedSeconds == nil {
		return -1
	}
	return max(time.Duration(*a.QueuedSeconds*float64(time.Second)), 0)
}

// Stream says where a piece of log came from.
type Stream string

// The streams of a log. System lines are written by Tendril itself.
const (
	Stdout Stream = "STDOUT"
	Stderr Stream = "STDERR"
	System Stream = "SYSTEM"
)

// LogChunk is one row of provision_logs before the database numbers it: some
// masked text of one stream, a few lines or part of one.
type LogChunk struct {
	Stream    Stream    `json:"stream"`
	Text      string    `json:"text"`
	EmittedAt time.Time `json:"at"`
}

// Limits on log chunks; the database refuses what is larger.
const (
	// ChunkTarget is the size at which a chunk is closed, in bytes.
	ChunkTarget = 10 << 10
	// MaxChunk is the largest chunk the database takes, in bytes.
	MaxChunk = 64 << 10
	// MaxBatch is the most text one call carries, in bytes.
	MaxBatch = 512 << 10
	// MaxBatchChunks is the most chunks one call carries.
	MaxBatchChunks = 128
	// FlushAfter is the longest a byte waits for its chunk to close.
	FlushAfter = 500 * time.Millisecond
	// FlushWatched is that of a log which people watch.
	FlushWatched = 200 * time.Millisecond
)

// Variable is a declared variable of a template, as a form needs to know it.
type Variable struct {
	Name string `json:"name"`
	// Type as the template writes it; "" where it writes none.
	Type string `json:"type,omitempty"`
	// TypeJSON is the same type in Terraform's JSON notation, such as
	// ["list","string"]; "dynamic" stands for any.
	TypeJSON    json.RawMessage `json:"type_json"`
	Description string          `json:"description,omitempty"`
	// Default is never given for a sensitive variable; see Required.
	Default json.RawMessage `json:"default,omitempty"`
	// Required is true when neither a default nor one of the template's own
	// tfvars files gives a value.
	Required  bool `json:"required"`
	Sensitive bool `json:"sensitive"`
	Nullable  bool `json:"nullable"`
	Ephemeral bool `json:"ephemeral"`
}
