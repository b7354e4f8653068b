package serve

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// reapEvery is how often leases that ran out are looked for: far less than
	// a lease, and next to no work where there are none.
	reapEvery = 5 * time.Second
	// askLimit bounds each of the keeper's own questions.
	askLimit = 3 * time.Second
)

// keeper asks the database what no agent asks for. One connection is enough.
type keeper struct {
	pool *pgxpool.Pool
	log  *slog.Logger
}

func newKeeper(ctx context.Context, url string, log *slog.Logger) (*keeper, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err) // pgx redacts the password in this error
	}
	config.MaxConns = 1
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // a pooler may stand between
	config.ConnConfig.RuntimeParams["application_name"] = "trellis serve"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return &keeper{pool: pool, log: log}, nil
}

func (k *keeper) close() { k.pool.Close() }

// reap gives up leases that ran out until the context ends: where no agent
// calls any more, nobody else does.
func (k *keeper) reap(ctx context.Context) {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	away := false
	for {
		limited, cancel := context.WithTimeout(ctx, askLimit)
		var ended int
		err := k.pool.QueryRow(limited, "SELECT tendril.reap()").Scan(&ended)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !away:
			k.log.Error("leases that ran out cannot be ended; trying again", "every", reapEvery, "error", err)
		case err == nil && away:
			k.log.Info("leases that ran out are ended again")
		case ended > 0:
			k.log.Warn("leases ran out: their agents were not heard of", "provisions", ended)
		}
		if away = err != nil; away {
			k.pool.Reset() // it may be to a server that is the primary no more
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// health is what /healthz answers. Why the database does not is not told: the
// error may name hosts and users, and nobody signs in here.
type health struct {
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
		h := health{Status: "ok", Version: version}
		if h.Database.OK = k.pool.Ping(ctx) == nil; !h.Database.OK {
			h.Status = "unavailable"
		}
		return h, h.Database.OK
	}
}
