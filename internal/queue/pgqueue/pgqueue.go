// Package pgqueue reaches the queue straight through Postgres: each method of
// queue.Queue is one call of one SQL function, and LISTEN wakes the agent.
//
// It must not decide anything: who may do what is decided in SQL. It must not
// know what an agent does with what it gets.
package pgqueue

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/listen"
	"github.com/tendril-run/tendril/internal/pgurl"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcwire"
)

// Options say how to reach the database and as whom.
type Options struct {
	// URL of the database; its role needs no more than tendril_agent.
	URL string
	// URLNow is asked for it again before each connection; nil: it stays.
	URLNow pgurl.Source
	// ListenURL is a session connection for LISTEN, for when URL goes through a
	// pooler in transaction mode. Empty: URL. "off": polling only.
	ListenURL string
	// ListenURLNow is to ListenURL, where that is a URL, what URLNow is to URL.
	ListenURLNow pgurl.Source
	// Token is the cluster's agent token. Only its hash leaves this process.
	Token string
	// TokenNow is asked for it again before each registration and heartbeat; nil: it
	// stays.
	TokenNow func() string
	Agent    queue.Agent
	// CallTimeout bounds each call; 15 s when zero.
	CallTimeout time.Duration
	// Log is told when LISTEN does not work, which no call would notice, and of a
	// token that is not taken. May be nil.
	Log *slog.Logger
}

// maxConns is what one agent needs at the most: three bulk calls, and one for
// heartbeats, claims and reports. More would cost the database, not help the agent.
const maxConns = 4

// Queue is a queue.Queue over a pool of connections.
type Queue struct {
	pool       *pgxpool.Pool
	credential *queue.Credential
	agent      queue.Agent
	timeout    time.Duration
	link       *queue.Link
	listener   *listener   // nil: polling only
	arrays     atomic.Bool // the database takes log lines as arrays
	buffers    sync.Pool   // of *[]byte
}

var _ queue.Queue = (*Queue)(nil)

// New opens the queue. It connects when first used, so a database that is away
// is not an error yet.
func New(ctx context.Context, o Options) (*Queue, error) {
	config, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		// pgx redacts the password in this error.
		return nil, fmt.Errorf("queue URL: %w", err)
	}
	config.BeforeConnect = pgurl.Renew(o.URLNow)
	config.MaxConns = maxConns
	config.MaxConnIdleTime = time.Minute
	// Extended protocol without named statements: parameters stay out of the
	// server's log, and a pooler in transaction mode may stand between.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	config.ConnConfig.RuntimeParams["application_name"] = "tendril " + o.Agent.Name
	timeout := cmp.Or(o.CallTimeout, 15*time.Second)
	boundConnect(config.ConnConfig, timeout)
	boundAnswers(config.ConnConfig)
	listenConfig := config.ConnConfig.Copy()
	// A pooler may lend these connections one that somebody else has left
	// listening. They would keep what arrives for ever.
	config.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the queue: %w", err)
	}
	q := &Queue{pool: pool, credential: queue.NewCredential(o.Token, o.TokenNow, o.Log), agent: o.Agent, timeout: timeout, link: queue.NewLink(maxConns - 1),
		buffers: sync.Pool{New: func() any { return new([]byte) }}}
	if o.ListenURL != "off" {
		listenNow := o.URLNow
		if o.ListenURL != "" {
			listenNow = o.ListenURLNow
			if listenConfig, err = pgx.ParseConfig(o.ListenURL); err != nil {
				pool.Close()
				return nil, fmt.Errorf("queue listen URL: %w", err)
			}
			boundConnect(listenConfig, timeout)
			boundAnswers(listenConfig)
		}
		q.listener = startListener(listenConfig, listenNow, timeout, q.send, o.Agent.Instance, cmp.Or(o.Log, slog.New(slog.DiscardHandler)))
	}
	return q, nil
}

// boundConnect has making a connection take no longer than a call. The pool
// goes on with it when the caller has given up, and nobody else may have its
// place meanwhile.
func boundConnect(config *pgx.ConnConfig, timeout time.Duration) {
	if config.ConnectTimeout == 0 || config.ConnectTimeout > timeout {
		config.ConnectTimeout = timeout
	}
}

