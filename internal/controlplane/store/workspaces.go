package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Workspace is one Terraform state and what keeps it from being used.
type Workspace struct {
	ID      uuid.UUID `db:"id"`
	OrgID   uuid.UUID `db:"org_id"`
	Name    string    `db:"name"`
	Cluster string    `db:"cluster"`
}

// Release ends what holds a workspace without a run: an agent that was lost
// during apply, or a state that an agent keeps because it could not be stored.
// A *RefusedError says so when nothing does, or when the person is no admin.
func (s *Store) Release(ctx context.Context, workspace uuid.UUID, reason string) error {
	return s.do(ctx, "release the workspace", "SELECT FROM public.release_workspace($1, $2)", workspace, reason)
}

// Rebind binds a workspace to another template: the next apply there destroys
// what that one does not know.
func (s *Store) Rebind(ctx context.Context, workspace uuid.UUID, repo, path, reason string) error {
	return s.do(ctx, "bind the workspace to another template", "SELECT FROM public.rebind_workspace($1, $2, $3, $4)", workspace, repo, reason, path)
}

// Situation is a workspace as pages and answers show it: what is there, and what goes on.
type Situation struct {
	ID        uuid.UUID `db:"id"`
	Name      string    `db:"name"`
	ClusterID uuid.UUID `db:"cluster_id"`
	Cluster   string    `db:"cluster"`
	Repo      string    `db:"repo"`
	Path      string    `db:"path"`
	Resources int       `db:"resources"`
	// State is LOCKED, HELD, RUNNING, AWAITING_APPROVAL, RESERVED, QUEUED or "",
	// the first that is true. Doing says about the same in words.
	State        string     `db:"state"`
	Doing        string     `db:"doing"`
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
	// looked since the last apply; DriftAt is when somebody looked last.
	Drift   *int       `db:"drift"`
	DriftAt *time.Time `db:"drift_at"`
	// Number, Status, Operation and Since are those of the newest provision.
	Number    *int64     `db:"number"`
	Status    *string    `db:"status"`
	Operation *string    `db:"operation"`
	Since     *time.Time `db:"since"`
	CreatedAt time.Time  `db:"created_at"`
	// StateVersion and StateSerial are of the managed state; nil where the state
	// is elsewhere. StateLock is who holds its lock, as far as a run met it.
	StateVersion *int64     `db:"state_version"`
	StateSerial  *int64     `db:"state_serial"`
	StateAt      *time.Time `db:"state_at"`
	StateLock    *HeldLock  `db:"state_lock"`
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
	            WHEN r.status IN ('AWAITING_APPROVAL', 'AWAITING_INPUT') THEN r.status
	            WHEN w.reserved_by IS NOT NULL THEN 'RESERVED'
	            WHEN w.head_id IS NOT NULL THEN 'QUEUED' ELSE '' END AS state,
	       CASE WHEN w.locked_at IS NOT NULL THEN 'locked: ' || w.lock_reason
	            WHEN w.held_by_claim IS NOT NULL THEN 'held by an agent that was lost'
	            WHEN w.running_claim IS NOT NULL THEN 'running'
	            WHEN r.status = 'AWAITING_APPROVAL' THEN 'awaiting approval'
	            WHEN r.status = 'AWAITING_INPUT' THEN 'awaiting what a person is to do'
	            WHEN w.reserved_by IS NOT NULL THEN CASE WHEN r.plan_digest IS NULL THEN 'waiting to try again' WHEN r.approved_plan IS NULL THEN 'done by a person' ELSE 'approved' END
	            WHEN w.head_id IS NOT NULL THEN 'queued' ELSE '' END AS doing,
	       w.locked_at IS NOT NULL AS locked, w.locked_at, w.locked_by, coalesce(w.lock_reason, '') AS lock_reason,
	       coalesce(CASE WHEN w.locked_by IS NOT NULL THEN (SELECT coalesce(nullif(h.name, ''), h.email) FROM public.people h WHERE h.org_id = w.org_id AND h.user_id = w.locked_by) END, '') AS locked_by_name,
	       w.held_by_claim IS NOT NULL AS held, w.drift_count AS drift, w.drift_at, w.created_at, w.state_version, w.state_serial, w.state_at, w.state_lock,
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
	page, err = rows[Situation](ctx, s, "list the workspaces", situated(`
		SELECT w.*, c.name AS cluster FROM public.clusters c JOIN public.workspaces w ON w.cluster_id = c.id
		WHERE c.org_id = $1 AND NOT w.hidden AND ($2::uuid IS NULL OR c.id = $2) AND w.name ILIKE $3 AND `+condition+`
		  AND (c.name, w.name) > ($4, $5)
		ORDER BY c.name, w.name LIMIT $6`),
		org, orNull(f.Cluster), containing(f.Words), f.AfterCluster, f.AfterName, limit+1)
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
	return first(found, err, &RefusedError{Code: "PT404", Reason: "workspace_not_found", Message: fmt.Sprintf("there is no workspace %q, or you have no access to it", id), Hint: "look for it in the list of workspaces"})
}

