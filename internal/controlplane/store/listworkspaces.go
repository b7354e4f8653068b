package store

import (
	"context"

	"github.com/google/uuid"
)

// WorkspaceKey is where a workspace stands in a list.
type WorkspaceKey struct{ Cluster, Name string }

// ListWorkspaces lists an organisation's workspaces by cluster and name, at most
// limit, those after the key given; next is nil at the end. cluster, if it is not
// uuid.Nil, is the only one whose workspaces are listed.
func (s *Store) ListWorkspaces(ctx context.Context, org, cluster uuid.UUID, after WorkspaceKey, limit int) (page []Standing, next *WorkspaceKey, err error) {
	// Of each cluster by its index, so that nothing is sorted but one page of each.
	found, err := rows[Standing](ctx, s, "list the workspaces", standings(`
		SELECT w.*, c.name AS cluster_name
		FROM public.clusters c CROSS JOIN LATERAL (
		  SELECT * FROM public.workspaces w WHERE w.cluster_id = c.id AND NOT w.hidden AND (c.name > $3 OR w.name > $4) ORDER BY w.name LIMIT $5) w
		WHERE c.org_id = $1 AND c.name >= $3 AND ($2::uuid IS NULL OR c.id = $2)
		ORDER BY c.name, w.name LIMIT $5`),
		org, uuid.NullUUID{UUID: cluster, Valid: cluster != uuid.Nil}, after.Cluster, after.Name, limit+1)
	page, last := more(found, limit)
	if last != nil {
		next = &WorkspaceKey{last.Cluster, last.Name}
	}
	return page, next, err
}
