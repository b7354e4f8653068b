package store

import (
	"context"

	"github.com/google/uuid"
)

const selectedResources = "SELECT address, type, provider, external_id, ip_addresses, status, updated_at FROM public.resources "

// ListResources lists what exists in a workspace by address, at most limit, those
// after the address given; next is the after of the page that follows, "" at the
// end.
func (s *Store) ListResources(ctx context.Context, workspace uuid.UUID, after string, limit int) (page []Resource, next string, err error) {
	found, err := rows[Resource](ctx, s, "list the resources", selectedResources+
		"WHERE workspace_id = $1 AND address > $2 ORDER BY address LIMIT $3", workspace, after, limit+1)
	page, last := more(found, limit)
	if last != nil {
		next = last.Address
	}
	return page, next, err
}

// ListProvisionResources lists, likewise, those of them that a provision has made
// or changed, and no later one has changed since.
func (s *Store) ListProvisionResources(ctx context.Context, p ProvisionKey, after string, limit int) (page []Resource, next string, err error) {
	found, err := rows[Resource](ctx, s, "list the resources", selectedResources+
		"WHERE workspace_id = $1 AND provision_id = $2 AND address > $3 ORDER BY address LIMIT $4", p.WorkspaceID, p.ID, after, limit+1)
	page, last := more(found, limit)
	if last != nil {
		next = last.Address
	}
	return page, next, err
}

// ListDrifts lists an organisation's workspaces that are looked at for drift, or
// were, those that have drifted first, at most 1,000.
func (s *Store) ListDrifts(ctx context.Context, org uuid.UUID) ([]Drift, error) {
	return rows[Drift](ctx, s, "list what has drifted", driftColumns+`
		WHERE w.org_id = $1 AND (w.drift_every IS NOT NULL OR w.drift_at IS NOT NULL)
		ORDER BY coalesce(w.drift_count, 0) > 0 DESC, c.name, w.name LIMIT 1000`, org)
}
