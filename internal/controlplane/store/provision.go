package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Provision is one provision as people see it.
type Provision struct {
	ID        uuid.UUID           `db:"id" json:"id"`
	Number    int64               `db:"number" json:"number"`
	Cluster   string              `db:"cluster" json:"cluster"`
	Workspace string              `db:"workspace" json:"workspace"`
	Operation provision.Operation `db:"operation" json:"operation"`
	Status    provision.Status    `db:"status" json:"status"`
	// Waiting says why it is not running yet, when something but its turn is
	// in the way; "" otherwise.
	Waiting string `db:"waiting" json:"waiting,omitempty"`
	// Stage and Percent are how far a running one has come.
	Stage   *provision.Stage `db:"stage" json:"stage,omitempty"`
	Percent *int             `db:"percent" json:"percent,omitempty"`

	Template Source  `db:"template" json:"template"`
	Commit   *string `db:"commit" json:"commit,omitempty"`
	Engine   *string `db:"engine" json:"engine,omitempty"` // "terraform 1.11.4"

	Plan *provision.PlanSummary `db:"plan" json:"plan,omitempty"`
	// PlanDigest names the plan that awaits approval, or did.
	PlanDigest *string                     `db:"plan_digest" json:"plan_digest,omitempty"`
	Outputs    map[string]provision.Output `db:"outputs" json:"outputs,omitempty"`

	ErrorCode         *string    `db:"error_code" json:"error_code,omitempty"`
	ErrorMessage      *string    `db:"error_message" json:"error_message,omitempty"`
	RequestedBy       *uuid.UUID `db:"requested_by" json:"requested_by,omitempty"`
	CancelRequestedAt *time.Time `db:"cancel_requested_at" json:"cancel_requested_at,omitempty"`
	CreatedAt         time.Time  `db:"created_at" json:"created_at"`
	StartedAt         *time.Time `db:"started_at" json:"started_at,omitempty"`
	FinishedAt        *time.Time `db:"finished_at" json:"finished_at,omitempty"`

	// Snapshot is what was asked for. Lists leave it out.
	Snapshot json.RawMessage `db:"snapshot" json:"config_snapshot,omitempty"`
}

// Source is the template of a provision.
type Source struct {
	Repo    string `json:"repo"`
	Version string `json:"version"`
	Path    string `json:"path,omitempty"`
}

// NotProvisionError says that a word is neither an id nor a number.
type NotProvisionError struct{ Ref string }

func (e *NotProvisionError) Error() string {
	return fmt.Sprintf("%q is neither a provision's number nor its id", e.Ref)
}

// columns of a Provision, p being public.provisions. %s is the snapshot.
const columns = `
	p.id, p.number, c.name AS cluster, w.name AS workspace, p.operation, p.status,
	CASE WHEN p.status <> 'QUEUED' THEN ''
	     WHEN w.held_by_claim IS NOT NULL THEN 'the workspace is held: an agent was lost while it applied there (should it not come back, an admin ends that: trellis release)'
	     WHEN w.locked_at IS NOT NULL THEN 'the workspace is locked: ' || w.lock_reason
	     WHEN w.running_claim IS NOT NULL THEN 'another provision runs in this workspace'
	     WHEN w.reserved_by <> p.id THEN 'another provision in this workspace awaits approval'
	     WHEN w.head_id <> p.id THEN 'other provisions in this workspace come first'
	     WHEN c.paused_at IS NOT NULL THEN 'the cluster is paused'
	     WHEN c.last_seen_at IS NULL THEN 'no agent of this cluster has ever been heard of'
	     WHEN c.last_seen_at NOT BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds' THEN 'no agent of this cluster has been heard of since '
	          || to_char(c.last_seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')
	     WHEN coalesce(w.unsaved_state_on, w.home_instance) IS NULL
	          OR a.last_heartbeat_at BETWEEN now() - interval '45 seconds' AND now() + interval '45 seconds' THEN ''
	     WHEN w.unsaved_state_on IS NOT NULL THEN 'a state that could not be stored is kept by an agent that is away'
	          || coalesce(', ' || a.name || ' on ' || a.host, '') || ' (should it not come back, an admin gives that state up: trellis release)'
	     ELSE 'the workspace''s state is on an agent that is away' || coalesce(', ' || a.name || ' on ' || a.host, '') END AS waiting,
	g.stage, g.percent, p.config_snapshot -> 'template_source' AS template, p.resolved_commit AS commit,
	nullif(concat_ws(' ', p.engine, p.engine_version), '') AS engine, p.plan_summary AS plan, p.plan_digest, p.outputs,
	p.error_code, p.error_message, p.requested_by, p.cancel_requested_at, p.created_at, p.started_at, p.finished_at,
	%s AS snapshot
	FROM public.provisions p
	JOIN public.clusters c ON c.id = p.cluster_id
	JOIN public.workspaces w ON w.id = p.workspace_id
	LEFT JOIN public.provision_progress g ON g.provision_id = p.id
	-- The only agent that may run it, where there is but one.
	LEFT JOIN public.agents a ON a.cluster_id = p.cluster_id AND a.instance_id = coalesce(w.unsaved_state_on, w.home_instance)`

// Provision returns the provision of that id or number. The error is an
// *NotProvisionError when ref is neither, and a *RefusedError (PT404) when there
// is none that the person may see.
func (s *Store) Provision(ctx context.Context, ref string) (Provision, error) {
	var condition string
	var key any
	if number, err := strconv.ParseInt(strings.TrimPrefix(ref, "#"), 10, 64); err == nil {
		condition, key = "p.number = $1", number
	} else if id, err := uuid.Parse(ref); err == nil {
		condition, key = "p.id = $1", id
	} else {
		return Provision{}, &NotProvisionError{Ref: ref}
	}
	found, err := rows[Provision](ctx, s, "read the provision", "SELECT "+fmt.Sprintf(columns, "p.config_snapshot")+" WHERE "+condition, key)
	if err != nil {
		return Provision{}, err
	}
	if len(found) != 1 {
		return Provision{}, &RefusedError{Code: "PT404", Reason: "provision_not_found",
			Message: fmt.Sprintf("there is no provision %s that you may see", ref), Hint: `"trellis status" lists the latest`}
	}
	return found[0], nil
}

// Provisions lists the latest provisions that the person may see, newest
// first, at most limit, without their snapshots.
func (s *Store) Provisions(ctx context.Context, limit int) ([]Provision, error) {
	return rows[Provision](ctx, s, "list the provisions",
		"SELECT "+fmt.Sprintf(columns, "NULL::jsonb")+" ORDER BY p.number DESC LIMIT $1", limit)
}
