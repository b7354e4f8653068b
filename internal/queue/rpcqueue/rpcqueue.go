// Package rpcqueue reaches the queue by HTTPS: each method of queue.Queue is one
// POST to a function of the contract, as PostgREST serves it (Supabase) or the
// gateway of trellis. So an agent needs no credential of the database.
//
//	queue.Queue ── call: the same again after a hiccup ── try: one exchange ── answer: a result or a queue.Error
//
// A hiccup (a connection that was closed, a proxy that restarts) is met here,
// within a second. An outage is left to the callers, who wait longer each time:
// while one lasts a call is one request.
//
// It must not decide anything: who may do what is decided in SQL. It must not
// know what an agent does with what it gets.
package rpcqueue

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// Options say how to reach the database and as whom.
type Options struct {
	// URL of a Supabase project or of trellis; with the path /rest/v1, or one
	// that ends in /rpc, it says where PostgREST itself is.
	URL string
	// APIKey is the project's public key; empty where none is asked for.
	APIKey string
	// CAFile names certificates trusted beside the system's; may be empty.
	CAFile string
	// Proxy is as in http.Transport; nil: the one that the environment names.
	Proxy func(*http.Request) (*url.URL, error)
	// Token is the cluster's agent token. Only its hash leaves this process.
	Token string
	// TokenNow is asked for it again before each registration and heartbeat; nil: it
	// stays.
	TokenNow func() string
	// Log is told of a token that is not taken. May be nil.
	Log   *slog.Logger
	Agent queue.Agent
	// CallTimeout bounds each call; 15 s when zero.
	CallTimeout time.Duration
}

// bulkCalls is how many calls with log lines or blobs may be in flight: a distant
// server has many, each with a few lines.
const bulkCalls = 16

// Queue is a queue.Queue over HTTPS.
type Queue struct {
	transport  *http.Transport
	functions  string // the URL below which they are
	host       string // for people
	header     http.Header
	apiKey     string
	credential *queue.Credential
	agent      queue.Agent
	timeout    time.Duration
	// away is set while calls are not answered as the database would.
	away atomic.Bool
	link *queue.Link
}

var _ queue.Queue = (*Queue)(nil)

// New opens the queue. It connects when first used, so a server that is away is
// not an error yet.
func New(o Options) (*Queue, error) {
	functions, err := endpoint(o.URL)
	if err != nil {
		return nil, fmt.Errorf("queue URL: %w", err)
	}
	timeout := cmp.Or(o.CallTimeout, 15*time.Second)
	transport, err := newTransport(o, timeout)
	if err != nil {
		return nil, fmt.Errorf("open the queue: %w", err)
	}
	return &Queue{
		transport: transport, functions: functions.String(), host: functions.Scheme + "://" + functions.Host,
		header: newHeader(o), apiKey: o.APIKey, credential: queue.NewCredential(o.Token, o.TokenNow, o.Log), agent: o.Agent, timeout: timeout,
		link: queue.NewLink(bulkCalls),
	}, nil
}

// Close implements queue.Queue.
func (q *Queue) Close() { q.transport.CloseIdleConnections() }

// Work implements queue.Queue. It never receives: nobody calls an agent.
func (q *Queue) Work() <-chan struct{} { return nil }

// Attention implements queue.Queue. It never receives.
func (q *Queue) Attention() <-chan struct{} { return nil }

// Register implements queue.Queue.
func (q *Queue) Register(ctx context.Context) (queue.Registration, error) {
	return queue.RegisterOneOlder(q.agent, func(as queue.Agent) (queue.Registration, error) { return q.register(ctx, as) })
}