// maxAnswer is the largest message of the server's that is read. The largest thing
// that the contract answers is a part of a blob, 512 KiB in base64.
const maxAnswer = 2 << 20

// boundAnswers keeps a server from filling the agent's memory with one row.
func boundAnswers(config *pgx.ConnConfig) {
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		frontend := pgproto3.NewFrontend(r, w)
		frontend.SetMaxBodyLen(maxAnswer)
		return frontend
	}
}

// send sends a notification.
func (q *Queue) send(ctx context.Context, channel, payload string) error {
	_, err := q.pool.Exec(ctx, "SELECT pg_notify($1, $2)", channel, payload)
	return err
}

// Close implements queue.Queue.
func (q *Queue) Close() {
	if q.listener != nil {
		q.listener.stop()
	}
	q.pool.Close()
}

// Work implements queue.Queue. Without a listener it never receives.
func (q *Queue) Work() <-chan struct{} {
	if q.listener == nil {
		return nil
	}
	return q.listener.work
}

// Attention implements queue.Queue. Without a listener it never receives.
func (q *Queue) Attention() <-chan struct{} {
	if q.listener == nil {
		return nil
	}
	return q.listener.attention
}

// Register implements queue.Queue.
func (q *Queue) Register(ctx context.Context) (queue.Registration, error) {
	return queue.RegisterOneOlder(q.agent, func(as queue.Agent) (queue.Registration, error) { return q.register(ctx, as) })
}

func (q *Queue) register(ctx context.Context, as queue.Agent) (registered queue.Registration, err error) {
	if as.Runner != nil {
		registered = as.Runner.Registered
	} else if registered, err = q.introduce(ctx, as); err != nil {
		return registered, err
	}
	var arrays bool
	if err := q.call(ctx, "ask how the database takes log lines", &arrays, takesArrays); err != nil {
		return queue.Registration{}, err
	}
	q.arrays.Store(arrays)
	q.credential.Registered(registered.ClusterID)
	if q.listener != nil {
		q.listener.watch(registered.ClusterID)
	}
	return registered, nil
}

func (q *Queue) introduce(ctx context.Context, as queue.Agent) (queue.Registration, error) {
	q.renew(ctx)
	about, err := json.Marshal(as)
	if err != nil {
		return queue.Registration{}, fmt.Errorf("encode the agent's description: %w", err)
	}
	var reply rpcwire.Registered
	err = q.call(ctx, "register with the database", &reply, "SELECT public.register_agent($1, $2::text::jsonb)", q.credential.Hash(), string(about))
	return reply.Registration(), err
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
	about, err := json.Marshal(q.agent)
	if err != nil {
		return queue.Standing{}, fmt.Errorf("encode the agent's description: %w", err)
	}
	var s queue.Standing
	err = q.call(ctx, "ask how the agent stands", &s, "SELECT public.check_agent($1, $2::text::jsonb)", hash, string(about))
	return s, err
}

// Heartbeat implements queue.Queue. It waits for nothing: notifications wake the agent.
func (q *Queue) Heartbeat(ctx context.Context, beat queue.Beat) (queue.Pulse, error) {
	claims := beat.Claims
	if claims == nil {
		claims = []uuid.UUID{} // not NULL
	}
	q.renew(ctx)
	var reply rpcwire.Pulse
	var err error
	if runner := q.agent.Runner; runner != nil {
		err = q.call(ctx, "renew the lease", &reply, "SELECT public.renew_claim($1, $2)", q.credential.Hash(), runner.Claim)
	} else {
		err = q.call(ctx, "send a heartbeat", &reply,
			"SELECT public.agent_heartbeat($1, $2, $3, $4)", q.credential.Hash(), q.agent.Instance, q.agent.Boot, claims)
	}
	if err != nil {
		return queue.Pulse{}, err
	}
	return reply.Pulse(), nil
}