// History lists a workspace's latest provisions, newest first.
func (s *Store) History(ctx context.Context, workspace uuid.UUID, limit int) ([]Provision, error) {
	return s.provisions(ctx, "read the history", selected(false)+" WHERE p.workspace_id = $1 ORDER BY p.number DESC LIMIT $2", workspace, limit)
}

// Resource is one object that a workspace's state records.
type Resource struct {
	Address     string    `db:"address"`
	Type        string    `db:"type"`
	Provider    *string   `db:"provider"`
	ExternalID  *string   `db:"external_id"`
	IPAddresses []string  `db:"ip_addresses"`
	Status      *string   `db:"status"`
	UpdatedAt   time.Time `db:"updated_at"`
}

// Resources lists what exists in a workspace, by address.
func (s *Store) Resources(ctx context.Context, workspace uuid.UUID) ([]Resource, error) {
	return rows[Resource](ctx, s, "list the resources", selectedResources+"WHERE workspace_id = $1 ORDER BY address", workspace)
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
	last, err := first(found, err, &RefusedError{Code: "PT404", Reason: "never_deployed",
		Message: fmt.Sprintf("nothing was ever deployed to workspace %s", w.Name), Hint: "name a template, as for trellis deploy"})
	return last.Cluster, last.Snapshot, err
}

// LastOutputs returns the newest provision of a workspace that has outputs. A
// *RefusedError when there is none.
func (s *Store) LastOutputs(ctx context.Context, w Workspace) (Provision, error) {
	found, err := s.provisions(ctx, "look for the outputs", selected(false)+`
		WHERE p.workspace_id = $1 AND p.outputs IS NOT NULL AND p.operation <> 'state' ORDER BY p.number DESC LIMIT 1`, w.ID)
	return first(found, err, &RefusedError{Code: "PT404", Reason: "no_outputs", Message: fmt.Sprintf("workspace %s has no outputs yet", w.Name)})
}

// Lock keeps a workspace from running anything until it is unlocked; the reason
// is shown to others. What runs goes on.
func (s *Store) Lock(ctx context.Context, workspace uuid.UUID, reason string) error {
	return s.do(ctx, "lock the workspace", "SELECT FROM public.lock_workspace($1, $2)", workspace, reason)
}

// Unlock ends a person's lock: one's own, or as an admin anybody's.
func (s *Store) Unlock(ctx context.Context, workspace uuid.UUID, reason string) error {
	return s.do(ctx, "unlock the workspace", "SELECT FROM public.unlock_workspace($1, $2)", workspace, reason)
}

// WorkspaceKey is where a workspace stands in a list.
type WorkspaceKey struct{ Cluster, Name string }

// ListWorkspaces lists an organisation's workspaces by cluster and name, at most
// limit, those after the key given; next is nil at the end. cluster, if it is not
// uuid.Nil, is the only one whose workspaces are listed.
func (s *Store) ListWorkspaces(ctx context.Context, org, cluster uuid.UUID, after WorkspaceKey, limit int) (page []Situation, next *WorkspaceKey, err error) {
	// Of each cluster by its index, so that nothing is sorted but one page of each.
	found, err := rows[Situation](ctx, s, "list the workspaces", situated(`
		SELECT w.*, c.name AS cluster
		FROM public.clusters c CROSS JOIN LATERAL (
		  SELECT * FROM public.workspaces w WHERE w.cluster_id = c.id AND NOT w.hidden AND (c.name > $3 OR w.name > $4) ORDER BY w.name LIMIT $5) w
		WHERE c.org_id = $1 AND c.name >= $3 AND ($2::uuid IS NULL OR c.id = $2)
		ORDER BY c.name, w.name LIMIT $5`),
		org, orNull(cluster), after.Cluster, after.Name, limit+1)
	page, next = more(found, limit, func(s Situation) *WorkspaceKey { return &WorkspaceKey{s.Cluster, s.Name} })
	return page, next, err
}

