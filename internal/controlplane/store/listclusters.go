package store

import (
	"context"

	"github.com/google/uuid"
)

// more is a page of at most limit of what was found when one more was asked
// for, and the last of the page where others follow.
func more[T any](found []T, limit int) (page []T, last *T) {
	if len(found) <= limit {
		return found, nil
	}
	return found[:limit], &found[limit-1]
}

// ListClusters lists an organisation's clusters by name, at most limit, those
// after the name given; next is the after of the page that follows, "" at the
// end.
func (s *Store) ListClusters(ctx context.Context, org uuid.UUID, after string, limit int) (page []Cluster, next string, err error) {
	found, err := rows[Cluster](ctx, s, "list the clusters", selectedClusters+
		" WHERE c.org_id = $1 AND c.name > $2 ORDER BY c.name LIMIT $3", org, after, limit+1)
	page, last := more(found, limit)
	if last != nil {
		next = last.Name
	}
	return page, next, err
}

// ListTemplates lists an organisation's catalogue, likewise.
func (s *Store) ListTemplates(ctx context.Context, org uuid.UUID, after string, limit int) (page []Template, next string, err error) {
	found, err := rows[Template](ctx, s, "list the templates", selectedTemplates+
		"WHERE t.org_id = $1 AND t.name > $2 ORDER BY t.name LIMIT $3", org, after, limit+1)
	page, last := more(found, limit)
	if last != nil {
		next = last.Name
	}
	return page, next, err
}
