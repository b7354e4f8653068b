package store

import (
	"cmp"
	"context"
	"time"

	"github.com/google/uuid"
)

// Called is the name to show.
func (m Member) Called() string { return cmp.Or(m.Name, m.Email, m.UserID.String()) }

// Invitation is one that an organisation has made and nobody has accepted. It is
// for an e-mail address, or for a user's id.
type Invitation struct {
	ID        uuid.UUID  `db:"id" json:"id"`
	Email     string     `db:"email" json:"email,omitempty"`
	UserID    *uuid.UUID `db:"user_id" json:"user_id,omitempty"`
	Role      string     `db:"role" json:"role"`
	CreatedAt time.Time  `db:"created_at" json:"created_at"`
	ExpiresAt time.Time  `db:"expires_at" json:"expires_at"`
	Expired   bool       `db:"expired" json:"expired"`
	Declined  bool       `db:"declined" json:"declined"`
}

// Invitee is the address or the id of the person that an invitation is for.
func (i Invitation) Invitee() string {
	if i.UserID != nil {
		return i.UserID.String()
	}
	return i.Email
}

// OwnInvitation is one that the person may accept.
type OwnInvitation struct {
	ID    uuid.UUID `db:"id" json:"id"`
	OrgID uuid.UUID `db:"org_id" json:"org_id"`
	Org   string    `db:"org_name" json:"org"` // the organisation's name
	Role  string    `db:"role" json:"role"`
	// InvitedBy is the name or the address of the admin; "" when it is not known.
	InvitedBy string    `db:"invited_by" json:"invited_by,omitempty"`
	CreatedAt time.Time `db:"created_at" json:"created_at"`
	ExpiresAt time.Time `db:"expires_at" json:"expires_at"`
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
		SELECT id, coalesce(email, '') AS email, user_id, role, created_at, expires_at, expires_at <= now() AS expired, declined_at IS NOT NULL AS declined
		FROM public.invitations WHERE org_id = $1 AND accepted_at IS NULL ORDER BY email, user_id`, org)
}

// Invite invites a person, by e-mail address or by id, to join in that role when
// they accept. A *RefusedError when the caller is no admin.
func (s *Store) Invite(ctx context.Context, org uuid.UUID, email string, user *uuid.UUID, role string) (uuid.UUID, error) {
	return one[uuid.UUID](ctx, s, "invite a person", "SELECT public.invite_member($1, nullif($2, ''), $3, $4) AS answer", org, email, role, user)
}

// RevokeInvitation revokes an invitation; false: there is none that is open.
func (s *Store) RevokeInvitation(ctx context.Context, org, invitation uuid.UUID) (bool, error) {
	return one[bool](ctx, s, "revoke the invitation", "SELECT public.revoke_invitation($1, $2) AS answer", org, invitation)
}

// OwnInvitations lists what the person is invited to, the newest first.
func (s *Store) OwnInvitations(ctx context.Context) ([]OwnInvitation, error) {
	return rows[OwnInvitation](ctx, s, "list your invitations", "SELECT * FROM public.own_invitations()")
}

// AcceptInvitation makes the person a member in the role that they saw, and
// returns the organisation's id. A *RefusedError when the role has changed since.
func (s *Store) AcceptInvitation(ctx context.Context, invitation uuid.UUID, role string) (uuid.UUID, error) {
	return one[uuid.UUID](ctx, s, "accept the invitation", "SELECT public.accept_invitation($1, $2) AS answer", invitation, role)
}

// DeclineInvitation declines one of the person's invitations.
func (s *Store) DeclineInvitation(ctx context.Context, invitation uuid.UUID) error {
	_, err := rows[struct{}](ctx, s, "decline the invitation", "SELECT FROM public.decline_invitation($1)", invitation)
	return err
}
