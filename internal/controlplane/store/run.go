package store

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Run is what a provision's page tells besides the provision: whose it is, what it
// belongs to, who may decide, and where in the log its stages begin.
type Run struct {
	OrgID       uuid.UUID `db:"org_id"`
	ClusterID   uuid.UUID `db:"cluster_id"`
	WorkspaceID uuid.UUID `db:"workspace_id"`

	// RequestedBy and the like are what people are called; "" where nobody knows.
	RequestedBy string     `db:"requested_by_name"`
	CancelledBy string     `db:"cancelled_by_name"`
	ApprovedBy  string     `db:"approved_by_name"`
	ApprovedAt  *time.Time `db:"approved_at"`

	// Approvers and FourEyes are the cluster's rule, Due when the plan is given up.
	Approvers string     `db:"approvers"`
	FourEyes  bool       `db:"four_eyes"`
	Due       *time.Time `db:"due_at"`

	// What keeps the workspace from being used. LockReason is why a person has
	// locked it; Held: an agent that was lost may still apply; Unsaved: an agent
	// keeps a state that could not be stored.
	LockReason *string `db:"lock_reason"`
	Held       bool    `db:"held"`
	Unsaved    bool    `db:"unsaved"`

	Attempt  int       `db:"attempt"`
	Attempts []Attempt `db:"attempts"` // what it was tried again from, and as
	Newer    *int64    `db:"newer"`    // the newest provision of the workspace, if it is another

	Resources int         `db:"resources"` // in the workspace
	Starts    []StageLine `db:"starts"`
	Lines     int64       `db:"lines"` // rows of the log
}

// Attempt is another provision of the same request.
type Attempt struct {
	Number  int64            `json:"number"`
	Status  provision.Status `json:"status"`
	Attempt int              `json:"attempt"`
	Before  bool             `json:"before"` // it is the one that failed before
}

// StageLine is the first row of the log that was stored after a stage began: the
// database gives both times, so no clock of an agent matters.
type StageLine struct {
	Attempt int             `json:"attempt"`
	Stage   provision.Stage `json:"stage"`
	Seq     int64           `json:"seq"`
}

// Run reads what belongs to a provision.
func (s *Store) Run(ctx context.Context, id uuid.UUID) (Run, error) {
	return only[Run](ctx, s, "read the provision", `
		SELECT p.org_id, p.cluster_id, p.workspace_id, p.approved_at,
		       coalesce(q.name, '') AS requested_by_name, coalesce(x.name, '') AS cancelled_by_name, coalesce(a.name, '') AS approved_by_name,
		       c.approvers, c.four_eyes, CASE WHEN w.reserved_by = p.id THEN w.due_at END AS due_at,
		       w.lock_reason, w.held_by_claim IS NOT NULL AS held, w.unsaved_state_on IS NOT NULL AS unsaved, p.attempt,
		       (SELECT jsonb_agg(jsonb_build_object('number', o.number, 'status', o.status, 'attempt', o.attempt, 'before', o.id = p.retry_of) ORDER BY o.number)
		        FROM public.provisions o WHERE o.workspace_id = p.workspace_id AND (o.id = p.retry_of OR o.retry_of = p.id AND o.number > p.number)) AS attempts,
		       (SELECT nullif(max(o.number), p.number) FROM public.provisions o WHERE o.workspace_id = p.workspace_id) AS newer,
		       (SELECT count(*) FROM public.resources r WHERE r.workspace_id = p.workspace_id)::int AS resources,
		       (SELECT jsonb_agg(jsonb_build_object('attempt', s.attempt, 'stage', s.stage, 'seq', l.seq) ORDER BY l.seq)
		        FROM (SELECT width_bucket(g.created_at, t.times) AS nth, min(g.seq) AS seq
		              FROM (SELECT g.seq, g.created_at FROM public.provision_logs g WHERE g.provision_id = p.id
		                    UNION ALL SELECT a.first_seq + u.nth - 1, u.created_at
		                    FROM public.provision_log_archives a, unnest(a.created_at) WITH ORDINALITY u (created_at, nth) WHERE a.provision_id = p.id) g,
		                   (SELECT array_agg(started_at ORDER BY started_at, attempt, stage = 'done') AS times FROM public.provision_stages WHERE provision_id = p.id) t
		              GROUP BY 1) l
		        JOIN (SELECT attempt, stage, row_number() OVER (ORDER BY started_at, attempt, stage = 'done') AS nth
		              FROM public.provision_stages WHERE provision_id = p.id) s ON s.nth = l.nth) AS starts,
		       `+logEnd+` AS lines
		FROM public.provisions p
		JOIN public.clusters c ON c.id = p.cluster_id
		JOIN public.workspaces w ON w.id = p.workspace_id
		LEFT JOIN LATERAL (SELECT coalesce(nullif(n.name, ''), n.email) AS name FROM public.people n WHERE n.org_id = p.org_id AND n.user_id = p.requested_by) q ON true
		LEFT JOIN LATERAL (SELECT coalesce(nullif(n.name, ''), n.email) AS name FROM public.people n WHERE n.org_id = p.org_id AND n.user_id = p.cancel_requested_by) x ON true
		LEFT JOIN LATERAL (SELECT coalesce(nullif(n.name, ''), n.email) AS name FROM public.people n WHERE n.org_id = p.org_id AND n.user_id = p.approved_by) a ON true
		WHERE p.id = $1`, id)
}
