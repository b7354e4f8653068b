package sample

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The clusters, by how they look.
const (
	online  = "sample-prod-eu"
	stale   = "sample-staging"
	offline = "sample-edge"
)

// every is how often Keep is to be called: less than an agent may be silent.
const every = 10 * time.Second

// ErrUsed says that an organisation has runs or webhooks of its own: what is made up
// could never be taken out again, and would be told to who must not believe it.
var ErrUsed = errors.New("somebody works here already, and what is made up could not be removed again: choose a new data directory for it")

// Fill fills the organisation, unless that has been done, and reports whether it
// did. Owner is who looks at it.
func Fill(ctx context.Context, db *pgxpool.Pool, org, owner uuid.UUID) (filled bool, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT FROM tendril.locks WHERE name = 'sample' FOR UPDATE"); err != nil {
			return err
		}
		there, err := Filled(ctx, tx, org)
		if err != nil || there {
			return err
		}
		var used bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM public.provisions WHERE org_id = $1 AND operation <> 'inspect')
			OR EXISTS (SELECT FROM public.webhooks WHERE org_id = $1)`, org).Scan(&used); err != nil {
			return err
		}
		if used {
			return ErrUsed
		}
		filled = true
		t := &teller{ctx: ctx, tx: tx, org: org, owner: owner, now: time.Now(), clusters: map[string]*cluster{}}
		return t.tell()
	})
	if err != nil { // nothing of it is there
		return false, fmt.Errorf("fill in sample data: %w", err)
	}
	return filled, nil
}

// querier is a pool or a transaction.
type querier interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// Filled reports whether an organisation has the sample data.
func Filled(ctx context.Context, db querier, org uuid.UUID) (there bool, err error) {
	err = db.QueryRow(ctx, "SELECT EXISTS (SELECT FROM public.clusters WHERE org_id = $1 AND name = $2)", org, online).Scan(&there)
	return there, err
}

// Keep has the sample look alive until the context ends: nobody else sends the
// heartbeats of agents that are none, and without them what runs would be given
// up.
func Keep(ctx context.Context, db *pgxpool.Pool, org uuid.UUID) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		beat(ctx, db, org)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// beat is one heartbeat of all. One that fails is made up for by the next.
func beat(ctx context.Context, db *pgxpool.Pool, org uuid.UUID) {
	for _, c := range []struct {
		name string
		age  time.Duration
	}{{online, 0}, {stale, 90 * time.Second}} {
		_, _ = db.Exec(ctx, `
			WITH c AS (UPDATE public.clusters SET last_seen_at = clock_timestamp() - make_interval(secs => $3) WHERE org_id = $1 AND name = $2 RETURNING id),
			a AS (UPDATE public.agents a SET last_heartbeat_at = clock_timestamp() - make_interval(secs => $3) FROM c WHERE a.cluster_id = c.id)
			UPDATE tendril.claims l SET lease_until = clock_timestamp() + s.lease FROM c, tendril.settings s WHERE l.cluster_id = c.id AND l.state = 'running'`,
			org, c.name, c.age.Seconds())
	}
}