// LeaseChecks implements queue.Queue.
func (q *Queue) LeaseChecks(ctx context.Context, room queue.CheckRoom) ([]queue.MachineCheck, error) {
	var checks rpcwire.Checks
	const what = "ask for checks that are due"
	if room.Commands == 0 && len(room.Without) == 0 { // which a database of the contract before knows
		err := q.call(ctx, what, &checks, "SELECT public.lease_checks($1, $2, $3, $4)", q.credential.Hash(), q.agent.Instance, q.agent.Boot, room.Checks)
		return checks, err
	}
	err := q.call(ctx, what, &checks, "SELECT public.lease_checks($1, $2, $3, $4, $5, $6)",
		q.credential.Hash(), q.agent.Instance, q.agent.Boot, room.Checks, room.Commands, room.Without)
	return checks, err
}

// ReportChecks implements queue.Queue.
func (q *Queue) ReportChecks(ctx context.Context, results []queue.CheckResult) error {
	text, err := json.Marshal(results)
	if err != nil {
		return fmt.Errorf("encode what checks have found: %w", err)
	}
	var void any
	return q.call(ctx, "report what checks have found", &void,
		"SELECT public.report_checks($1, $2, $3, $4::text::jsonb)::text", q.credential.Hash(), q.agent.Instance, q.agent.Boot, string(text))
}

// ReportPools implements queue.Queue.
func (q *Queue) ReportPools(ctx context.Context, pools []queue.Pool) error {
	text, err := json.Marshal(pools)
	if err != nil {
		return fmt.Errorf("encode what was found of pools: %w", err)
	}
	var void any
	return q.call(ctx, "report the agent's pools", &void,
		"SELECT public.report_pools($1, $2, $3, $4::text::jsonb)::text", q.credential.Hash(), q.agent.Instance, q.agent.Boot, string(text))
}

// ReserveMachines implements queue.Queue.
func (q *Queue) ReserveMachines(ctx context.Context, claimID uuid.UUID, wants []provision.PlaceWanted) ([]provision.Place, error) {
	text, err := json.Marshal(wants)
	if err != nil {
		return nil, fmt.Errorf("encode the machines that need places: %w", err)
	}
	var places rpcwire.Places
	err = q.call(ctx, "ask for places of machines", &places, "SELECT public.reserve_machines($1, $2, $3::text::jsonb)", q.credential.Hash(), claimID, string(text))
	return places, err
}

// ReleaseMachines implements queue.Queue.
func (q *Queue) ReleaseMachines(ctx context.Context, claimID uuid.UUID, names []string) error {
	var void any
	return q.call(ctx, "free the places of machines", &void, "SELECT public.release_machines($1, $2, $3)::text", q.credential.Hash(), claimID, names)
}

// AgentKey implements queue.Queue.
func (q *Queue) AgentKey(ctx context.Context, fingerprint string) (ed25519.PublicKey, error) {
	var key string
	if err := q.call(ctx, "find the agent's key", &key, "SELECT coalesce(public.agent_key($1, $2), '')", q.credential.Hash(), fingerprint); err != nil {
		return nil, err
	}
	return rpcwire.PublicKey(key)
}

// ShareIdentity implements queue.Queue.
func (q *Queue) ShareIdentity(ctx context.Context, to ed25519.PublicKey, sealed string, expires time.Time) error {
	var void any
	return q.call(ctx, "share the cluster's identity", &void, "SELECT public.share_identity($1, $2, $3, $4)::text", q.credential.Hash(), hex.EncodeToString(to), sealed, expires)
}

// SharedIdentity implements queue.Queue.
func (q *Queue) SharedIdentity(ctx context.Context) (sealed string, err error) {
	err = q.call(ctx, "ask for the cluster's identity", &sealed, "SELECT coalesce(public.shared_identity($1), '')", q.credential.Hash())
	return sealed, err
}

// ClaimTrace implements queue.Queue.
func (q *Queue) ClaimTrace(ctx context.Context, claimID uuid.UUID) (traceparent string, err error) {
	err = q.call(ctx, "ask for the run's trace", &traceparent, "SELECT coalesce(public.claim_trace($1, $2), '')", q.credential.Hash(), claimID)
	return traceparent, err
}

// DelegateClaim implements queue.Queue.
func (q *Queue) DelegateClaim(ctx context.Context, claimID uuid.UUID, runner string) error {
	var void any
	return q.call(ctx, "hand the run over to its runner", &void, "SELECT public.delegate_claim($1, $2, $3)::text", q.credential.Hash(), claimID, runner)
}

