package store

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"
)

// Called is the name to show.
func (m Member) Called() string { return cmp.Or(m.Name, m.Email, m.UserID.String()) }

// Invitation waits for somebody who signs in with that e-mail address.
type Invitation struct {
	ID        uuid.UUID `db:"id" json:"id"`
	Email     string    `db:"email" json:"email"`
	Role      string    `db:"role" json:"role"`
	CreatedAt time.Time `db:"created_at" json:"created_at"`
	ExpiresAt time.Time `db:"expires_at" json:"expires_at"`
	Expired   bool      `db:"expired" json:"expired"`
}

// Members lists all who belong to an organisation, by what they are called.
func (s *Store) Members(ctx context.Context, org uuid.UUID) ([]Member, error) {
	return rows[Member](ctx, s, "list the members", `
		SELECT m.user_id, coalesce(p.name, '') AS name, coalesce(p.email, '') AS email, m.role, m.created_at AS since
		FROM public.org_members m LEFT JOIN public.people p ON p.org_id = m.org_id AND p.user_id = m.user_id
		WHERE m.org_id = $1 ORDER BY lower(coalesce(nullif(p.name, ''), nullif(p.email, ''), m.user_id::text)), m.user_id`, org)
}

// Invitations lists those that nobody has accepted, by address. Only admins see any.
func (s *Store) Invitations(ctx context.Context, org uuid.UUID) ([]Invitation, error) {
	return rows[Invitation](ctx, s, "list the invitations", `
		SELECT id, email, role, created_at, expires_at, expires_at <= now() AS expired FROM public.invitations
		WHERE org_id = $1 AND accepted_at IS NULL ORDER BY email`, org)
}

// Invite invites whoever signs in with that verified e-mail address; who has
// already is a member at once. A *RefusedError when the person is no admin.
func (s *Store) Invite(ctx context.Context, org uuid.UUID, email, role string) (uuid.UUID, error) {
	return one[uuid.UUID](ctx, s, "invite somebody", "SELECT public.invite_member($1, $2, $3) AS answer", org, email, role)
}

// RevokeInvitation takes an invitation back; false: there is none that is open.
func (s *Store) RevokeInvitation(ctx context.Context, org, invitation uuid.UUID) (bool, error) {
	return one[bool](ctx, s, "take the invitation back", "SELECT public.revoke_invitation($1, $2) AS answer", org, invitation)
}
