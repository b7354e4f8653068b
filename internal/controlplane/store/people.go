package store

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/person"
)

// Org is an organisation that the person belongs to.
type Org struct {
	ID   uuid.UUID `db:"id"`
	Name string    `db:"name"`
	Role string    `db:"role"` // viewer, operator or admin
}

// Orgs lists the organisations that the person belongs to, by name.
func (s *Store) Orgs(ctx context.Context) ([]Org, error) {
	return rows[Org](ctx, s, "list the organisations", `
		SELECT o.id, o.name, m.role FROM public.orgs o JOIN public.org_members m ON m.org_id = o.id
		WHERE m.user_id = $1 ORDER BY o.name, o.id`, s.user)
}

// FindOrg returns the organisation of that id or name; "" means the only one
// that the person belongs to. A *RefusedError says so when there is none such,
// or several, with one answer for those that do not exist and those of others.
func (s *Store) FindOrg(ctx context.Context, ref string) (Org, error) {
	orgs, err := s.Orgs(ctx)
	if err != nil {
		return Org{}, err
	}
	var matching []Org
	names := make([]string, len(orgs))
	for i, o := range orgs {
		names[i] = o.Name
		if strings.EqualFold(o.ID.String(), ref) {
			return o, nil
		}
		if ref == "" || o.Name == ref {
			matching = append(matching, o)
		}
	}
	switch {
	case len(matching) == 1:
		return matching[0], nil
	case len(orgs) == 0 && ref == "":
		return Org{}, &RefusedError{Code: "PT422", Reason: "org_missing", Message: "you belong to no organisation", Hint: "have an admin of one add you"}
	case ref == "":
		return Org{}, &RefusedError{Code: "PT422", Reason: "org_missing", Message: "you belong to several organisations: " + strings.Join(names, ", "), Hint: "say which one"}
	case len(matching) > 1:
		return Org{}, &RefusedError{Code: "PT422", Reason: "org_ambiguous", Message: fmt.Sprintf("you belong to several organisations named %q", ref), Hint: "give the id"}
	}
	return Org{}, &RefusedError{Code: "PT404", Reason: "org_not_found", Message: fmt.Sprintf("you belong to no organisation %q", ref)}
}

// Bootstrap makes the first organisation of a database that has none, with
// user as its admin, and reports whether it did: nobody else could, where there is no
// member yet. Where there is an organisation it changes nothing.
func (d *Database) Bootstrap(ctx context.Context, user uuid.UUID) (made bool, err error) {
	err = d.AsOwner(ctx, "make the first organisation", func(ctx context.Context, tx pgx.Tx) error {
		// Two that begin at once must not make two.
		if _, err := tx.Exec(ctx, "LOCK TABLE public.orgs IN SHARE ROW EXCLUSIVE MODE"); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			WITH org AS (INSERT INTO public.orgs (name) SELECT 'default' WHERE NOT EXISTS (SELECT FROM public.orgs) RETURNING id)
			INSERT INTO public.org_members (org_id, user_id, role) SELECT id, $1, 'admin' FROM org`, user)
		made = tag.RowsAffected() == 1
		return err
	})
	return made && err == nil, err
}

// Called is the name to show.
func (m Member) Called() string { return cmp.Or(m.Name, m.Email, m.UserID.String()) }

// Invitation is one that an organisation has made and nobody has accepted. It is
// for an e-mail address, or for a user's id.
type Invitation struct {
	ID        uuid.UUID  `db:"id"`
	Email     string     `db:"email"`
	UserID    *uuid.UUID `db:"user_id"`
	Role      string     `db:"role"`
	CreatedAt time.Time  `db:"created_at"`
	ExpiresAt time.Time  `db:"expires_at"`
	Expired   bool       `db:"expired"`
	Declined  bool       `db:"declined"`
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
	ID    uuid.UUID `db:"id"`
	OrgID uuid.UUID `db:"org_id"`
	Org   string    `db:"org_name"` // the organisation's name
	Role  string    `db:"role"`
	// InvitedBy is the name or the address of the admin; "" when it is not known.
	InvitedBy string    `db:"invited_by"`
	CreatedAt time.Time `db:"created_at"`
	ExpiresAt time.Time `db:"expires_at"`
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
	return s.do(ctx, "decline the invitation", "SELECT FROM public.decline_invitation($1)", invitation)
}

// Member is somebody who belongs to an organisation.
type Member struct {
	UserID uuid.UUID `db:"user_id"`
	// Name and Email are what they are called by; both may be empty.
	Name  string    `db:"name"`
	Email string    `db:"email"`
	Role  string    `db:"role"` // viewer, operator or admin
	Since time.Time `db:"since"`
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
	page, next = more(found, limit, func(m Member) uuid.UUID { return m.UserID })
	return page, next, err
}

// SetMember gives a member another role. A *RefusedError when the caller is no
// admin, the user is no member, or no admin would be left.
func (s *Store) SetMember(ctx context.Context, org, user uuid.UUID, role string) error {
	return s.do(ctx, "set the member's role", "SELECT FROM public.set_member($1, $2, $3)", org, user, role)
}

// RemoveMember takes a member out; false: there was none.
func (s *Store) RemoveMember(ctx context.Context, org, user uuid.UUID) (bool, error) {
	return one[bool](ctx, s, "remove the member", "SELECT public.remove_member($1, $2) AS answer", org, user)
}

// Credential is a session or an API token of the person's own. What it is shown
// by is nowhere.
type Credential struct {
	ID         uuid.UUID      `db:"id"`
	Kind       string         `db:"kind"`  // session or api_token
	Name       string         `db:"label"` // of a session: what the browser calls itself
	CreatedAt  time.Time      `db:"created_at"`
	LastUsedAt *time.Time     `db:"last_used_at"` // to the minute
	ExpiresAt  *time.Time     `db:"expires_at"`
	Powers     *person.Powers `db:"powers"`   // of a token; nil: all that the person may
	Audience   *string        `db:"audience"` // of a token: the resource that it is for; nil: the whole REST API
}

// APIToken is a new API token, which is shown once.
type APIToken struct {
	ID        uuid.UUID  `db:"token_id"`
	Token     string     `db:"token"`
	ExpiresAt *time.Time `db:"expires_at"`
}

// Credentials lists the person's own sessions and API tokens that count, the
// newest first.
func (s *Store) Credentials(ctx context.Context) ([]Credential, error) {
	return rows[Credential](ctx, s, "list your sessions and tokens", "SELECT * FROM public.own_credentials()")
}

// CreateAPIToken makes the person a token for so long, which has these powers; nil: all that the
// person may.
func (s *Store) CreateAPIToken(ctx context.Context, name string, lasts time.Duration, powers *person.Powers) (APIToken, error) {
	return only[APIToken](ctx, s, "make an API token", "SELECT * FROM public.create_api_token($1, $2, $3)", name, lasts, powers)
}

// RevokeCredential ends a session or an API token of the person's own; false:
// there is none.
func (s *Store) RevokeCredential(ctx context.Context, id uuid.UUID) (bool, error) {
	return one[bool](ctx, s, "revoke it", "SELECT public.revoke_credential($1) AS answer", id)
}

// SignOutEverywhere ends all sessions of the person, and with tokens their API
// tokens as well; it returns how many.
func (s *Store) SignOutEverywhere(ctx context.Context, tokens bool) (int, error) {
	return one[int](ctx, s, "sign you out", "SELECT public.sign_out_everywhere($1) AS answer", tokens)
}