// Claim implements queue.Queue.
func (q *Queue) Claim(ctx context.Context, claimID uuid.UUID) (*provision.Assignment, error) {
	var a *provision.Assignment
	err := q.call(ctx, "ask for the next provision", &a,
		"SELECT to_jsonb(f) FROM public.fetch_next_provision($1, $2, $3, $4) f", q.credential.Hash(), q.agent.Instance, q.agent.Boot, claimID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return a, err
}

// appendLog hands the chunks over as arrays, which need no escaping here and no
// parsing there. appendJSON is for a database that is one contract older, and for
// the question what it expects next.
const (
	appendLog  = `SELECT public.append_provision_log($1, $2, $3, $4::text[], $6::text[], $5::timestamptz[])`
	appendJSON = `SELECT public.insert_provision_log($1, $2, $3, (
	SELECT jsonb_agg(jsonb_build_object('stream', c.stream, 'text', c.text, 'at', c.at) ORDER BY c.n)
	FROM unnest($4::text[], $5::text[], $6::timestamptz[]) WITH ORDINALITY AS c (stream, text, at, n)))`
	takesArrays = `SELECT EXISTS (SELECT FROM pg_proc WHERE proname = 'append_provision_log' AND pronamespace = 'public'::regnamespace)`
	// planOnce has the transaction's statements planned without looking at their
	// parameters: with half a megabyte of text the planner copies that three times.
	planOnce = `SELECT set_config('plan_cache_mode', 'force_generic_plan', true)`
)

// AppendLog implements queue.Queue.
func (q *Queue) AppendLog(ctx context.Context, claimID uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	return q.link.AppendLog(ctx, chunks, func(part []provision.LogChunk) (next int64, err error) {
		streams, texts, times := make([]string, len(part)), make([]string, len(part)), make([]time.Time, len(part))
		for i, c := range part {
			streams[i], texts[i], times[i] = string(c.Stream), c.Text, c.EmittedAt
		}
		const doing = "store log lines"
		if !q.arrays.Load() {
			err = q.call(ctx, doing, &next, appendJSON, q.credential.Hash(), claimID, first, streams, texts, times)
			return next, err
		}
		err = q.bounded(ctx, 0, doing, func(ctx context.Context) error {
			next, err = q.appendArrays(ctx, claimID, first, streams, texts, times)
			return err
		})
		return next, err
	})
}

// appendArrays calls append_provision_log below what pgx does for other calls, which
// grows three buffers anew for each.
func (q *Queue) appendArrays(ctx context.Context, claimID uuid.UUID, first int64, streams, texts []string, times []time.Time) (next int64, err error) {
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	buf := q.buffers.Get().(*[]byte)
	defer q.buffers.Put(buf)
	types := conn.Conn().TypeMap()
	encodedStreams, err1 := types.Encode(pgtype.TextArrayOID, pgx.BinaryFormatCode, streams, nil)
	encodedTimes, err2 := types.Encode(pgtype.TimestamptzArrayOID, pgx.BinaryFormatCode, times, nil)
	encodedTexts, err3 := types.Encode(pgtype.TextArrayOID, pgx.BinaryFormatCode, texts, (*buf)[:0])
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, fmt.Errorf("encode log lines: %w", err)
	}
	*buf = encodedTexts
	var batch pgconn.Batch
	batch.ExecParams(planOnce, nil, nil, nil, nil)
	batch.ExecParams(appendLog, [][]byte{
		[]byte(q.credential.Hash()), []byte(claimID.String()), strconv.AppendInt(nil, first, 10),
		encodedStreams, encodedTimes, encodedTexts, // the largest last: nothing is moved for what follows
	}, nil, []int16{pgx.TextFormatCode, pgx.TextFormatCode, pgx.TextFormatCode, pgx.BinaryFormatCode, pgx.BinaryFormatCode, pgx.BinaryFormatCode}, nil)
	results, err := conn.Conn().PgConn().ExecBatch(ctx, &batch).ReadAll()
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(results[1].Rows[0][0]), 10, 64)
}

