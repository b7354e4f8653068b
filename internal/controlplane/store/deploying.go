package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/canonical"
	"github.com/tendril-run/tendril/internal/provision"
)

// Place is a cluster as somebody who is to deploy there needs to know it.
type Place struct {
	ID           uuid.UUID  `db:"id"`
	Name         string     `db:"name"`
	Connectivity string     `db:"connectivity"` // ONLINE, STALE or OFFLINE
	PausedAt     *time.Time `db:"paused_at"`
	LastSeenAt   *time.Time `db:"last_seen_at"`
	// AgePublicKey is what variables are sealed to; "" until an agent has
	// brought one.
	AgePublicKey string `db:"age_public_key"`
	Agents       int    `db:"agents"` // alive
	Policy
}

// Places lists an organisation's clusters, by name.
func (s *Store) Places(ctx context.Context, org uuid.UUID) ([]Place, error) {
	return rows[Place](ctx, s, "list the clusters", `
		SELECT o.id, o.name, o.connectivity, o.paused_at, o.last_seen_at, coalesce(c.age_public_key, '') AS age_public_key,
		       (SELECT count(*) FROM public.agents a WHERE a.cluster_id = c.id
		        AND a.last_heartbeat_at BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds')::int AS agents,
		       c.approval, c.approvers, c.four_eyes, c.approval_expiry::text AS approval_expiry
		FROM public.cluster_overview o JOIN public.clusters c ON c.id = o.id
		WHERE c.org_id = $1 ORDER BY o.name, o.id`, org)
}

// Target is a workspace to which somebody is about to deploy.
type Target struct {
	ID        uuid.UUID `db:"id"`
	Name      string    `db:"name"`
	Repo      *string   `db:"repo"` // what it is bound to, in its canonical form
	Path      *string   `db:"path"`
	Resources int       `db:"resources"`
	// LockReason is why a person has locked it.
	LockReason *string `db:"lock_reason"`
	Held       bool    `db:"held"`
	// Number and Snapshot are of the newest apply that succeeded; nil where none
	// has.
	Number   *int64          `db:"number"`
	Snapshot json.RawMessage `db:"snapshot"`
	At       *time.Time      `db:"at"`
}

// FindTarget returns the workspace of that name on a cluster; nil where there is
// none yet.
func (s *Store) FindTarget(ctx context.Context, cluster uuid.UUID, name string) (*Target, error) {
	found, err := rows[Target](ctx, s, "look for the workspace", `
		SELECT w.id, w.name, w.repo, w.path, (SELECT count(*) FROM public.resources r WHERE r.workspace_id = w.id)::int AS resources,
		       w.lock_reason, w.held_by_claim IS NOT NULL AS held, p.number, p.config_snapshot AS snapshot, p.finished_at AS at
		FROM public.workspaces w
		LEFT JOIN LATERAL (
		  SELECT number, config_snapshot, finished_at FROM public.provisions
		  WHERE workspace_id = w.id AND operation = 'apply' AND status = 'SUCCESS' ORDER BY number DESC LIMIT 1) p ON true
		WHERE w.cluster_id = $1 AND w.name = $2 AND NOT w.hidden`, cluster, name)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// WorkspaceNames lists the workspaces of a cluster by name that are bound to a
// template or to none, at most limit: those that it can be deployed to.
func (s *Store) WorkspaceNames(ctx context.Context, cluster uuid.UUID, repo, path string, limit int) ([]string, error) {
	type named struct {
		Name string `db:"name"`
	}
	found, err := rows[named](ctx, s, "list the workspaces", `
		SELECT name FROM public.workspaces WHERE cluster_id = $1 AND NOT hidden AND (repo IS NULL OR repo = $2 AND path = $3)
		ORDER BY name LIMIT $4`, cluster, canonical.Address(repo), canonical.Path(path), limit)
	names := make([]string, len(found))
	for i, f := range found {
		names[i] = f.Name
	}
	return names, err
}

// DeployAs is Deploy under an id of the caller's choice: who sends it again, as
// by a second click, gets the provision that there is, and makes no other.
func (s *Store) DeployAs(ctx context.Context, id, cluster uuid.UUID, operation provision.Operation, snapshot json.RawMessage) (Deployed, error) {
	const answer = `id, number, coalesce(config_snapshot ->> 'workspace',
		(config_snapshot -> 'terraform_vars' ->> 'project_name') || '/' || (config_snapshot -> 'terraform_vars' ->> 'environment')) AS workspace`
	queued, err := only[Deployed](ctx, s, "queue the deploy", `
		WITH queued AS (
		  INSERT INTO public.provisions (id, cluster_id, operation, config_snapshot) VALUES ($1, $2, $3, $4::text::jsonb)
		  RETURNING id, number, config_snapshot)
		SELECT `+answer+` FROM queued`, id, cluster, operation, string(snapshot))
	if refused, ok := errors.AsType[*RefusedError](err); ok && refused.Code == uniqueViolation {
		return only[Deployed](ctx, s, "look for the deploy", "SELECT "+answer+" FROM public.provisions WHERE id = $1 AND requested_by = $2", id, s.user)
	}
	return queued, err
}

const uniqueViolation = "23505"
