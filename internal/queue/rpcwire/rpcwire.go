// Package rpcwire has the JSON that agents exchange with the functions of the contract:
// their arguments, each type named as its function, and what those answer that package
// queue has in another form. Both transports read the answers; rpcqueue sends the
// arguments.
//
// testdata/rpc.golden pins all of it, with what is inside: package provision's
// assignment, report and log chunks, and package queue's agent, standing and parts of
// blobs. An agent and a database may be one contract apart, so a field stays as it is.
package rpcwire

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// RegisterAgent and check_agent introduce an agent.
type RegisterAgent struct {
	Hash  string      `json:"p_token_hash"`
	Agent queue.Agent `json:"p_agent"`
}

// CheckAgent asks how a token stands, and for an event by Realtime.
type CheckAgent struct {
	Hash  string `json:"p_token_hash"`
	Agent Probe  `json:"p_agent"`
}

// Probe asks check_agent for the event.
type Probe struct {
	Probe bool `json:"probe"`
}

// Registered is what register_agent answers.
type Registered struct {
	ClusterID   uuid.UUID `json:"cluster_id"`
	ClusterName string    `json:"cluster_name"`
	Contract    int       `json:"contract"`
	Heartbeat   float64   `json:"heartbeat_seconds"`
	Lease       float64   `json:"lease_seconds"`
	ClusterKey  string    `json:"age_public_key"`
	Realtime    bool      `json:"realtime"`
}

// Registration is the answer as the agent has it.
func (r Registered) Registration() queue.Registration {
	return queue.Registration{
		ClusterID: r.ClusterID, ClusterName: r.ClusterName, Contract: r.Contract,
		Heartbeat: seconds(r.Heartbeat), Lease: seconds(r.Lease), ClusterKey: r.ClusterKey, Realtime: r.Realtime,
	}
}

// RequestJoin asks that the key which signs the request may join a cluster.
type RequestJoin struct {
	Request JoinRequest `json:"p_request"`
}

// JoinRequest is what an agent says of itself to an admin.
type JoinRequest struct {
	Name       string   `json:"name"`
	Host       string   `json:"host"`
	Version    string   `json:"version"`
	Slots      int      `json:"slots"`
	Operations []string `json:"operations"`
	Cluster    string   `json:"cluster,omitempty"`
	// TokenHash is of a one-time token, in hexadecimal; "": a person is asked.
	TokenHash string `json:"token_hash,omitempty"`
	// AccountToken is that of a Kubernetes service account, which the gateway verifies and does not
	// pass on; "": none.
	AccountToken string `json:"service_account_token,omitempty"`
}

// What JoinStanding.Status may be.
const (
	JoinWaiting = "waiting"
	JoinJoined  = "joined"
	JoinRefused = "refused" // by an admin
	JoinExpired = "expired" // nobody has typed the code in time
	JoinRevoked = "revoked" // the key has been a cluster's, and counts no more
)

// JoinStanding is what request_join and join_status answer.
type JoinStanding struct {
	Status      string    `json:"status"`
	Code        string    `json:"code"`
	Seconds     int       `json:"seconds"`
	ClusterID   uuid.UUID `json:"cluster_id"`
	ClusterName string    `json:"cluster_name"`
}

// Caller begins the arguments of what an agent asks in its own name.
type Caller struct {
	Hash     string    `json:"p_token_hash"`
	Instance uuid.UUID `json:"p_instance"`
	Boot     uuid.UUID `json:"p_boot"`
}

// AgentHeartbeat renews leases. Claims are never null.
type AgentHeartbeat struct {
	Caller
	Claims []uuid.UUID `json:"p_claims"`
	// Awaits is for a database whose answers say whether there is work.
	Awaits *Awaits `json:"p_awaits,omitempty"`
}

// Awaits is what would be news to an agent.
type Awaits struct {
	Free      bool        `json:"free,omitempty"`
	Checks    bool        `json:"checks,omitempty"`
	Cancelled []uuid.UUID `json:"cancelled,omitempty"`
	Lost      []uuid.UUID `json:"lost,omitempty"`
	// Watched is never null: without it the database does not say so.
	Watched []uuid.UUID `json:"watched"`
}

// Pulse is what agent_heartbeat and renew_claim answer.
type Pulse struct {
	Cancel    []uuid.UUID `json:"cancel"`
	Lost      []uuid.UUID `json:"lost"`
	Watched   []uuid.UUID `json:"watched"`
	Poll      float64     `json:"poll_seconds"`
	Heartbeat float64     `json:"heartbeat_seconds"`
	ChecksDue bool        `json:"checks_due"`
	// Work is nil of a database that knows no Awaits.
	Work *bool `json:"work"`
}