// Report implements queue.Queue.
func (q *Queue) Report(ctx context.Context, claimID uuid.UUID, report provision.Report) error {
	detail, err := json.Marshal(report.Detail)
	if err != nil {
		return fmt.Errorf("encode a report: %w", err)
	}
	return q.callFor(ctx, len(detail), "report a provision's status", nil,
		"SELECT public.update_provision_status($1, $2, $3, $4::text::jsonb)", q.credential.Hash(), claimID, report.Status, string(detail))
}

// FailOrphans implements queue.Queue.
func (q *Queue) FailOrphans(ctx context.Context, except []uuid.UUID) ([]uuid.UUID, error) {
	if except == nil {
		except = []uuid.UUID{} // not NULL
	}
	var orphans []uuid.UUID
	err := q.call(ctx, "end what an earlier start left behind", &orphans,
		"SELECT coalesce(array_agg(f), '{}') FROM public.fail_orphaned_provisions($1, $2, $3, $4) f", q.credential.Hash(), q.agent.Instance, q.agent.Boot, except)
	return orphans, err
}

// call runs one statement that answers one row and scans its only column into
// reply, which may be nil.
func (q *Queue) call(ctx context.Context, doing string, reply any, statement string, args ...any) error {
	return q.callFor(ctx, 0, doing, reply, statement, args...)
}

// callFor is call for one that carries so many bytes, there or back, which cannot be
// parted.
func (q *Queue) callFor(ctx context.Context, bytes int, doing string, reply any, statement string, args ...any) error {
	return q.bounded(ctx, bytes, doing, func(ctx context.Context) error {
		return q.pool.QueryRow(ctx, statement, args...).Scan(reply)
	})
}

func (q *Queue) bounded(ctx context.Context, bytes int, doing string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, queue.CallLimit(q.timeout, bytes))
	defer cancel()
	if err := call(ctx); err != nil {
		if errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if _, answered := errors.AsType[*pgconn.PgError](err); !answered {
			// What has become of this connection may have become of all: the
			// next call is not to find out one by one.
			q.pool.Reset()
		}
		return translate(doing, err)
	}
	return nil
}

// PutBlob implements queue.Queue.
func (q *Queue) PutBlob(ctx context.Context, claimID uuid.UUID, blob queue.Blob, data []byte) error {
	meta := cmp.Or(string(blob.Meta), "{}")
	return q.link.PutBlob(ctx, blob.Kind, data, func(part, parts int, text string) error {
		return q.callFor(ctx, len(text), "store a "+blob.Kind, nil, "SELECT public.put_blob($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9)",
			q.credential.Hash(), claimID, blob.Kind, blob.Number, part, parts, blob.Digest, meta, text)
	})
}

// GetBlob implements queue.Queue.
func (q *Queue) GetBlob(ctx context.Context, claimID uuid.UUID, kind string, number int64) (queue.Blob, []byte, error) {
	return queue.CollectBlob(kind, number, func(number int64, part int) (p queue.PartOfBlob, err error) {
		err = q.callFor(ctx, queue.BlobPart, "read a "+kind, &p, "SELECT public.get_blob($1, $2, $3, $4, $5)", q.credential.Hash(), claimID, kind, number, part)
		return p, err
	})
}

// deafHint is what to do about listen.ErrDeaf.
const deafHint = `set queue.listen_url to a connection that keeps its session, past the pooler or through one in session mode (Supabase: port 5432), or to "off" where polling will do`

// translate turns what pgx returns into a queue.Error. doing says what was
// tried, for messages that are not the database's own.
func translate(doing string, err error) error {
	if errors.Is(err, listen.ErrDeaf) {
		return &queue.Error{Kind: queue.Unavailable, Message: err.Error(), Hint: deafHint, Err: err}
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return &queue.Error{Kind: queue.Unavailable, Message: "could not " + doing + ": the database did not answer in time", Err: err}
		}
		return &queue.Error{Kind: queue.Unavailable, Message: fmt.Sprintf("could not %s: %v", doing, err), Err: err}
	}
	e := queue.Answer(doing, pg.Code, pg.Message, pg.Detail, pg.Hint)
	e.Err = err
	if strings.Contains(pg.Message, "unsupported startup parameter") {
		e.Kind, e.Hint = queue.Unauthorized, "a pooler stands between and refuses what the queue URL sets: remove that from the URL and set it on the role, by ALTER ROLE … SET"
	}
	return e
}
