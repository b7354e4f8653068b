// Package queue is how an agent reaches the queue in the database: what it can
// ask and which errors it must tell apart. The transports are below it
// (pgqueue); queuetest holds them to the same cases.
//
// It must not know SQL, HTTP, processes or Terraform.
//
// All runs of an agent share one Link. Heartbeats, claims and reports go at once;
// bulk calls (lines, and parts of blobs) take turns, blobs first, then the run that
// has waited longest. The bytes in flight follow what the link has shown: they
// double after a quick full call and halve after a slow one. So a narrow link
// delays lines and costs no lease.
package queue

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Contract is the version of the SQL contract this program speaks. Databases of
// any later one serve it, and so does one of the version before.
const Contract = 9

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
	// Runner is nil but for a runner, which asks in the name of one claim of the agent: Heartbeat
	// renews that one, and Register answers what the agent was told.
	Runner *Runner `json:"-"`
}

// Runner is what a runner knows from its agent.
type Runner struct {
	Claim      uuid.UUID
	Registered Registration
}

// RunnerKey is how DelegateClaim names a runner that signs its requests with a key.
func RunnerKey(key ed25519.PublicKey) string { return "ed25519:" + hex.EncodeToString(key) }

// RunnerToken is how DelegateClaim names a runner that shows a token: the digest of the hash that
// its calls carry. It is no secret.
func RunnerToken(token string) string {
	hash := sha256.Sum256([]byte(token))
	digest := sha256.Sum256(hash[:])
	return hex.EncodeToString(digest[:])
}

// KeyHolder is a Queue whose agent signs its requests with a key of its own.
type KeyHolder interface {
	// RotateKey has the key that signs vouch for the next one, which signs from then on. The
	// old one counts for ten more minutes. It may be repeated with the same key, also after
	// an answer that was lost.
	RotateKey(ctx context.Context, next ed25519.PrivateKey) error
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
	// Realtime: the database sends wakes by Supabase's Realtime, to agents over HTTPS.
	Realtime bool
}

// Beat is a heartbeat.
type Beat struct {
	// Claims are those whose leases it renews.
	Claims []uuid.UUID
	// Wait is how long the other side may hold the answer back until there is news, where it can;
	// 0: not at all. The rest says what would be none.
	Wait time.Duration
	// Free says that the agent has a free slot, and waits for work. Checks: for checks that
	// are due.
	Free, Checks bool
	// Cancelled, Lost and Watched are claims of which the agent has been told that it must stop
	// them, that they are lost, and that people watch their logs.
	Cancelled, Lost, Watched []uuid.UUID
}

// News reports whether an answer has anything that the agent waits for.
func (b Beat) News(p Pulse) bool {
	unheard := func(all, known []uuid.UUID) bool {
		return slices.ContainsFunc(all, func(id uuid.UUID) bool { return !slices.Contains(known, id) })
	}
	return p.Work && b.Free || p.ChecksDue && b.Checks || unheard(p.Cancel, b.Cancelled) || unheard(p.Lost, b.Lost) || unheard(p.Watched, b.Watched)
}

