package store

import (
	"context"

	"github.com/google/uuid"
)

// Org is an organisation that the person belongs to.
type Org struct {
	ID   uuid.UUID `db:"id" json:"id"`
	Name string    `db:"name" json:"name"`
	Role string    `db:"role" json:"role"` // viewer, operator or admin
}

// Orgs lists the organisations that the person belongs to, by name.
func (s *Store) Orgs(ctx context.Context) ([]Org, error) {
	return rows[Org](ctx, s, "list the organisations", `
		SELECT o.id, o.name, m.role FROM public.orgs o JOIN public.org_members m ON m.org_id = o.id
		WHERE m.user_id = $1 ORDER BY o.name, o.id`, s.user)
}
