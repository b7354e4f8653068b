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
//
// An answer counts only in the form that the function has: 204 for a report, an
// array for a claim, a number for lines. A page that says 200 is no answer. An
// error without a SQLSTATE (403, 404, a redirect) is an outage, because a firewall
// or an ingress must not cost a run its lines. Redirects are not followed: what is
// sent is a credential. After a 413 that is not the database's, batches go in
// smaller parts.
package rpcqueue

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/realtime"
	"github.com/tendril-run/tendril/internal/queue/rpcwire"
)

// Options say how to reach the database and as whom.
type Options struct {
	// URL of a Supabase project or of trellis; with the path /rest/v1, or one
	// that ends in /rpc, it says where PostgREST itself is.
	URL string
	// APIKey is the project's public key; empty where none is asked for.
	APIKey string
	// CAFile names certificates trusted as well as the system's; may be empty.
	CAFile string
	// Proxy is as in http.Transport; nil: the one that the environment names.
	Proxy func(*http.Request) (*url.URL, error)
	// Token is the cluster's agent token. Only its hash leaves this process.
	Token string
	// TokenNow is asked for it again before each registration and heartbeat; nil: it
	// stays.
	TokenNow func() string
	// Key signs each request, in place of a token; nil: the token counts.
	Key ed25519.PrivateKey
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
	options    Options
	transport  *http.Transport
	functions  string // the URL below which they are
	host       string // for people
	header     http.Header
	apiKey     string
	signers    signers
	credential *queue.Credential
	agent      queue.Agent
	timeout    time.Duration
	// away is set while calls are not answered as the database would.
	away atomic.Bool
	link *queue.Link
	// realtime wakes the agent on Supabase; nil where nothing can.
	realtime *realtime.Listener
	work     chan struct{} // receives where nothing else wakes the agent
	holding  holding
}

var (
	_ queue.Queue     = (*Queue)(nil)
	_ queue.KeyHolder = (*Queue)(nil)
)

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
	credential := queue.NewCredential(o.Token, o.TokenNow, o.Log)
	if o.Key != nil {
		credential = queue.NewKeyCredential(agentkey.Fingerprint(o.Key.Public().(ed25519.PublicKey)))
	}
	q := &Queue{
		options: o, transport: transport, functions: functions.String(), host: functions.Scheme + "://" + functions.Host,
		header: newHeader(o), apiKey: o.APIKey, credential: credential, agent: o.Agent, timeout: timeout,
		link: queue.NewLink(bulkCalls), work: make(chan struct{}, 1), holding: holding{wait: queue.MaxHeld},
	}
	if o.Key != nil {
		q.signers.add(o.Key)
	}
	if ro, is := realtimeOf(o, functions, transport, q.credential); is {
		ro.Probe = q.probe
		q.realtime = realtime.New(ro)
	}
	return q, nil
}

// Close implements queue.Queue.
func (q *Queue) Close() {
	if q.realtime != nil {
		q.realtime.Stop()
	}
	q.transport.CloseIdleConnections()
}

// Register implements queue.Queue.
func (q *Queue) Register(ctx context.Context) (queue.Registration, error) {
	return queue.RegisterOneOlder(q.agent, func(as queue.Agent) (queue.Registration, error) { return q.register(ctx, as) })
}

func (q *Queue) register(ctx context.Context, as queue.Agent) (queue.Registration, error) {
	if as.Runner != nil {
		return as.Runner.Registered, nil
	}
	q.renew(ctx)
	var reply registration
	err := q.call(ctx, "register with the database", "register_agent", rpcwire.RegisterAgent{Hash: q.credential.Hash(), Agent: as}, &reply)
	if err != nil {
		return queue.Registration{}, err
	}
	q.credential.Registered(reply.ClusterID)
	if reply.Realtime && q.realtime != nil {
		q.realtime.Start()
	}
	return rpcwire.Registered(reply).Registration(), nil
}

// Standing implements queue.Queue.
func (q *Queue) Standing(ctx context.Context) (queue.Standing, error) {
	return q.standing(ctx, q.credential.Hash())
}

// renew takes the token as it is now.
func (q *Queue) renew(ctx context.Context) {
	before := q.credential.Hash()
	q.credential.Renew(func(hash string) (queue.Standing, error) { return q.standing(ctx, hash) })
	if q.realtime != nil && q.credential.Hash() != before {
		q.realtime.Retopic()
	}
}

func (q *Queue) standing(ctx context.Context, hash string) (queue.Standing, error) {
	var reply standing
	err := q.call(ctx, "ask how the agent stands", "check_agent", rpcwire.RegisterAgent{Hash: hash, Agent: q.agent}, &reply)
	return queue.Standing(reply), err
}