// Pulse is the database's answer to a heartbeat.
type Pulse struct {
	// Cancel lists claims that people want stopped.
	Cancel []uuid.UUID
	// Lost lists claims sent that are no longer this agent's: reaped, settled
	// or superseded. A run whose apply has begun finishes and settles late.
	Lost []uuid.UUID
	// Watched lists claims whose logs people watch, which are to be delivered sooner.
	Watched []uuid.UUID
	// Poll and Heartbeat are the intervals the database advises.
	Poll      time.Duration
	Heartbeat time.Duration
	// ChecksDue says that LeaseChecks has something.
	ChecksDue bool
	// Work says that Claim has something, where the heartbeat was of an agent with a free slot.
	Work bool
	// Held: the other side holds heartbeats that may wait, so the next one is due at once, and
	// nothing needs to be polled for.
	Held bool
	// Again, if not 0, is when the next one is due nevertheless.
	Again time.Duration
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
	// Heartbeat renews the leases of the given claims. One that may wait takes up to MaxHeld
	// longer; a newer one of the same agent ends it.
	Heartbeat(ctx context.Context, beat Beat) (Pulse, error)
	// Claim takes at most one provision under a claim id of the caller's
	// choosing; the same id again returns the same assignment. nil: nothing to do.
	Claim(ctx context.Context, claimID uuid.UUID) (*provision.Assignment, error)
	// DelegateClaim gives a claim to a runner, see RunnerKey and RunnerToken, which renews its lease
	// from then on. Cancelled runs are not given away.
	DelegateClaim(ctx context.Context, claimID uuid.UUID, runner string) error
	// ClaimTrace is the traceparent of the run that was claimed; "" for none. A database of the
	// release before does not know the question.
	ClaimTrace(ctx context.Context, claimID uuid.UUID) (traceparent string, err error)
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
	// LeaseChecks takes checks of machines that are due for this agent to do; none: nothing
	// is due of what it has room for.
	LeaseChecks(ctx context.Context, room CheckRoom) ([]MachineCheck, error)
	// ReportChecks tells what checks have found, at most MaxChecks.
	ReportChecks(ctx context.Context, results []CheckResult) error
	// ReportPools tells what the agent has found of its pools, at most MaxPools.
	ReportPools(ctx context.Context, pools []Pool) error
	// ReserveMachines gives each machine of a claim's workspace a place, or none of them, and
	// answers in the order of wants.
	ReserveMachines(ctx context.Context, claimID uuid.UUID, wants []provision.PlaceWanted) ([]provision.Place, error)
	// ReleaseMachines frees the places of machines of the claim's workspace.
	ReleaseMachines(ctx context.Context, claimID uuid.UUID, names []string) error
	// AgentKey finds the key of an agent of the cluster by its fingerprint's beginning, at
	// least 22 hexadecimal digits; nil: there is none. The caller compares the two.
	AgentKey(ctx context.Context, fingerprint string) (ed25519.PublicKey, error)
	// ShareIdentity stores the cluster's identity, sealed to the key of another agent of the
	// cluster, until a time at most 8 days ahead. An agent without the identity stores a
	// certificate for its own key in the same way.
	ShareIdentity(ctx context.Context, to ed25519.PublicKey, sealed string, expires time.Time) error
	// SharedIdentity is the identity that ShareIdentity has stored for the key that signs this
	// agent's requests; "": none.
	SharedIdentity(ctx context.Context) (sealed string, err error)
	// Work receives when there may be something to claim, Attention when a
	// heartbeat should not wait (a cancel). Both are hints: they may be missing,
	// late or wrong, and several may arrive as one. Attention is nil for as long as it
	// would not receive, so that who waits for a cancel asks more often.
	Work() <-chan struct{}
	Attention() <-chan struct{}
	// Close ends all connections and waits for what the queue started.
	Close()
}

// MaxHeld is the longest that a heartbeat is held.
const MaxHeld = 20 * time.Second

// MaxChecks is how many checks one call carries.
const MaxChecks = 500

// CheckRoom is what an agent has room for. A database of the contract before knows Checks
// alone.
type CheckRoom struct {
	// Checks is how many checks it takes at most but for those by a command, which are
	// Commands: MaxChecks of each.
	Checks, Commands int
	// Without are workspaces that get none now.
	Without []uuid.UUID
}

// ContractOfCommands is the first contract with checks by a command.
const ContractOfCommands = 7

// MachineCheck is a check that an agent is to do, as the database has it: whether a run
// has asked for it, the check's MAC says.
type MachineCheck struct {
	Machine   uuid.UUID             `json:"machine"`
	Workspace uuid.UUID             `json:"workspace"`
	Name      string                `json:"name"`
	Check     provision.HealthCheck `json:"check"`
}

