package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Drift is what is known of how a workspace's infrastructure differs from its
// state.
type Drift struct {
	Workspace string `db:"workspace" json:"workspace"`
	Cluster   string `db:"cluster" json:"cluster"`
	// Every is how often it is looked for, in seconds; nil: only when asked to.
	Every *float64 `db:"every" json:"every_seconds,omitempty"`
	// LookedAt is when it was looked for last; nil: never.
	LookedAt *time.Time                `db:"looked_at" json:"looked_at,omitempty"`
	Count    int                       `db:"count" json:"count"`
	Changes  []provision.PlannedChange `db:"changes" json:"changes,omitempty"`
}

const driftColumns = `SELECT w.name AS workspace, c.name AS cluster, extract(epoch FROM w.drift_every)::float8 AS every,
	w.drift_at AS looked_at, coalesce(w.drift_count, 0) AS count, coalesce(w.drift, '[]') AS changes
	FROM public.workspaces w JOIN public.clusters c ON c.id = w.cluster_id `

// Drift tells what is known of one workspace.
func (s *Store) Drift(ctx context.Context, workspace uuid.UUID) (Drift, error) {
	found, err := rows[Drift](ctx, s, "read what has drifted", driftColumns+"WHERE w.id = $1", workspace)
	if err != nil || len(found) != 1 {
		return Drift{}, err
	}
	return found[0], nil
}

// WatchDrift has a workspace looked at for drift every so often, from 5 minutes
// to 366 days; 0 is never.
func (s *Store) WatchDrift(ctx context.Context, workspace uuid.UUID, every time.Duration) error {
	_, err := rows[struct{}](ctx, s, "set the schedule", "SELECT FROM public.set_drift_schedule($1, make_interval(secs => nullif($2::float8, 0)))", workspace, every.Seconds())
	return err
}
