package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Member is somebody who belongs to an organisation.
type Member struct {
	UserID uuid.UUID `db:"user_id" json:"user_id"`
	// Name and Email are what they are called by; both may be empty.
	Name  string    `db:"name" json:"name,omitempty"`
	Email string    `db:"email" json:"email,omitempty"`
	Role  string    `db:"role" json:"role"` // viewer, operator or admin
	Since time.Time `db:"since" json:"since"`
}

// ListMembers lists who belongs to an organisation, by their ids, at most limit,
// those after the id given (uuid.Nil: from the first on); next is uuid.Nil at the
// end.
func (s *Store) ListMembers(ctx context.Context, org, after uuid.UUID, limit int) (page []Member, next uuid.UUID, err error) {
	found, err := rows[Member](ctx, s, "list the members", `
		SELECT m.user_id, coalesce(p.name, '') AS name, coalesce(p.email, '') AS email, m.role, m.created_at AS since
		FROM (SELECT * FROM public.org_members WHERE org_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3) m
		LEFT JOIN public.people p ON p.org_id = m.org_id AND p.user_id = m.user_id
		ORDER BY m.user_id`, org, after, limit+1)
	page, last := more(found, limit)
	if last != nil {
		next = last.UserID
	}
	return page, next, err
}

// SetMember gives a member another role. A *RefusedError when the caller is no
// admin, the user is no member, or no admin would be left.
func (s *Store) SetMember(ctx context.Context, org, user uuid.UUID, role string) error {
	_, err := rows[struct{}](ctx, s, "set the member's role", "SELECT FROM public.set_member($1, $2, $3)", org, user, role)
	return err
}

// RemoveMember takes a member out; false: there was none.
func (s *Store) RemoveMember(ctx context.Context, org, user uuid.UUID) (bool, error) {
	return one[bool](ctx, s, "remove the member", "SELECT public.remove_member($1, $2) AS answer", org, user)
}
