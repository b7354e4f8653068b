package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/controlplane/metrics"
	"github.com/tendril-run/tendril/internal/pgurl"
)

const (
	// keepEvery is how often the duties are done: far less than a lease, and next
	// to no work where there is nothing to do.
	keepEvery = 5 * time.Second
	// askLimit bounds each of the keeper's own questions.
	askLimit = 3 * time.Second
)

// keeper asks the database what no agent asks for. One connection is enough.
type keeper struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	// counted is told what a duty did, or that it failed.
	counted func(duty string, done int, err error)
	// turned is when it last began its duties.
	turned atomic.Pointer[time.Time]
}

func newKeeper(ctx context.Context, url string, now pgurl.Source, log *slog.Logger, counted func(string, int, error)) (*keeper, error) {
	pool, err := onePool(ctx, url, now)
	if err != nil {
		return nil, err
	}
	k := &keeper{pool: pool, log: log, counted: counted}
	k.turn()
	return k, nil
}

// onePool is a pool of one connection.
func onePool(ctx context.Context, url string, now pgurl.Source) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err) // pgx redacts the password in this error
	}
	config.BeforeConnect = pgurl.Renew(now)
	config.MaxConns = 1
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // a pooler may stand between
	config.ConnConfig.RuntimeParams["application_name"] = "trellis serve"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return pool, nil
}

func (k *keeper) turn() {
	now := time.Now() // with the monotonic clock
	k.turned.Store(&now)
}

func (k *keeper) turnedAt() time.Time { return *k.turned.Load() }

func (k *keeper) close() { k.pool.Close() }

// duty is one thing that the keeper has the database do, again and again. Any
// number of keepers may, and pg_cron: who comes second finds it done.
type duty struct {
	name   string // in metrics
	query  string // answers how many
	partly bool   // it also answers what failed of it, or NULL
	failed string
	again  string
	did    string // told when there was something to do
	level  slog.Level
}

var duties = []duty{
	// Where no agent calls any more, nobody else does.
	{
		name: metrics.Reap, query: "SELECT tendril.reap()", failed: "leases that ran out cannot be ended; trying again", again: "leases that ran out are ended again",
		did: "leases ran out: their agents were not seen", level: slog.LevelWarn,
	},
	{
		name: "drift", query: "SELECT tendril.queue_drift()", failed: "workspaces cannot be checked for drift; trying again", again: "workspaces are checked for drift again",
		did: "workspaces are checked for drift", level: slog.LevelInfo,
	},
	{
		name: "expire", query: "SELECT coalesce(sum(removed), 0)::int, string_agg(what || ': ' || problem, '; ') FROM tendril.expire()", partly: true,
		failed: "rows whose time is over cannot be removed; trying again", again: "rows whose time is over are removed again",
		did: "rows whose time is over are removed", level: slog.LevelDebug,
	},
	{
		name: "usage", query: "SELECT tendril.measure_usage()", failed: "what clusters use of their bounds cannot be counted; trying again", again: "what clusters use of their bounds is counted again",
		did: "what clusters use of their bounds is counted", level: slog.LevelDebug,
	},
	// Last, for they take the longest: half a second, and what is begun by then.
	{
		name: "archive_logs", query: "SELECT chunks FROM tendril.archive_logs(p_rows => 10000, p_time => '500 milliseconds')", failed: "old logs cannot be archived; trying again", again: "old logs are archived again",
		did: "rows of old logs are archived", level: slog.LevelDebug,
	},
	{
		name: "delete_logs", query: "SELECT tendril.delete_logs(p_limit => 10)", failed: "logs beyond their time cannot be deleted; trying again", again: "logs beyond their time are deleted again",
		did: "logs beyond their time are deleted", level: slog.LevelInfo,
	},
}

// dutyNames are those of all duties.
func dutyNames() []string {
	names := make([]string, len(duties))
	for i, d := range duties {
		names[i] = d.name
	}
	return names
}

// keep does the duties until the context ends.
func (k *keeper) keep(ctx context.Context) {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	away := make([]bool, len(duties))
	for {
		k.turn()
		for i, d := range duties {
			away[i] = k.do(ctx, d, away[i])
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// do does a duty once and reports whether it failed; away: the last time it did.
func (k *keeper) do(ctx context.Context, d duty, away bool) bool {
	limited, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var count int
	var problem *string
	answer := []any{&count}
	if d.partly {
		answer = append(answer, &problem)
	}
	err := k.pool.QueryRow(limited, d.query).Scan(answer...)
	if err == nil && problem != nil {
		err = errors.New(*problem)
	}
	if ctx.Err() == nil {
		k.counted(d.name, count, err)
	}
	switch {
	case ctx.Err() != nil:
		return away
	case err != nil && !away:
		k.log.Error(d.failed, "every", keepEvery, "error", err)
	case err == nil && away:
		k.log.Info(d.again)
	case count > 0:
		k.log.Log(ctx, d.level, d.did, "count", count)
	}
	if err != nil {
		k.pool.Reset() // it may be to a server that is the primary no more
	}
	return err != nil
}

// standing is what the public /healthz answers. Why the database does not is not told: the
// error may name hosts and users, and nobody signs in here.
type standing struct {
	Status   string `json:"status"` // "ok", else "unavailable"
	Version  string `json:"version"`
	Database struct {
		OK bool `json:"ok"`
	} `json:"database"`
}

func (k *keeper) health(version string) func(context.Context) (any, bool) {
	return func(ctx context.Context) (any, bool) {
		ctx, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		h := standing{Status: "ok", Version: version}
		if h.Database.OK = k.pool.Ping(ctx) == nil; !h.Database.OK {
			h.Status = "unavailable"
		}
		return h, h.Database.OK
	}
}
