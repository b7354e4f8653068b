package store

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Overview is what goes on in an organisation. Its lists are short; the counts
// say how many there are in all.
type Overview struct {
	Running []Provision
	// Waiting are those whose plan awaits approval, then the next of each
	// workspace where something is queued.
	Waiting []Provision
	// Failed are those of the last seven days, as far back as recent goes.
	Failed []Failure
	Counts Counts
}

// Counts are how many there are of what an Overview lists.
type Counts struct {
	Running   int `db:"running" json:"running"`
	Approvals int `db:"approvals" json:"approvals"`
	// Queued are workspaces where something waits for its turn.
	Queued     int `db:"queued" json:"queued"`
	Workspaces int `db:"workspaces" json:"workspaces"`
	Drifted    int `db:"drifted" json:"drifted"`
	Templates  int `db:"templates" json:"templates"`
}

// Failure is a provision that failed.
type Failure struct {
	Provision
	// Mended: a later one in its workspace has succeeded.
	Mended bool
}

const (
	// listed is how many an Overview lists of each.
	listed = 12
	// recent is how many of the newest provisions are looked through for those
	// that failed: no index has them.
	recent = 1000
)

// Overview tells what goes on in an organisation. What runs and waits is found by
// way of the workspaces, which know: provisions may be a million. An inspection is
// told of while it runs, for it takes a slot; what becomes of it its template says.
func (s *Store) Overview(ctx context.Context, org uuid.UUID) (o Overview, err error) {
	const doing = "see what goes on"
	const places = `SELECT w.* FROM public.clusters c JOIN public.workspaces w ON w.cluster_id = c.id WHERE c.org_id = $1`
	if o.Counts, err = only[Counts](ctx, s, doing, `
		SELECT count(*) FILTER (WHERE w.running_claim IS NOT NULL)::int AS running,
		       count(*) FILTER (WHERE NOT w.hidden AND (w.head_id IS NOT NULL OR w.due_at IS NOT NULL AND r.status = 'QUEUED'))::int AS queued,
		       count(*) FILTER (WHERE r.status = 'AWAITING_APPROVAL')::int AS approvals,
		       count(*) FILTER (WHERE NOT w.hidden)::int AS workspaces, count(*) FILTER (WHERE w.drift_count > 0)::int AS drifted,
		       (SELECT count(*)::int FROM public.templates t WHERE t.org_id = $1) AS templates
		FROM (`+places+`) w LEFT JOIN public.provisions r ON r.id = w.reserved_by`, org); err != nil {
		return o, err
	}
	if o.Running, err = s.provisions(ctx, doing, selected(false)+` WHERE p.id IN (
		SELECT now.id FROM (`+places+` AND w.running_claim IS NOT NULL LIMIT 200) w
		CROSS JOIN LATERAL (SELECT id FROM public.provisions WHERE workspace_id = w.id AND status = 'PROCESSING' ORDER BY number DESC LIMIT 1) now)
		ORDER BY p.started_at, p.number LIMIT $2`, org, listed); err != nil {
		return o, err
	}
	if o.Waiting, err = s.provisions(ctx, doing, selected(false)+` WHERE p.id IN (
		SELECT n.id FROM (`+places+` AND NOT w.hidden AND (w.head_id IS NOT NULL OR w.reserved_by IS NOT NULL)) w
		JOIN public.provisions n ON n.id = ANY (ARRAY[w.head_id, w.reserved_by]) AND n.status IN ('QUEUED', 'AWAITING_APPROVAL')
		ORDER BY n.status = 'AWAITING_APPROVAL' DESC, n.priority DESC, n.number LIMIT $2)
		ORDER BY p.status = 'AWAITING_APPROVAL' DESC, p.priority DESC, p.number`, org, listed); err != nil {
		return o, err
	}
	o.Failed, err = s.failures(ctx, doing, org)
	return o, err
}

// failures are those that failed lately, and whether that is mended.
func (s *Store) failures(ctx context.Context, doing string, org uuid.UUID) (failed []Failure, err error) {
	found, err := s.provisions(ctx, doing, selected(false)+` WHERE p.id IN (
		SELECT id FROM (SELECT id, number, status, operation, finished_at FROM public.provisions WHERE org_id = $1 ORDER BY number DESC LIMIT $2) n
		WHERE n.status = 'FAILED' AND n.operation <> 'inspect' AND n.finished_at > now() - interval '7 days' ORDER BY n.number DESC LIMIT 6)
		ORDER BY p.number DESC`, org, recent)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	ids := make([]uuid.UUID, len(found))
	for i, p := range found {
		ids[i] = p.ID
	}
	mended := map[uuid.UUID]bool{}
	err = s.as(ctx, doing, func(ctx context.Context, tx pgx.Tx) error {
		result, err := tx.Query(ctx, `
			SELECT p.id FROM public.provisions p WHERE p.id = ANY ($1) AND EXISTS (
			  SELECT FROM public.provisions n WHERE n.workspace_id = p.workspace_id AND n.number > p.number AND n.status = 'SUCCESS'
			  AND n.operation IN ('apply', 'destroy'))`, ids)
		if err != nil {
			return err
		}
		done, err := pgx.CollectRows(result, pgx.RowTo[uuid.UUID])
		for _, id := range done {
			mended[id] = true
		}
		return err
	})
	for _, p := range found {
		failed = append(failed, Failure{Provision: p, Mended: mended[p.ID]})
	}
	return failed, err
}