func (q *Queue) caller() rpcwire.Caller {
	return rpcwire.Caller{Hash: q.credential.Hash(), Instance: q.agent.Instance, Boot: q.agent.Boot}
}

// LeaseChecks implements queue.Queue.
func (q *Queue) LeaseChecks(ctx context.Context, room queue.CheckRoom) ([]queue.MachineCheck, error) {
	var answered checks
	err := q.call(ctx, "ask for checks that are due", "lease_checks", rpcwire.LeaseChecks{Caller: q.caller(), Limit: room.Checks, Commands: room.Commands, Without: room.Without}, &answered)
	return answered.Checks, err
}

// ReportChecks implements queue.Queue.
func (q *Queue) ReportChecks(ctx context.Context, results []queue.CheckResult) error {
	return q.call(ctx, "report what checks have found", "report_checks", rpcwire.ReportChecks{Caller: q.caller(), Results: results}, nil)
}

// ReportPools implements queue.Queue.
func (q *Queue) ReportPools(ctx context.Context, pools []queue.Pool) error {
	return q.call(ctx, "report the agent's pools", "report_pools", rpcwire.ReportPools{Caller: q.caller(), Pools: pools}, nil)
}

// ReserveMachines implements queue.Queue.
func (q *Queue) ReserveMachines(ctx context.Context, claimID uuid.UUID, wants []provision.PlaceWanted) ([]provision.Place, error) {
	var answered places
	err := q.call(ctx, "ask for places of machines", "reserve_machines", rpcwire.ReserveMachines{Hash: q.credential.Hash(), Claim: claimID, Wants: wants}, &answered)
	return answered.Places, err
}

// ReleaseMachines implements queue.Queue.
func (q *Queue) ReleaseMachines(ctx context.Context, claimID uuid.UUID, names []string) error {
	return q.call(ctx, "free the places of machines", "release_machines", rpcwire.ReleaseMachines{Hash: q.credential.Hash(), Claim: claimID, Names: names}, nil)
}

// AgentKey implements queue.Queue.
func (q *Queue) AgentKey(ctx context.Context, fingerprint string) (ed25519.PublicKey, error) {
	var key optionalText
	if err := q.call(ctx, "find the agent's key", "agent_key", rpcwire.AgentKey{Hash: q.credential.Hash(), Fingerprint: fingerprint}, &key); err != nil {
		return nil, err
	}
	return rpcwire.PublicKey(string(key))
}

// ShareIdentity implements queue.Queue.
func (q *Queue) ShareIdentity(ctx context.Context, to ed25519.PublicKey, sealed string, expires time.Time) error {
	return q.call(ctx, "share the cluster's identity", "share_identity",
		rpcwire.ShareIdentity{Hash: q.credential.Hash(), PublicKey: hex.EncodeToString(to), Sealed: sealed, Expires: expires}, nil)
}

// SharedIdentity implements queue.Queue.
func (q *Queue) SharedIdentity(ctx context.Context) (string, error) {
	var sealed optionalText
	err := q.call(ctx, "ask for the cluster's identity", "shared_identity", rpcwire.SharedIdentity{Hash: q.credential.Hash()}, &sealed)
	return string(sealed), err
}

// ClaimTrace implements queue.Queue.
func (q *Queue) ClaimTrace(ctx context.Context, claimID uuid.UUID) (string, error) {
	var traceparent optionalText
	err := q.call(ctx, "ask for the run's trace", "claim_trace", rpcwire.ClaimTrace{Hash: q.credential.Hash(), Claim: claimID}, &traceparent)
	return string(traceparent), err
}

// DelegateClaim implements queue.Queue.
func (q *Queue) DelegateClaim(ctx context.Context, claimID uuid.UUID, runner string) error {
	return q.call(ctx, "hand the run over to its runner", "delegate_claim", rpcwire.DelegateClaim{Hash: q.credential.Hash(), Claim: claimID, Runner: runner}, nil)
}

// RequestJoin asks that the key which signs may join a cluster.
func (q *Queue) RequestJoin(ctx context.Context, request rpcwire.JoinRequest) (rpcwire.JoinStanding, error) {
	var answered joining
	err := q.call(ctx, "ask to join", "request_join", rpcwire.RequestJoin{Request: request}, &answered)
	return answered.JoinStanding, err
}

// JoinStatus says whether the key that signs has joined a cluster.
func (q *Queue) JoinStatus(ctx context.Context) (rpcwire.JoinStanding, error) {
	var answered joining
	err := q.call(ctx, "ask whether the agent has joined", "join_status", struct{}{}, &answered)
	return answered.JoinStanding, err
}