const selectedResources = "SELECT address, type, provider, external_id, ip_addresses, status, updated_at FROM public.resources "

// ListResources lists what exists in a workspace by address, at most limit, those
// after the address given; next is the after of the page that follows, "" at the
// end.
func (s *Store) ListResources(ctx context.Context, workspace uuid.UUID, after string, limit int) (page []Resource, next string, err error) {
	found, err := rows[Resource](ctx, s, "list the resources", selectedResources+
		"WHERE workspace_id = $1 AND address > $2 ORDER BY address LIMIT $3", workspace, after, limit+1)
	page, next = more(found, limit, func(r Resource) string { return r.Address })
	return page, next, err
}

// ListProvisionResources lists, likewise, those of them that a provision has made
// or changed, and no later one has changed since.
func (s *Store) ListProvisionResources(ctx context.Context, p ProvisionKey, after string, limit int) (page []Resource, next string, err error) {
	found, err := rows[Resource](ctx, s, "list the resources", selectedResources+
		"WHERE workspace_id = $1 AND provision_id = $2 AND address > $3 ORDER BY address LIMIT $4", p.WorkspaceID, p.ID, after, limit+1)
	page, next = more(found, limit, func(r Resource) string { return r.Address })
	return page, next, err
}

// ListDrifts lists an organisation's workspaces that are checked for drift, or
// were, those that have drifted first, at most 1,000.
func (s *Store) ListDrifts(ctx context.Context, org uuid.UUID) ([]Drift, error) {
	return rows[Drift](ctx, s, "list what has drifted", driftColumns+`
		WHERE w.org_id = $1 AND (w.drift_every IS NOT NULL OR w.drift_at IS NOT NULL)
		ORDER BY coalesce(w.drift_count, 0) > 0 DESC, c.name, w.name LIMIT 1000`, org)
}

// Drift is what is known of how a workspace's infrastructure differs from its
// state.
type Drift struct {
	Workspace string `db:"workspace"`
	Cluster   string `db:"cluster"`
	// Every is how often it is looked for, in seconds; nil: only when asked to.
	Every *float64 `db:"every"`
	// LookedAt is when it was looked for last; nil: never.
	LookedAt *time.Time                `db:"looked_at"`
	Count    int                       `db:"count"`
	Changes  []provision.PlannedChange `db:"changes"`
}

const driftColumns = `SELECT w.name AS workspace, c.name AS cluster, extract(epoch FROM w.drift_every)::float8 AS every,
	w.drift_at AS looked_at, coalesce(w.drift_count, 0) AS count, coalesce(w.drift, '[]') AS changes
	FROM public.workspaces w JOIN public.clusters c ON c.id = w.cluster_id `

// Drift tells what is known of one workspace.
func (s *Store) Drift(ctx context.Context, workspace uuid.UUID) (Drift, error) {
	found, err := rows[Drift](ctx, s, "read what has drifted", driftColumns+"WHERE w.id = $1", workspace)
	return first(found, err, nil)
}

// WatchDrift has a workspace looked at for drift every so often, from 5 minutes
// to 366 days; 0 is never.
func (s *Store) WatchDrift(ctx context.Context, workspace uuid.UUID, every time.Duration) error {
	return s.do(ctx, "set the schedule", "SELECT FROM public.set_drift_schedule($1, make_interval(secs => nullif($2::float8, 0)))", workspace, every.Seconds())
}

// StateVersion is one of the states that are kept of a workspace.
type StateVersion struct {
	Version     int64      `db:"version"`
	Serial      *int64     `db:"serial"`
	Bytes       int64      `db:"bytes"`
	StoredAt    time.Time  `db:"stored_at"`
	ProvisionID *uuid.UUID `db:"provision_id"`
}

// StateVersions lists the managed states that are kept of a workspace, the
// newest first.
func (s *Store) StateVersions(ctx context.Context, workspace uuid.UUID) ([]StateVersion, error) {
	return rows[StateVersion](ctx, s, "list the states", "SELECT version, serial, bytes, stored_at, provision_id FROM public.state_versions($1)", workspace)
}
