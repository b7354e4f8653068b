// Package queue is how an agent reaches the queue in the database: what it can
// ask and which errors it must tell apart. The transports are below it
// (pgqueue); queuetest holds them to the same cases.
//
// It must not know SQL, HTTP, processes or Terraform.
package queue

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Contract is the version of the SQL contract this program speaks. Databases of
// any later one serve it, and so does one of the version before.
const Contract = 4

// Agent is who asks: one agent instance in one of its lives.
type Agent struct {
	// Instance lives in the agent's data directory and outlives restarts.
	Instance uuid.UUID `json:"instance_id"`
	// Boot is new at each start; a later one supersedes all before it.
	Boot uuid.UUID `json:"boot_id"`
	Name string    `json:"name"`
	// Host is where the agent is, as far as another place makes it another
	// agent: the machine's name and what else tells two of one machine apart.
	Host string `json:"host"`
	// Kernel names the run of the machine's kernel and Uptime is how long that is, in
	// seconds: by these the database knows that the agent of a machine's run before is
	// dead. Empty and nil where the machine does not tell.
	Kernel   string   `json:"kernel,omitempty"`
	Uptime   *float64 `json:"uptime_seconds,omitempty"`
	Version  string   `json:"version"`
	Contract int      `json:"contract"`
	Slots    int      `json:"slots"`
	// AgePublicKey is the public half of the identity to which variables are
	// sealed.
	AgePublicKey *PublicKey `json:"age_public_key,omitempty"`
	// Operations are those that the agent's policy grants: for people who wonder
	// why nothing runs, not for the database to decide by.
	Operations []provision.Operation `json:"operations,omitempty"`
}

// Registration is the database's answer to Register.
type Registration struct {
	ClusterID   uuid.UUID
	ClusterName string
	Contract    int
	Heartbeat   time.Duration
	Lease       time.Duration
	// ClusterKey is to what variables are sealed for this cluster: what the
	// first of its agents said, or what a person has set since. "" where the
	// database is of an older version.
	ClusterKey string
}

// Pulse is the database's answer to a heartbeat.
type Pulse struct {
	// Cancel lists claims that people want stopped.
	Cancel []uuid.UUID
	// Lost lists claims sent that are no longer this agent's: reaped, settled
	// or superseded. A run whose apply has begun finishes and settles late.
	Lost []uuid.UUID
	// Poll and Heartbeat are the intervals the database advises.
	Poll      time.Duration
	Heartbeat time.Duration
}

// Queue is one agent's way to the database. All methods are safe for
// concurrent use, may be repeated after a lost reply, and return errors that
// Kind can tell apart. Every call has a time limit that grows with what it
// carries, and ends with its context.
type Queue interface {
	// Register introduces the agent's current boot. ErrConflict when the name
	// or the instance is alive elsewhere.
	Register(ctx context.Context) (Registration, error)
	// Standing asks how this agent would stand, without registering: whoever
	// runs under the same identity goes on undisturbed.
	Standing(ctx context.Context) (Standing, error)
	// Heartbeat renews the leases of the given claims.
	Heartbeat(ctx context.Context, claims []uuid.UUID) (Pulse, error)
	// Claim takes at most one provision under a claim id of the caller's
	// choosing; the same id again returns the same assignment. nil: nothing to do.
	Claim(ctx context.Context, claimID uuid.UUID) (*provision.Assignment, error)
	// AppendLog stores chunks numbered first, first+1, … of a claim, as many as
	// the link takes in one call, and returns the number expected next. Numbers
	// already stored are ignored; when first is beyond the number expected nothing
	// is stored. It waits for its turn: see Link.
	AppendLog(ctx context.Context, claimID uuid.UUID, first int64, chunks []provision.LogChunk) (next int64, err error)
	// Report stores progress or the end of a run.
	Report(ctx context.Context, claimID uuid.UUID, report provision.Report) error
	// FailOrphans ends what earlier boots of this instance left without a
	// result and returns those provisions. The claims in except, at most 1000,
	// are left out: their children still live.
	FailOrphans(ctx context.Context, except []uuid.UUID) ([]uuid.UUID, error)
	// PutBlob stores a blob under a claim, whole or not at all.
	PutBlob(ctx context.Context, claimID uuid.UUID, blob Blob, data []byte) error
	// GetBlob reads a blob that a claim may read; ErrNoBlob where there is none.
	// Number 0 is the newest.
	GetBlob(ctx context.Context, claimID uuid.UUID, kind string, number int64) (Blob, []byte, error)
	// Work receives when there may be something to claim, Attention when a
	// heartbeat should not wait (a cancel). Both are hints: they may be missing,
	// late or wrong, and several may arrive as one.
	Work() <-chan struct{}
	Attention() <-chan struct{}
	// Close ends all connections and waits for what the queue started.
	Close()
}