// CheckResult is what a check has found.
type CheckResult struct {
	Machine uuid.UUID               `json:"machine"`
	Result  provision.MachineHealth `json:"result"`
	Why     string                  `json:"why,omitempty"`
}

// What one report of pools carries.
const (
	MaxPools     = 50
	MaxPoolNodes = 500 // of each
)

// Pool is what an agent has found of a pool.
type Pool struct {
	Name   string     `json:"name"`
	Kind   string     `json:"kind"`
	Limits PoolLimits `json:"limits"`
	Taken  PoolTaken  `json:"taken"`
	// Problem says why the pool could not be listed; what was found before stays then.
	Problem string     `json:"problem,omitempty"`
	Nodes   []PoolNode `json:"nodes"`
}

// PoolLimits are what the agent's configuration allows in a pool.
type PoolLimits struct {
	// OvercommitCores and OvercommitMemory are how much of a node may be reserved, as
	// multiples of what it has. Without the first any number of cores may, without the
	// second the memory that there is.
	OvercommitCores  float64 `json:"overcommit_cores,omitempty"`
	OvercommitMemory float64 `json:"overcommit_memory,omitempty"`
	// IDs are the first and the last VM id; none: the pool has no range of them.
	IDs       []int         `json:"ids,omitempty"`
	Addresses []PoolAddress `json:"addresses,omitempty"`
}

// PoolAddress is a range of addresses.
type PoolAddress struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// PoolTaken are ids and addresses that the hypervisors show to be in use.
type PoolTaken struct {
	IDs       []int    `json:"ids,omitempty"`
	Addresses []string `json:"addresses,omitempty"`
}

