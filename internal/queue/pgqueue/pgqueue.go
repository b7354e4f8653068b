// Package pgqueue reaches the queue straight through Postgres: each method of
// queue.Queue is one call of one SQL function, and LISTEN wakes the agent.
//
// It must not decide anything: who may do what is decided in SQL. It must not
// know what an agent does with what it gets.
package pgqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/pgurl"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
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
	q := &Queue{pool: pool, credential: queue.NewCredential(o.Token, o.TokenNow, o.Log), agent: o.Agent, timeout: timeout, link: queue.NewLink(maxConns - 1)}
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
		q.listener = startListener(listenConfig, listenNow, timeout, q.send, cmp.Or(o.Log, slog.New(slog.DiscardHandler)))
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
func (q *Queue) send(ctx context.Context, channel string) error {
	_, err := q.pool.Exec(ctx, "SELECT pg_notify($1, '')", channel)
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

func (q *Queue) register(ctx context.Context, as queue.Agent) (queue.Registration, error) {
	q.renew(ctx)
	about, err := json.Marshal(as)
	if err != nil {
		return queue.Registration{}, fmt.Errorf("encode the agent's description: %w", err)
	}
	var reply struct {
		ClusterID   uuid.UUID `json:"cluster_id"`
		ClusterName string    `json:"cluster_name"`
		Contract    int       `json:"contract"`
		Heartbeat   float64   `json:"heartbeat_seconds"`
		Lease       float64   `json:"lease_seconds"`
		ClusterKey  string    `json:"age_public_key"`
	}
	if err := q.call(ctx, "register with the database", &reply,
		"SELECT public.register_agent($1, $2::text::jsonb)", q.credential.Hash(), string(about)); err != nil {
		return queue.Registration{}, err
	}
	var arrays bool
	if err := q.call(ctx, "ask how the database takes log lines", &arrays, takesArrays); err != nil {
		return queue.Registration{}, err
	}
	q.arrays.Store(arrays)
	q.credential.Registered(reply.ClusterID)
	if q.listener != nil {
		q.listener.watch(reply.ClusterID)
	}
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
	about, err := json.Marshal(q.agent)
	if err != nil {
		return queue.Standing{}, fmt.Errorf("encode the agent's description: %w", err)
	}
	var s queue.Standing
	err = q.call(ctx, "ask how the agent stands", &s, "SELECT public.check_agent($1, $2::text::jsonb)", hash, string(about))
	return s, err
}

// Heartbeat implements queue.Queue.
func (q *Queue) Heartbeat(ctx context.Context, claims []uuid.UUID) (queue.Pulse, error) {
	if claims == nil {
		claims = []uuid.UUID{} // not NULL
	}
	q.renew(ctx)
	var reply struct {
		Cancel    []uuid.UUID `json:"cancel"`
		Lost      []uuid.UUID `json:"lost"`
		Poll      float64     `json:"poll_seconds"`
		Heartbeat float64     `json:"heartbeat_seconds"`
	}
	if err := q.call(ctx, "send a heartbeat", &reply,
		"SELECT public.agent_heartbeat($1, $2, $3, $4)", q.credential.Hash(), q.agent.Instance, q.agent.Boot, claims); err != nil {
		return queue.Pulse{}, err
	}
	return queue.Pulse{Cancel: reply.Cancel, Lost: reply.Lost, Poll: seconds(reply.Poll), Heartbeat: seconds(reply.Heartbeat)}, nil
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
// parsing there; without chunks it is a question only. appendJSON is for a
// database that is one contract older.
const (
	appendLog  = `SELECT public.append_provision_log($1, $2, $3, $4::text[], $5::text[], $6::timestamptz[])`
	appendJSON = `SELECT public.insert_provision_log($1, $2, $3, (
	SELECT jsonb_agg(jsonb_build_object('stream', c.stream, 'text', c.text, 'at', c.at) ORDER BY c.n)
	FROM unnest($4::text[], $5::text[], $6::timestamptz[]) WITH ORDINALITY AS c (stream, text, at, n)))`
	takesArrays = `SELECT EXISTS (SELECT FROM pg_proc WHERE proname = 'append_provision_log' AND pronamespace = 'public'::regnamespace)`
)

// AppendLog implements queue.Queue.
func (q *Queue) AppendLog(ctx context.Context, claimID uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	return q.link.AppendLog(ctx, chunks, func(part []provision.LogChunk) (next int64, err error) {
		streams, texts, times := make([]string, len(part)), make([]string, len(part)), make([]time.Time, len(part))
		for i, c := range part {
			streams[i], texts[i], times[i] = string(c.Stream), c.Text, c.EmittedAt
		}
		statement := appendJSON
		if q.arrays.Load() {
			statement = appendLog
		}
		err = q.call(ctx, "store log lines", &next, statement, q.credential.Hash(), claimID, first, streams, texts, times)
		return next, err
	})
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
	ctx, cancel := context.WithTimeout(ctx, queue.CallLimit(q.timeout, bytes))
	defer cancel()
	row := q.pool.QueryRow(ctx, statement, args...)
	if err := row.Scan(reply); err != nil {
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

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
