package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// WorkspaceDetail is everything about one workspace but what exists there.
type WorkspaceDetail struct {
	Standing
	// Home is the agent that has the state as a local file, and its host; ""
	// where the state is shared.
	Home       string     `db:"home" json:"home,omitempty"`
	LockedAt   *time.Time `db:"locked_at" json:"locked_at,omitempty"`
	LockedBy   *uuid.UUID `db:"locked_by" json:"locked_by,omitempty"`
	LockReason *string    `db:"lock_reason" json:"lock_reason,omitempty"`
	// StateVersion and StateSerial are of the managed state; nil where the state
	// is elsewhere.
	StateVersion *int64     `db:"state_version" json:"state_version,omitempty"`
	StateSerial  *int64     `db:"state_serial" json:"state_serial,omitempty"`
	StateAt      *time.Time `db:"state_at" json:"state_at,omitempty"`
	// StateLock is who holds the state's lock, as far as a run met it.
	StateLock *HeldLock `db:"state_lock" json:"state_lock,omitempty"`
	// DriftCount is how many resources have changed outside; nil: not known.
	DriftCount *int       `db:"drift_count" json:"drift_count,omitempty"`
	DriftAt    *time.Time `db:"drift_at" json:"drift_at,omitempty"`
	CreatedAt  time.Time  `db:"created_at" json:"created_at"`
}

// WorkspaceDetail returns everything about the workspace of that ref, found by
// WorkspaceByRef.
func (s *Store) WorkspaceDetail(ctx context.Context, w Workspace) (WorkspaceDetail, error) {
	detail, err := only[WorkspaceDetail](ctx, s, "read the workspace", `
		SELECT s.*, w.locked_at, w.locked_by, w.lock_reason, w.state_version, w.state_serial, w.state_at, w.state_lock, w.drift_count, w.drift_at, w.created_at, $2::text AS home
		FROM (`+standings("SELECT w.*, c.name AS cluster_name FROM public.workspaces w JOIN public.clusters c ON c.id = w.cluster_id WHERE w.id = $1")+`) s
		JOIN public.workspaces w ON w.id = s.id`, w.ID, w.Home)
	return detail, err
}

// Rebind binds a workspace to another template: the next apply there destroys
// what that one does not know.
func (s *Store) Rebind(ctx context.Context, workspace uuid.UUID, repo, path, reason string) error {
	_, err := rows[struct{}](ctx, s, "bind the workspace to another template", "SELECT FROM public.rebind_workspace($1, $2, $3, $4)", workspace, repo, reason, path)
	return err
}
