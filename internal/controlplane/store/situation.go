package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Situation is a workspace as pages show it: what is there, and what goes on.
type Situation struct {
	ID        uuid.UUID `db:"id"`
	Name      string    `db:"name"`
	ClusterID uuid.UUID `db:"cluster_id"`
	Cluster   string    `db:"cluster"`
	Repo      string    `db:"repo"`
	Path      string    `db:"path"`
	Resources int       `db:"resources"`
	// State is LOCKED, HELD, RUNNING, AWAITING_APPROVAL, RESERVED, QUEUED or "",
	// the first that is true.
	State        string     `db:"state"`
	Locked       bool       `db:"locked"`
	LockedAt     *time.Time `db:"locked_at"`
	LockedBy     *uuid.UUID `db:"locked_by"`
	LockedByName string     `db:"locked_by_name"`
	Reason       string     `db:"lock_reason"`
	// Held: an agent was lost during apply. Unsaved: an agent keeps a state that
	// could not be stored; where says on which, and Home which agent has the state
	// as a file.
	Held    bool   `db:"held"`
	Unsaved string `db:"unsaved"`
	Home    string `db:"home"`
	// Drift is how many resources differ from the state, nil where nobody has
	// looked since the last apply.
	Drift *int `db:"drift"`
	// Number, Status, Operation and Since are those of the newest provision.
	Number    *int64          `db:"number"`
	Status    *string         `db:"status"`
	Operation *string         `db:"operation"`
	Since     *time.Time      `db:"since"`
	CreatedAt time.Time       `db:"created_at"`
	StateLock json.RawMessage `db:"state_lock"`
	// Now is the number of what runs, is reserved or is next; nil if nothing.
	Now *int64 `db:"now"`
}

// SituationFilter says which workspaces a list has; what is empty does not matter.
type SituationFilter struct {
	Words   string // a part of the name
	Cluster uuid.UUID
	// State is locked, held, running, waiting, drifted, failed or idle.
	State string
	// After is where the page before ended: cluster and name.
	AfterCluster, AfterName string
}

// states are the conditions of SituationFilter.State.
var states = map[string]string{
	"":        "true",
	"locked":  "w.locked_at IS NOT NULL",
	"held":    "(w.held_by_claim IS NOT NULL OR w.unsaved_state_on IS NOT NULL)",
	"running": "w.running_claim IS NOT NULL",
	"waiting": "(w.head_id IS NOT NULL OR w.reserved_by IS NOT NULL)",
	"drifted": "w.drift_count > 0",
	"failed":  "(SELECT p.status FROM public.provisions p WHERE p.workspace_id = w.id ORDER BY p.number DESC LIMIT 1) = 'FAILED'",
	"idle": `w.locked_at IS NULL AND w.held_by_claim IS NULL AND w.unsaved_state_on IS NULL AND w.running_claim IS NULL
	         AND w.head_id IS NULL AND w.reserved_by IS NULL`,
}

