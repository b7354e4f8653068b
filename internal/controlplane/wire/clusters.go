package wire

import (
	"time"

	"github.com/google/uuid"
)

// Cluster is where agents live.
type Cluster struct {
	ID           uuid.UUID  `json:"id" doc:"Its id."`
	Name         string     `json:"name" doc:"The cluster's name."`
	Connectivity string     `json:"connectivity" enum:"ONLINE,STALE,OFFLINE" doc:"ONLINE: an agent was seen within 45 seconds; STALE: within 5 minutes."`
	PausedAt     *time.Time `json:"paused_at,omitempty" doc:"Since when its agents claim nothing. Absent: they do."`
	LastSeenAt   *time.Time `json:"last_seen_at,omitempty" doc:"When one of its agents was last seen."`
	CreatedAt    time.Time  `json:"created_at" doc:"When it was made."`
	AgePublicKey string     `json:"age_public_key,omitempty" doc:"What variables are sealed to. Absent until an agent has brought one."`
	Agents       []Agent    `json:"agents" doc:"Those seen within a day."`
}

// Agent is one agent instance of a cluster.
type Agent struct {
	Name            string    `json:"name" doc:"The agent's name."`
	Host            string    `json:"host" doc:"Where it runs."`
	Version         string    `json:"version" doc:"Its version."`
	Slots           int       `json:"slots" doc:"How many provisions it runs at a time."`
	Alive           bool      `json:"alive" doc:"It was seen within 45 seconds."`
	LastHeartbeatAt time.Time `json:"last_heartbeat_at" doc:"When it was last seen."`
}

// NewCluster is a cluster just made, and its token, which nobody can read
// again.
type NewCluster struct {
	ID    uuid.UUID `json:"cluster_id" doc:"The cluster's id."`
	Token string    `json:"token" doc:"What its agents sign in with. Nobody can read it again."`
}

// NewToken is a token just made, which nobody can read again.
type NewToken struct {
	ID    uuid.UUID `json:"token_id" doc:"The token's id."`
	Token string    `json:"token" doc:"The token. Nobody can read it again."`
}

// ClusterToken is what is known of a token or a key of a cluster's agents; the token
// itself nobody knows.
type ClusterToken struct {
	ID        uuid.UUID  `json:"id" doc:"Its id."`
	Kind      string     `json:"kind" enum:"token,key" doc:"A token, which all agents of the cluster may share, or the key of one agent."`
	CreatedAt time.Time  `json:"created_at" doc:"When it was made."`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"When it ends. Absent: never."`
	RevokedAt *time.Time `json:"revoked_at,omitempty" doc:"When somebody ended it."`
	CreatedBy *uuid.UUID `json:"created_by,omitempty" doc:"Who had it made or let it join. Absent: the control plane."`

	Fingerprint string     `json:"fingerprint,omitempty" doc:"Of a key: its SHA-256, as 64 hexadecimal digits."`
	Words       string     `json:"words,omitempty" doc:"Of a key: the beginning of its fingerprint as words, as the agent's log has them."`
	Name        string     `json:"name,omitempty" doc:"Of a key: the agent's name when it joined."`
	Parent      *uuid.UUID `json:"parent,omitempty" doc:"Of a key: what the agent has rotated from, and whose revocation revokes it. Absent: it has joined."`
	LastUsedAt  *time.Time `json:"last_used_at,omitempty" doc:"Of a key: when it was last used, to a minute or so."`
	LastAddress string     `json:"last_address,omitempty" doc:"Of a key: from where it was last used."`
}

// Policy is when plans for a cluster must be approved, and by whom.
type Policy struct {
	Approval       string `json:"approval" enum:"never,destructive,always" doc:"When a plan must be approved before it is applied: never, destructive (something is destroyed, replaced or forgotten) or always."`
	Approvers      string `json:"approvers" enum:"operator,admin" doc:"The least role of who may approve."`
	FourEyes       bool   `json:"four_eyes" doc:"Who asked for it may not approve it."`
	ApprovalExpiry string `json:"approval_expiry" doc:"How long a plan waits for approval, from 1 minute to 90 days, in PostgreSQL's words, such as 7 days or 36h."`
}

// PolicyChange is what is to change of a Policy; nil stays.
type PolicyChange struct {
	Approval       *string `json:"approval,omitempty" enum:"never,destructive,always" doc:"When a plan must be approved before it is applied: never, destructive (something is destroyed, replaced or forgotten) or always."`
	Approvers      *string `json:"approvers,omitempty" enum:"operator,admin" doc:"The least role of who may approve."`
	FourEyes       *bool   `json:"four_eyes,omitempty" doc:"Who asked for it may not approve it."`
	ApprovalExpiry *string `json:"approval_expiry,omitempty" doc:"How long a plan waits for approval, from 1 minute to 90 days, in PostgreSQL's words, such as 7 days or 36h."`
}

// NewClusterInputBody makes a cluster.
type NewClusterInputBody struct {
	Name string `json:"name" minLength:"1" maxLength:"63" doc:"1 to 63 letters, digits and . _ -" example:"prod"`
}

// ClusterReasonInputBody pauses or resumes a cluster.
type ClusterReasonInputBody WorkspaceReasonInputBody

// RotateInputBody makes a new token for a cluster's agents.
type RotateInputBody struct {
	Overlap *int64 `json:"overlap_seconds,omitempty" minimum:"0" maximum:"2592000" doc:"How long the tokens before it go on being valid, in seconds; at most 30 days. Not given: a day." example:"86400"`
}
