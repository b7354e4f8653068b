package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Deployed is a provision just queued.
type Deployed struct {
	ID     uuid.UUID `db:"id" json:"id"`
	Number int64     `db:"number" json:"number"`
	// Workspace is the name that the database took from the snapshot.
	Workspace string `db:"workspace" json:"workspace"`
}

// Deploy queues a snapshot on a cluster, to apply it or whatever else the
// operation says. The database checks it: what is wrong
// with it comes back as a *RefusedError with reason bad_snapshot, a line for
// each problem.
func (s *Store) Deploy(ctx context.Context, cluster uuid.UUID, operation provision.Operation, snapshot json.RawMessage) (Deployed, error) {
	queued, err := rows[Deployed](ctx, s, "queue the deploy", `
		WITH queued AS (
		  INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, $2, $3::text::jsonb)
		  RETURNING id, number, config_snapshot)
		SELECT id, number, coalesce(config_snapshot ->> 'workspace',
		         (config_snapshot -> 'terraform_vars' ->> 'project_name') || '/' || (config_snapshot -> 'terraform_vars' ->> 'environment')) AS workspace
		FROM queued`, cluster, operation, string(snapshot))
	if err != nil {
		return Deployed{}, err
	}
	if len(queued) != 1 {
		return Deployed{}, fmt.Errorf("queue the deploy: the database answered %d rows, not one", len(queued))
	}
	return queued[0], nil
}

// Cancel cancels a provision that waits, or asks its agent to stop it. It
// returns the status after that: CANCELLED, or PROCESSING while the agent stops.
func (s *Store) Cancel(ctx context.Context, id uuid.UUID) (provision.Status, error) {
	return one[provision.Status](ctx, s, "cancel the provision", "SELECT public.cancel_provision($1) AS answer", id)
}