// PoolNode is a host of a pool.
type PoolNode struct {
	Name   string `json:"name"`
	Online bool   `json:"online"`
	Cores  int    `json:"cores"`
	Memory int    `json:"memory_mib"`
	// CoresUsed and MemoryUsed are shares, 0 to 1.
	CoresUsed  float64           `json:"cores_used"`
	MemoryUsed float64           `json:"memory_used"`
	Images     []string          `json:"images,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Storages   []PoolStorage     `json:"storages,omitempty"`
	// Server is the bare-metal server that the node is; nil: it is none.
	Server *PoolServer `json:"server,omitempty"`
}

// PoolServer is a bare-metal server of a pool of kind ironic.
type PoolServer struct {
	ID             string `json:"id"`
	Name           string `json:"name,omitempty"`
	ProvisionState string `json:"provision_state"`
	PowerState     string `json:"power_state,omitempty"`
	Maintenance    bool   `json:"maintenance"`
	// Reason says in a sentence what its state means, Available that a machine can be made of it.
	Reason       string `json:"reason"`
	Available    bool   `json:"available"`
	InstanceUUID string `json:"instance_uuid,omitempty"`
	LastError    string `json:"last_error,omitempty"`
	// HealthWhy says in a sentence why its health is that.
	Health    provision.ServerHealth `json:"health"`
	HealthWhy string                 `json:"health_why"`
}

// PoolStorage is where a node has disks.
type PoolStorage struct {
	Name string `json:"name"`
	Free int    `json:"free_gib"`
	Size int    `json:"size_gib"`
}

// Standing is the database's answer to how an agent would stand with it.
type Standing struct {
	ClusterID   uuid.UUID `json:"cluster_id"`
	ClusterName string    `json:"cluster_name"`
	// Contract is the database's.
	Contract int `json:"contract"`
	// Now is the database's clock.
	Now time.Time `json:"now"`
	// ClusterKey is the cluster's key; "" where it has none, or the database is older.
	ClusterKey string `json:"age_public_key"`
	// Paused: people have paused the cluster, so it is given no work.
	Paused bool `json:"paused"`
	// NameTakenOn is the host of another live agent of the same name, "" for none.
	NameTakenOn string `json:"name_taken_on"`
	// BroadPublications are the publications that carry more of the contract's tables
	// than people may watch.
	BroadPublications []string `json:"broad_publications"`
	// Realtime: the database sends wakes by Supabase's Realtime, to agents over HTTPS.
	Realtime bool `json:"realtime"`
	// Certificates are those by which other agents ask for the cluster's identity, the newest
	// first, at most 20. The database has not verified them.
	Certificates []WaitingCertificate `json:"certificates"`
}

// WaitingCertificate is a certificate, and the key of the agent that has presented it, in
// hexadecimal.
type WaitingCertificate struct {
	Key         string `json:"key"`
	Certificate string `json:"certificate"`
}

// contractTooNew is the reason of a database that is older than the agent.
const contractTooNew = "contract_too_new"

// RegisterOneOlder has an agent registered by its contract or, where the
// database does not know that yet, by the one before: it is given nothing then
// that takes the newer one, and all else is as it was. A database that is older
// still refuses it.
func RegisterOneOlder(agent Agent, register func(Agent) (Registration, error)) (Registration, error) {
	registration, err := register(agent)
	refusal := tooNew(err)
	if refusal == nil || agent.Contract <= 1 {
		return registration, err
	}
	agent.Contract--
	registration, err = register(agent)
	if tooNew(err) == nil {
		return registration, err
	}
	refusal.Hint = fmt.Sprintf(`the database may be one contract older than the agent, and not more. Run "trellis migrate" of a release that speaks contract %d or %d against it first, or use an older agent`,
		agent.Contract, agent.Contract+1)
	return Registration{}, refusal
}

// tooNew returns the database's refusal of an agent for its contract, or nil.
func tooNew(err error) *Error {
	if e, is := errors.AsType[*Error](err); is && e.Reason == contractTooNew {
		return e
	}
	return nil
}

// Kind is what an error means for the caller.
type Kind int

// The kinds of error a queue returns.
const (
	// Unavailable: the database could not be reached, asks to try again, or has no
	// contract to serve at the moment. Repeating is safe.
	Unavailable Kind = iota
	// Unauthorized: the token is unknown, revoked or expired (PT401), or the database
	// does not let the queue's user in. It may when either has been changed.
	Unauthorized
	// Superseded: another boot of this instance has taken over (PT409,
	// agent_superseded). This process must claim nothing more.
	Superseded
	// ClaimLost: the claim is no longer this agent's (PT409, claim_lost).
	ClaimLost
	// CancelRequested: apply must not begin, a cancel came first (PT409, cancel_requested).
	CancelRequested
	// Refused: the database says no, and will say so again (any other PT4xx).
	Refused
	// ContentRefused: the database can't take what the call carries, and can take
	// the call.
	ContentRefused
)

// Error is an answer of the database, the same on every transport.
type Error struct {
	Kind    Kind
	Code    string // SQLSTATE, such as PT409; "" when there was no answer
	Reason  string // a stable word, such as tag_moved; the DETAIL of the SQL error
	Message string // for people
	Hint    string // what to do; may be empty
	// RetryAfter is how long the other side asks to be left alone; 0: it does not.
	RetryAfter time.Duration
	Err        error // the transport's own error; may be nil
}

func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return fmt.Sprintf("%s (%s)", e.Message, e.Hint)
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of err. An error that is not a queue Error counts as
// Unavailable: nothing is known about it, and repeating is safe.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Unavailable
}

// Final reports whether an answer is the contract's own last word on a request:
// its refusals, and content that it names as too large or malformed. All else is an
// outage, or may be one.
func Final(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	switch e.Kind {
	case Unavailable:
		return false
	case Unauthorized, ContentRefused:
		return strings.HasPrefix(e.Code, "PT4")
	default:
		return true
	}
}

// Wait returns how long to wait before a call that ended in err is repeated: d,
// or longer where the answer asked for it.
func Wait(err error, d time.Duration) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return max(d, e.RetryAfter)
	}
	return d
}