// Pulse is the answer as the agent has it.
func (p Pulse) Pulse() queue.Pulse {
	return queue.Pulse{
		Cancel: p.Cancel, Lost: p.Lost, Watched: p.Watched, Poll: seconds(p.Poll), Heartbeat: seconds(p.Heartbeat),
		ChecksDue: p.ChecksDue, Work: p.Work != nil && *p.Work,
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// LeaseChecks takes checks of machines that are due.
type LeaseChecks struct {
	Caller
	Limit    int         `json:"p_limit"`
	Commands int         `json:"p_commands,omitempty"`
	Without  []uuid.UUID `json:"p_without,omitempty"`
}

// Checks are what lease_checks answers.
type Checks []queue.MachineCheck

// UnmarshalJSON implements json.Unmarshaler.
func (c *Checks) UnmarshalJSON(text []byte) (err error) {
	*c, err = list[queue.MachineCheck](text, queue.MaxChecks, "checks")
	return err
}

// list reads a list of at most so many things. There is room for no more than were asked for:
// a slice of what "{}" becomes a hundred thousand times is more memory than an agent has.
func list[T any](text []byte, most int, what string) ([]T, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	if open, err := decoder.Token(); err != nil || open != json.Delim('[') {
		return nil, fmt.Errorf("the answer is no list of %s", what)
	}
	all := []T{}
	for decoder.More() {
		if len(all) == most {
			return nil, fmt.Errorf("the answer has more than %d %s", most, what)
		}
		var one T
		if err := decoder.Decode(&one); err != nil {
			return nil, fmt.Errorf("read the list of %s: %w", what, err)
		}
		all = append(all, one)
	}
	return all, nil
}

// ReportChecks tells what checks have found.
type ReportChecks struct {
	Caller
	Results []queue.CheckResult `json:"p_results"`
}

// ReportPools tells what an agent has found of its pools.
type ReportPools struct {
	Caller
	Pools []queue.Pool `json:"p_pools"`
}

// ReserveMachines asks for places of machines.
type ReserveMachines struct {
	Hash  string                  `json:"p_token_hash"`
	Claim uuid.UUID               `json:"p_claim_id"`
	Wants []provision.PlaceWanted `json:"p_wants"`
}

// Places are what reserve_machines answers.
type Places []provision.Place

// UnmarshalJSON implements json.Unmarshaler.
func (p *Places) UnmarshalJSON(text []byte) (err error) {
	*p, err = list[provision.Place](text, provision.MaxPlaces, "places")
	return err
}

// ReleaseMachines frees the places of machines.
type ReleaseMachines struct {
	Hash  string    `json:"p_token_hash"`
	Claim uuid.UUID `json:"p_claim_id"`
	Names []string  `json:"p_names"`
}

// RotateAgentKey gives an agent a new key, of 64 hexadecimal digits.
type RotateAgentKey struct {
	Caller
	PublicKey string `json:"p_public_key"`
}

// AgentKey asks for the key of another agent.
type AgentKey struct {
	Hash        string `json:"p_token_hash"`
	Fingerprint string `json:"p_fingerprint"`
}

// PublicKey reads what agent_key answers: an Ed25519 key in hexadecimal, "" for none.
func PublicKey(digits string) (ed25519.PublicKey, error) {
	if digits == "" {
		return nil, nil
	}
	key, err := hex.DecodeString(digits)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, errors.New("the answer is no Ed25519 key")
	}
	return key, nil
}

// ShareIdentity stores the cluster's identity for another agent.
type ShareIdentity struct {
	Hash      string    `json:"p_token_hash"`
	PublicKey string    `json:"p_public_key"`
	Sealed    string    `json:"p_sealed"`
	Expires   time.Time `json:"p_expires"`
}

// SharedIdentity asks for what was stored by ShareIdentity.
type SharedIdentity struct {
	Hash string `json:"p_token_hash"`
}

// ClaimTrace asks for the trace that a claimed run belongs to.
type ClaimTrace struct {
	Hash  string    `json:"p_token_hash"`
	Claim uuid.UUID `json:"p_claim_id"`
}

// DelegateClaim gives a claim to a runner.
type DelegateClaim struct {
	Hash   string    `json:"p_token_hash"`
	Claim  uuid.UUID `json:"p_claim_id"`
	Runner string    `json:"p_runner_digest"`
}

// RenewClaim renews the lease of a runner's claim.
type RenewClaim struct {
	Hash   string    `json:"p_token_hash"`
	Claim  uuid.UUID `json:"p_claim_id"`
	Awaits *Awaits   `json:"p_awaits,omitempty"`
}

// FetchNextProvision takes a provision under a claim.
type FetchNextProvision struct {
	Caller
	Claim uuid.UUID `json:"p_claim_id"`
}

// UpdateProvisionStatus reports how a run goes, or how it ended.
type UpdateProvisionStatus struct {
	Hash   string           `json:"p_token_hash"`
	Claim  uuid.UUID        `json:"p_claim_id"`
	Status provision.Status `json:"p_status"`
	Detail provision.Detail `json:"p_detail"`
}

// FailOrphanedProvisions ends what an earlier boot left behind. Except is never null.
type FailOrphanedProvisions struct {
	Caller
	Except []uuid.UUID `json:"p_except"`
}

// InsertProvisionLog stores log lines. Without chunks p_chunks is null: a question only.
type InsertProvisionLog struct {
	Hash   string               `json:"p_token_hash"`
	Claim  uuid.UUID            `json:"p_claim_id"`
	First  int64                `json:"p_first_chunk"`
	Chunks []provision.LogChunk `json:"p_chunks"`
}

// GetBlob reads a part of a blob.
type GetBlob struct {
	Hash   string    `json:"p_token_hash"`
	Claim  uuid.UUID `json:"p_claim_id"`
	Kind   string    `json:"p_kind"`
	Number int64     `json:"p_number"`
	Part   int       `json:"p_part"`
}

// PutBlob stores one.
type PutBlob struct {
	GetBlob
	Parts  int             `json:"p_parts"`
	Digest string          `json:"p_digest"`
	Meta   json.RawMessage `json:"p_meta"`
	Data   string          `json:"p_data"`
}