// situated selects Situations of the workspaces w that chosen has, with their
// cluster's name as cluster: chosen before anything is looked up.
func situated(chosen string) string {
	return `
	SELECT w.id, w.name, w.cluster_id, w.cluster, coalesce(w.repo, '') AS repo, coalesce(w.path, '') AS path,
	       (SELECT count(*)::int FROM public.resources r WHERE r.workspace_id = w.id) AS resources,
	       CASE WHEN w.locked_at IS NOT NULL THEN 'LOCKED'
	            WHEN w.held_by_claim IS NOT NULL OR w.unsaved_state_on IS NOT NULL THEN 'HELD'
	            WHEN w.running_claim IS NOT NULL THEN 'RUNNING'
	            WHEN r.status = 'AWAITING_APPROVAL' THEN 'AWAITING_APPROVAL'
	            WHEN w.reserved_by IS NOT NULL THEN 'RESERVED'
	            WHEN w.head_id IS NOT NULL THEN 'QUEUED' ELSE '' END AS state,
	       w.locked_at IS NOT NULL AS locked, w.locked_at, w.locked_by, coalesce(w.lock_reason, '') AS lock_reason,
	       coalesce(CASE WHEN w.locked_by IS NOT NULL THEN (SELECT coalesce(nullif(h.name, ''), h.email) FROM public.people h WHERE h.org_id = w.org_id AND h.user_id = w.locked_by) END, '') AS locked_by_name,
	       w.held_by_claim IS NOT NULL AS held, w.drift_count AS drift, w.created_at, w.state_lock,
	       CASE WHEN w.unsaved_state_on IS NULL THEN '' ELSE coalesce(
	         (SELECT a.name || ' on ' || a.host FROM public.agents a WHERE a.cluster_id = w.cluster_id AND a.instance_id = w.unsaved_state_on), w.unsaved_state_on::text) END AS unsaved,
	       CASE WHEN w.home_instance IS NULL THEN '' ELSE coalesce(
	         (SELECT a.name || ' on ' || a.host FROM public.agents a WHERE a.cluster_id = w.cluster_id AND a.instance_id = w.home_instance), w.home_instance::text) END AS home,
	       p.number, p.status, p.operation, coalesce(p.finished_at, p.created_at) AS since,
	       coalesce(CASE WHEN w.running_claim IS NOT NULL THEN (SELECT n.number FROM public.provisions n
	                  WHERE n.workspace_id = w.id AND n.status = 'PROCESSING' ORDER BY n.number DESC LIMIT 1) END, r.number, w.head_number) AS now
	FROM (` + chosen + `) w
	LEFT JOIN public.provisions r ON r.id = w.reserved_by
	LEFT JOIN LATERAL (SELECT number, status, operation, finished_at, created_at FROM public.provisions
	                   WHERE workspace_id = w.id ORDER BY number DESC LIMIT 1) p ON true
	ORDER BY w.cluster, w.name`
}

// Situations lists an organisation's workspaces by cluster and name, at most limit;
// more reports whether others follow.
func (s *Store) Situations(ctx context.Context, org uuid.UUID, f SituationFilter, limit int) (page []Situation, more bool, err error) {
	condition, ok := states[f.State]
	if !ok {
		condition = "true"
	}
	pattern := "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(f.Words) + "%"
	page, err = rows[Situation](ctx, s, "list the workspaces", situated(`
		SELECT w.*, c.name AS cluster FROM public.clusters c JOIN public.workspaces w ON w.cluster_id = c.id
		WHERE c.org_id = $1 AND NOT w.hidden AND ($2::uuid IS NULL OR c.id = $2) AND w.name ILIKE $3 AND `+condition+`
		  AND (c.name, w.name) > ($4, $5)
		ORDER BY c.name, w.name LIMIT $6`),
		org, uuid.NullUUID{UUID: f.Cluster, Valid: f.Cluster != uuid.Nil}, pattern, f.AfterCluster, f.AfterName, limit+1)
	if len(page) > limit {
		return page[:limit], true, err
	}
	return page, false, err
}

// Situation returns an organisation's workspace of that id. A *RefusedError when
// there is none.
func (s *Store) Situation(ctx context.Context, org uuid.UUID, id string) (Situation, error) {
	found, err := rows[Situation](ctx, s, "look for the workspace", situated(`
		SELECT w.*, c.name AS cluster FROM public.workspaces w JOIN public.clusters c ON c.id = w.cluster_id
		WHERE w.id::text = lower($2) AND w.org_id = $1 AND NOT w.hidden`), org, id)
	if err != nil {
		return Situation{}, err
	}
	if len(found) == 0 {
		return Situation{}, &RefusedError{Code: "PT404", Reason: "workspace_not_found", Message: fmt.Sprintf("there is no workspace %q that you may see", id), Hint: "look for it in the list of workspaces"}
	}
	return found[0], nil
}

// History lists a workspace's latest provisions, newest first.
func (s *Store) History(ctx context.Context, workspace uuid.UUID, limit int) ([]Provision, error) {
	return s.provisions(ctx, "read the history", selected(false)+" WHERE p.workspace_id = $1 ORDER BY p.number DESC LIMIT $2", workspace, limit)
}