// Claim implements queue.Queue.
func (q *Queue) Claim(ctx context.Context, claimID uuid.UUID) (*provision.Assignment, error) {
	var answered assignments
	err := q.call(ctx, "ask for the next provision", "fetch_next_provision", rpcwire.FetchNextProvision{Caller: q.caller(), Claim: claimID}, &answered)
	if err != nil || answered.none {
		return nil, err
	}
	return &answered.row[0], nil
}

// Report implements queue.Queue.
func (q *Queue) Report(ctx context.Context, claimID uuid.UUID, report provision.Report) error {
	return q.call(ctx, "report a provision's status", "update_provision_status",
		rpcwire.UpdateProvisionStatus{Hash: q.credential.Hash(), Claim: claimID, Status: report.Status, Detail: report.Detail}, nil)
}

// FailOrphans implements queue.Queue.
func (q *Queue) FailOrphans(ctx context.Context, except []uuid.UUID) ([]uuid.UUID, error) {
	var orphans ids
	err := q.call(ctx, "end what an earlier start left behind", "fail_orphaned_provisions",
		rpcwire.FailOrphanedProvisions{Caller: q.caller(), Except: notNull(except)}, &orphans)
	return orphans, err
}

// notNull has no ids be an empty array.
func notNull(claims []uuid.UUID) []uuid.UUID {
	if claims == nil {
		return []uuid.UUID{}
	}
	return claims
}

// AppendLog implements queue.Queue.
func (q *Queue) AppendLog(ctx context.Context, claimID uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	return q.link.AppendLog(ctx, chunks, func(part []provision.LogChunk) (int64, error) {
		body, err := encode(rpcwire.InsertProvisionLog{Hash: q.credential.Hash(), Claim: claimID, First: first, Chunks: part})
		if err != nil {
			return 0, err
		}
		var next chunkNumber
		err = q.send(ctx, q.timeout, "store log lines", "insert_provision_log", body, &next)
		return int64(next), err
	})
}

// perChunk is about what a chunk takes beside its text.
const perChunk = 80

// encode is json.Marshal without escapes that only HTML needs, and into one piece
// of memory, with room for a coloured log's escapes: this is on the way of every
// byte that is logged. (Escapes written by hand save a sixth of its time, and that
// is a hundredth of what a batch takes.)
func encode(l rpcwire.InsertProvisionLog) ([]byte, error) {
	size := 256
	for _, c := range l.Chunks {
		size += len(c.Text) + len(c.Text)/4 + perChunk
	}
	body := bytes.NewBuffer(make([]byte, 0, size))
	encoder := json.NewEncoder(body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(l); err != nil {
		return nil, fmt.Errorf("encode log lines: %w", err)
	}
	return body.Bytes(), nil
}

// PutBlob implements queue.Queue.
func (q *Queue) PutBlob(ctx context.Context, claimID uuid.UUID, blob queue.Blob, data []byte) error {
	meta := json.RawMessage(cmp.Or(string(blob.Meta), "{}"))
	return q.link.PutBlob(ctx, blob.Kind, data, func(part, parts int, text string) error {
		return q.call(ctx, "store a "+blob.Kind, "put_blob", rpcwire.PutBlob{
			GetBlob: rpcwire.GetBlob{Hash: q.credential.Hash(), Claim: claimID, Kind: blob.Kind, Number: blob.Number, Part: part},
			Parts:   parts, Digest: blob.Digest, Meta: meta, Data: text,
		}, nil)
	})
}

// GetBlob implements queue.Queue.
func (q *Queue) GetBlob(ctx context.Context, claimID uuid.UUID, kind string, number int64) (queue.Blob, []byte, error) {
	return queue.CollectBlob(kind, number, func(number int64, part int) (queue.PartOfBlob, error) {
		var p partOfBlob
		err := q.callFor(ctx, queue.BlobPart, "read a "+kind, "get_blob",
			rpcwire.GetBlob{Hash: q.credential.Hash(), Claim: claimID, Kind: kind, Number: number, Part: part}, &p)
		return queue.PartOfBlob(p), err
	})
}

// partOfBlob is what get_blob answers.
type partOfBlob queue.PartOfBlob

// valid leaves a number that no blob has to CollectBlob, which refuses it: what is no answer
// at all would count as an outage, and be asked for again for ever.
func (p *partOfBlob) valid() bool {
	return p.Parts != 0 || string(p.Meta) == "" && p.Data == "" && p.Digest == ""
}