func (q *Queue) register(ctx context.Context, as queue.Agent) (queue.Registration, error) {
	q.renew(ctx)
	var reply registration
	err := q.call(ctx, "register with the database", "register_agent", struct {
		Hash  string      `json:"p_token_hash"`
		Agent queue.Agent `json:"p_agent"`
	}{q.credential.Hash(), as}, &reply)
	if err != nil {
		return queue.Registration{}, err
	}
	q.credential.Registered(reply.ClusterID)
	return queue.Registration{
		ClusterID: reply.ClusterID, ClusterName: reply.ClusterName, Contract: reply.Contract,
		Heartbeat: seconds(reply.Heartbeat), Lease: seconds(reply.Lease), ClusterKey: reply.ClusterKey,
	}, nil
}

// Standing implements queue.Queue.
func (q *Queue) Standing(ctx context.Context) (queue.Standing, error) {
	return q.standing(ctx, q.credential.Hash())
}

// renew takes the token as it is now.
func (q *Queue) renew(ctx context.Context) {
	q.credential.Renew(func(hash string) (queue.Standing, error) { return q.standing(ctx, hash) })
}

func (q *Queue) standing(ctx context.Context, hash string) (queue.Standing, error) {
	var reply standing
	err := q.call(ctx, "ask how the agent stands", "check_agent", struct {
		Hash  string      `json:"p_token_hash"`
		Agent queue.Agent `json:"p_agent"`
	}{hash, q.agent}, &reply)
	return queue.Standing(reply), err
}

// caller begins the arguments of what an agent asks in its own name.
type caller struct {
	Hash     string    `json:"p_token_hash"`
	Instance uuid.UUID `json:"p_instance"`
	Boot     uuid.UUID `json:"p_boot"`
}

func (q *Queue) caller() caller { return caller{q.credential.Hash(), q.agent.Instance, q.agent.Boot} }

// Heartbeat implements queue.Queue.
func (q *Queue) Heartbeat(ctx context.Context, claims []uuid.UUID) (queue.Pulse, error) {
	q.renew(ctx)
	var reply pulse
	err := q.call(ctx, "send a heartbeat", "agent_heartbeat", struct {
		caller
		Claims []uuid.UUID `json:"p_claims"`
	}{q.caller(), notNull(claims)}, &reply)
	if err != nil {
		return queue.Pulse{}, err
	}
	return queue.Pulse{Cancel: reply.Cancel, Lost: reply.Lost, Poll: seconds(reply.Poll), Heartbeat: seconds(reply.Heartbeat)}, nil
}

// Claim implements queue.Queue.
func (q *Queue) Claim(ctx context.Context, claimID uuid.UUID) (*provision.Assignment, error) {
	var answered assignments
	err := q.call(ctx, "ask for the next provision", "fetch_next_provision", struct {
		caller
		Claim uuid.UUID `json:"p_claim_id"`
	}{q.caller(), claimID}, &answered)
	if err != nil || answered.none {
		return nil, err
	}
	return &answered.row[0], nil
}

// Report implements queue.Queue.
func (q *Queue) Report(ctx context.Context, claimID uuid.UUID, report provision.Report) error {
	return q.call(ctx, "report a provision's status", "update_provision_status", struct {
		Hash   string           `json:"p_token_hash"`
		Claim  uuid.UUID        `json:"p_claim_id"`
		Status provision.Status `json:"p_status"`
		Detail provision.Detail `json:"p_detail"`
	}{q.credential.Hash(), claimID, report.Status, report.Detail}, nil)
}

// FailOrphans implements queue.Queue.
func (q *Queue) FailOrphans(ctx context.Context, except []uuid.UUID) ([]uuid.UUID, error) {
	var orphans ids
	err := q.call(ctx, "end what an earlier start left behind", "fail_orphaned_provisions", struct {
		caller
		Except []uuid.UUID `json:"p_except"`
	}{q.caller(), notNull(except)}, &orphans)
	return orphans, err
}

// notNull has no ids be an empty array.
func notNull(claims []uuid.UUID) []uuid.UUID {
	if claims == nil {
		return []uuid.UUID{}
	}
	return claims
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
