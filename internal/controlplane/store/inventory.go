package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Standing is a workspace as lists show it.
type Standing struct {
	ID        uuid.UUID `db:"id" json:"id"`
	Name      string    `db:"name" json:"name"`
	Cluster   string    `db:"cluster" json:"cluster"`
	Template  string    `db:"template" json:"template,omitempty"` // repository and path
	Resources int       `db:"resources" json:"resources"`
	// Doing is what goes on there, or keeps it from being used; "" if nothing.
	Doing string `db:"doing" json:"doing,omitempty"`
	// Number and Status are those of the newest provision.
	Number *int64     `db:"number" json:"number,omitempty"`
	Status *string    `db:"status" json:"status,omitempty"`
	Since  *time.Time `db:"since" json:"since,omitempty"`
}

// standings is a query for Standings of what from chooses, as w, with the name
// of its cluster as cluster_name: before all else is looked up.
func standings(from string) string {
	return `
		SELECT w.id, w.name, w.cluster_name AS cluster, concat_ws('//', w.repo, nullif(w.path, '')) AS template,
		       (SELECT count(*) FROM public.resources r WHERE r.workspace_id = w.id)::int AS resources,
		       CASE WHEN w.locked_at IS NOT NULL THEN 'locked: ' || w.lock_reason
		            WHEN w.held_by_claim IS NOT NULL THEN 'held by an agent that was lost'
		            WHEN w.running_claim IS NOT NULL THEN 'running'
		            WHEN r.status = 'AWAITING_APPROVAL' THEN 'awaiting approval'
		            WHEN w.reserved_by IS NOT NULL THEN CASE WHEN r.approved_plan IS NULL THEN 'waiting to try again' ELSE 'approved' END
		            WHEN w.head_id IS NOT NULL THEN 'queued' ELSE '' END AS doing,
		       p.number, p.status, coalesce(p.finished_at, p.created_at) AS since
		FROM (` + from + `) w
		LEFT JOIN public.provisions r ON r.id = w.reserved_by
		LEFT JOIN LATERAL (SELECT number, status, finished_at, created_at FROM public.provisions
		                   WHERE workspace_id = w.id ORDER BY number DESC LIMIT 1) p ON true
		ORDER BY w.cluster_name, w.name`
}

// Resource is one object that a workspace's state records.
type Resource struct {
	Address     string    `db:"address" json:"address"`
	Type        string    `db:"type" json:"type"`
	Provider    *string   `db:"provider" json:"provider,omitempty"`
	ExternalID  *string   `db:"external_id" json:"external_id,omitempty"`
	IPAddresses []string  `db:"ip_addresses" json:"ip_addresses,omitempty"`
	Status      *string   `db:"status" json:"status,omitempty"`
	UpdatedAt   time.Time `db:"updated_at" json:"updated_at"`
}

// Resources lists what exists in a workspace, by address.
func (s *Store) Resources(ctx context.Context, workspace uuid.UUID) ([]Resource, error) {
	return rows[Resource](ctx, s, "list the resources", `
		SELECT address, type, provider, external_id, ip_addresses, status, updated_at
		FROM public.resources WHERE workspace_id = $1 ORDER BY address`, workspace)
}

// LastApplied returns the cluster and the snapshot of the newest apply in a
// workspace that succeeded, else of the newest: what exists there was made from
// it. A *RefusedError when nothing was ever applied.
func (s *Store) LastApplied(ctx context.Context, w Workspace) (cluster uuid.UUID, snapshot json.RawMessage, err error) {
	type applied struct {
		Cluster  uuid.UUID       `db:"cluster_id"`
		Snapshot json.RawMessage `db:"config_snapshot"`
	}
	found, err := rows[applied](ctx, s, "look for what was deployed", `
		SELECT cluster_id, config_snapshot FROM public.provisions
		WHERE workspace_id = $1 AND operation = 'apply' ORDER BY status = 'SUCCESS' DESC, number DESC LIMIT 1`, w.ID)
	if err != nil {
		return uuid.Nil, nil, err
	}
	if len(found) != 1 {
		return uuid.Nil, nil, &RefusedError{Code: "PT404", Reason: "never_deployed",
			Message: fmt.Sprintf("nothing was ever deployed to workspace %s", w.Name), Hint: "name a template, as for trellis deploy"}
	}
	return found[0].Cluster, found[0].Snapshot, nil
}

// LastOutputs returns the newest provision of a workspace that has outputs. A
// *RefusedError when there is none.
func (s *Store) LastOutputs(ctx context.Context, w Workspace) (Provision, error) {
	found, err := s.provisions(ctx, "look for the outputs", selected(false)+`
		WHERE p.workspace_id = $1 AND p.outputs IS NOT NULL ORDER BY p.number DESC LIMIT 1`, w.ID)
	if err != nil {
		return Provision{}, err
	}
	if len(found) != 1 {
		return Provision{}, &RefusedError{Code: "PT404", Reason: "no_outputs", Message: fmt.Sprintf("workspace %s has no outputs yet", w.Name)}
	}
	return found[0], nil
}

// Lock keeps a workspace from running anything until it is unlocked; the reason
// is shown to others. What runs goes on.
func (s *Store) Lock(ctx context.Context, workspace uuid.UUID, reason string) error {
	_, err := rows[struct{}](ctx, s, "lock the workspace", "SELECT FROM public.lock_workspace($1, $2)", workspace, reason)
	return err
}

// Unlock ends a person's lock: one's own, or as an admin anybody's.
func (s *Store) Unlock(ctx context.Context, workspace uuid.UUID, reason string) error {
	_, err := rows[struct{}](ctx, s, "unlock the workspace", "SELECT FROM public.unlock_workspace($1, $2)", workspace, reason)
	return err
}
