package client

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Me is who asks, as the server knows them.
type Me struct {
	ID    uuid.UUID   `json:"id"`
	Name  string      `json:"name,omitempty"`
	Email string      `json:"email,omitempty"`
	Orgs  []store.Org `json:"orgs"`
}

// Called is what to call them.
func (m Me) Called() string {
	switch {
	case m.Name != "" && m.Email != "":
		return m.Name + " <" + m.Email + ">"
	case m.Name != "":
		return m.Name
	case m.Email != "":
		return m.Email
	}
	return m.ID.String()
}

// Me tells who asks.
func (c *Client) Me(ctx context.Context) (Me, error) { return get[Me](ctx, c, "ask who you are", "me") }

// RevokeOwnToken ends the token that this client asks with.
func (c *Client) RevokeOwnToken(ctx context.Context) error {
	return c.remove(ctx, "revoke the token", nil, "cli", "token")
}

// APITokens lists the person's own API tokens.
func (c *Client) APITokens(ctx context.Context) ([]store.Credential, error) {
	return whole[store.Credential](ctx, c, "list your API tokens", nil, "api-tokens")
}

// RevokeAPIToken ends one of the person's own API tokens.
func (c *Client) RevokeAPIToken(ctx context.Context, id uuid.UUID) error {
	return c.remove(ctx, "revoke the token", nil, "api-tokens", id.String())
}

// Members lists who belongs to the organisation.
func (c *Client) Members(ctx context.Context) ([]store.Member, error) {
	return list[store.Member](ctx, c, call{doing: "list the members", method: http.MethodGet, path: []string{"members"}, query: c.inOrg()}, mostItems)
}

// SetMember gives somebody a role in the organisation.
func (c *Client) SetMember(ctx context.Context, user uuid.UUID, role string) error {
	_, err := ask[struct{}](ctx, c, call{doing: "set the member's role", method: http.MethodPut, path: []string{"members", user.String()}, query: c.inOrg(), body: map[string]string{"role": role}})
	return err
}

// RemoveMember takes somebody out of the organisation.
func (c *Client) RemoveMember(ctx context.Context, user uuid.UUID) error {
	return c.remove(ctx, "remove the member", c.inOrg(), "members", user.String())
}

// Audit lists what was done in the organisation, the newest first.
func (c *Client) Audit(ctx context.Context, limit int) ([]store.AuditEvent, error) {
	return list[store.AuditEvent](ctx, c, call{doing: "read the audit", method: http.MethodGet, path: []string{"audit"}, query: c.inOrg()}, limit)
}

// Invitations lists those that nobody has accepted.
func (c *Client) Invitations(ctx context.Context) ([]store.Invitation, error) {
	return whole[store.Invitation](ctx, c, "list the invitations", c.inOrg(), "invitations")
}

// Invite invites a person, by e-mail address or by user id, and returns the
// invitation's id.
func (c *Client) Invite(ctx context.Context, who, role string) (uuid.UUID, error) {
	body := map[string]string{"email": who, "role": role}
	if user, err := uuid.Parse(who); err == nil {
		body = map[string]string{"user": user.String(), "role": role}
	}
	made, err := ask[struct {
		ID uuid.UUID `json:"id"`
	}](ctx, c, call{doing: "invite a person", method: http.MethodPost, path: []string{"invitations"}, query: c.inOrg(), body: body})
	return made.ID, err
}

// RevokeInvitation revokes an invitation.
func (c *Client) RevokeInvitation(ctx context.Context, id uuid.UUID) error {
	return c.remove(ctx, "revoke the invitation", c.inOrg(), "invitations", id.String())
}

// OwnInvitations lists what the person is invited to.
func (c *Client) OwnInvitations(ctx context.Context) ([]store.OwnInvitation, error) {
	return whole[store.OwnInvitation](ctx, c, "list your invitations", nil, "me", "invitations")
}

// AcceptInvitation joins an organisation in the role that the person saw.
func (c *Client) AcceptInvitation(ctx context.Context, id uuid.UUID, role string) error {
	_, err := ask[struct{}](ctx, c, call{doing: "accept the invitation", method: http.MethodPost, path: []string{"me", "invitations", id.String(), "accept"}, body: map[string]string{"role": role}})
	return err
}

// DeclineInvitation declines one of the person's invitations.
func (c *Client) DeclineInvitation(ctx context.Context, id uuid.UUID) error {
	_, err := ask[struct{}](ctx, c, call{doing: "decline the invitation", method: http.MethodPost, path: []string{"me", "invitations", id.String(), "decline"}})
	return err
}
