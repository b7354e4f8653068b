package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// me registers who asks.
func (a *api) me(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "whoami", Method: http.MethodGet, Path: "/me", Tags: []string{"People"}, Summary: "Who is signed in",
	}, func(ctx context.Context, _ *struct{}) (*answer[wire.MeBody], error) {
		p, _ := person.From(ctx)
		orgs, err := a.as(ctx).Orgs(ctx)
		if err != nil {
			return nil, err
		}
		return &answer[wire.MeBody]{wire.MeBody{ID: p.ID, Name: p.Name, Email: p.Email, Orgs: each(orgOf, orgs), Powers: (*wire.Powers)(p.Powers)}}, nil
	})
}

type orgListInput struct {
	OrgParam
	PageParams
}

// MemberRef is the path parameter that names a member.
type MemberRef struct {
	User uuid.UUID `path:"user" doc:"The person's id."`
	OrgParam
}

type setMemberInput struct {
	MemberRef
	Body wire.SetMemberInputBody
}

// members registers who belongs to which organisation, and who did what there.
func (a *api) members(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-orgs", Method: http.MethodGet, Path: "/orgs", Tags: []string{"People"},
		Summary: "The organisations that you belong to, by name", Description: "In one page.",
	}, func(ctx context.Context, _ *struct{}) (*listed[wire.Org], error) {
		orgs, err := a.as(ctx).Orgs(ctx)
		return listAfter("orgs", each(orgOf, orgs), "", err)
	})

	add(a, h, huma.Operation{
		OperationID: "list-members", Method: http.MethodGet, Path: "/members", Tags: []string{"People"},
		Summary: "Who belongs to an organisation, and in which role",
	}, func(ctx context.Context, in *orgListInput) (*listed[wire.Member], error) {
		return paged(ctx, a, in.OrgParam, in.PageParams, "members", "list the members", memberOf, func(ctx context.Context, s *store.Store, org store.Org, after uuid.UUID, limit int) ([]store.Member, uuid.UUID, error) {
			return s.ListMembers(ctx, org.ID, after, limit)
		})
	})
	add(a, h, huma.Operation{
		OperationID: "set-member", Method: http.MethodPut, Path: "/members/{user}", Tags: []string{"People"}, DefaultStatus: http.StatusNoContent,
		Summary: "Give a member another role", Description: "Admins may do this. An organisation keeps an admin. People join by an invitation that they accept.",
	}, func(ctx context.Context, in *setMemberInput) (*struct{}, error) {
		return nothing(ctx, a, in.OrgParam, "set the member's role", func(ctx context.Context, s *store.Store, org store.Org) error {
			return s.SetMember(ctx, org.ID, in.User, in.Body.Role)
		})
	})
	add(a, h, huma.Operation{
		OperationID: "remove-member", Method: http.MethodDelete, Path: "/members/{user}", Tags: []string{"People"}, DefaultStatus: http.StatusNoContent,
		Summary: "Take a member out", Description: "Admins may do this. An organisation keeps an admin.",
	}, func(ctx context.Context, in *MemberRef) (*struct{}, error) {
		return nothing(ctx, a, in.OrgParam, "remove the member", func(ctx context.Context, s *store.Store, org store.Org) error {
			was, err := s.RemoveMember(ctx, org.ID, in.User)
			if err == nil && !was {
				err = newProblem(http.StatusNotFound, "member_not_found", fmt.Sprintf("%s is no member of %s", in.User, org.Name), "")
			}
			return err
		})
	})

	add(a, h, huma.Operation{
		OperationID: "list-audit", Method: http.MethodGet, Path: "/audit", Tags: []string{"People"},
		Summary: "Who did what, the newest first", Description: "Only admins are shown it.",
	}, func(ctx context.Context, in *orgListInput) (*listed[wire.AuditEvent], error) {
		return paged(ctx, a, in.OrgParam, in.PageParams, "audit", "read what was done", auditEventOf, func(ctx context.Context, s *store.Store, org store.Org, before int64, limit int) ([]store.AuditEvent, int64, error) {
			if org.Role != "admin" {
				// They see none of it whatever we say: an empty list would read as if
				// nothing had happened.
				return nil, 0, newProblem(http.StatusForbidden, "not_admin", "who did what is shown to admins, and you are "+org.Role+" of "+org.Name, "ask an admin")
			}
			return s.Audit(ctx, org.ID, store.AuditFilter{}, before, limit)
		})
	})
}

type newInvitationInput struct {
	Keyed
	Body wire.NewInvitationInputBody
	OrgParam
}

// InvitationRef is the path parameter that names an invitation of an organisation.
type InvitationRef struct {
	ID uuid.UUID `path:"id" doc:"The invitation's id."`
	OrgParam
}

// OwnInvitationRef is the path parameter that names an invitation of one's own.
type OwnInvitationRef struct {
	ID uuid.UUID `path:"id" doc:"The invitation's id."`
}

type acceptInvitationInput struct {
	OwnInvitationRef
	Body wire.AcceptInvitationInputBody
}

// invitations registers how people become members: an admin invites them, and
// they accept.
func (a *api) invitations(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-invitations", Method: http.MethodGet, Path: "/invitations", Tags: []string{"People"},
		Summary: "Invitations that nobody has accepted", Description: "In one page. Only admins are shown any.",
	}, func(ctx context.Context, in *OrgParam) (*listed[wire.Invitation], error) {
		list, err := about(ctx, a, *in, "list the invitations", func(ctx context.Context, s *store.Store, org store.Org) (list []store.Invitation, err error) {
			if org.Role != "admin" {
				return nil, newProblem(http.StatusForbidden, "not_admin", "invitations are shown to admins, and you are "+org.Role+" of "+org.Name, "ask an admin")
			}
			list, err = s.Invitations(ctx, org.ID)
			return list, err
		})
		return listAfter("invitations", each(invitationOf, list), "", err)
	})
	once(a, h, huma.Operation{
		OperationID: "invite-member", Method: http.MethodPost, Path: "/invitations", Tags: []string{"People"}, DefaultStatus: http.StatusCreated,
		Summary:     "Invite a person by e-mail address or id",
		Description: "They join when they accept the invitation. Until then nothing changes for either side. No mail is sent. Admins may do this.",
	}, func(ctx context.Context, s *store.Store, in *newInvitationInput) (string, wire.InvitationAnswer, error) {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return "", wire.InvitationAnswer{}, err
		}
		var user *uuid.UUID
		if in.Body.User != uuid.Nil {
			user = &in.Body.User
		}
		id, err := s.Invite(ctx, org.ID, in.Body.Email, user, in.Body.Role)
		return prefix + "/invitations", wire.InvitationAnswer{ID: id}, err
	})
	add(a, h, huma.Operation{
		OperationID: "revoke-invitation", Method: http.MethodDelete, Path: "/invitations/{id}", Tags: []string{"People"}, DefaultStatus: http.StatusNoContent,
		Summary: "Revoke an invitation", Description: "Admins may do this.",
	}, func(ctx context.Context, in *InvitationRef) (*struct{}, error) {
		return nothing(ctx, a, in.OrgParam, "revoke the invitation", func(ctx context.Context, s *store.Store, org store.Org) error {
			was, err := s.RevokeInvitation(ctx, org.ID, in.ID)
			if err == nil && !was {
				err = newProblem(http.StatusNotFound, "invitation_not_found", fmt.Sprintf("there is no open invitation %s to %s", in.ID, org.Name), "")
			}
			return err
		})
	})
	add(a, h, huma.Operation{
		OperationID: "list-own-invitations", Method: http.MethodGet, Path: "/me/invitations", Tags: []string{"People"},
		Summary: "Your open invitations, the newest first", Description: "In one page.",
	}, func(ctx context.Context, _ *struct{}) (*listed[wire.OwnInvitation], error) {
		list, err := a.as(ctx).OwnInvitations(ctx)
		return listAfter("own-invitations", each(ownInvitationOf, list), "", err)
	})
	add(a, h, huma.Operation{
		OperationID: "accept-invitation", Method: http.MethodPost, Path: "/me/invitations/{id}/accept", Tags: []string{"People"}, DefaultStatus: http.StatusNoContent,
		Summary: "Accept an invitation", Description: "You become a member of the organisation, in the role that you name.",
	}, func(ctx context.Context, in *acceptInvitationInput) (*struct{}, error) {
		_, err := a.as(ctx).AcceptInvitation(ctx, in.ID, in.Body.Role)
		return nil, err
	})
	add(a, h, huma.Operation{
		OperationID: "decline-invitation", Method: http.MethodPost, Path: "/me/invitations/{id}/decline", Tags: []string{"People"}, DefaultStatus: http.StatusNoContent,
		Summary: "Decline an invitation", Description: "The organisation learns that it was declined. An admin may invite you again.",
	}, func(ctx context.Context, in *OwnInvitationRef) (*struct{}, error) {
		return nil, a.as(ctx).DeclineInvitation(ctx, in.ID)
	})
}

type newAPITokenInput struct {
	Keyed
	Body wire.NewAPITokenInputBody
}

// TokenRef is the path parameter that names an API token.
type TokenRef struct {
	ID uuid.UUID `path:"id" doc:"The token's id."`
}

// apiTokens registers what people do with their own API tokens.
func (a *api) apiTokens(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-api-tokens", Method: http.MethodGet, Path: "/api-tokens", Tags: []string{"People"},
		Summary: "Your own API tokens, the newest first", Description: "In one page.",
	}, func(ctx context.Context, _ *struct{}) (*listed[wire.Credential], error) {
		found, err := a.as(ctx).Credentials(ctx)
		found = slices.DeleteFunc(found, func(c store.Credential) bool { return c.Kind != "api_token" })
		return listAfter("api-tokens", each(credentialOf, found), "", err)
	})
	onceSecret(a, h, huma.Operation{
		OperationID: "create-api-token", Method: http.MethodPost, Path: "/api-tokens", Tags: []string{"People"}, DefaultStatus: http.StatusCreated,
		Summary:     "Make an API token",
		Description: "It may do what you may, or what its powers say, and nobody can read it again. An API token cannot make others: one that has leaked ends when it is revoked. Requests with the header Tendril-Tool, the name and version of a client of a language model, may only propose where their token has no powers of its own.",
	}, func(ctx context.Context, s *store.Store, in *newAPITokenInput) (string, wire.APIToken, error) {
		made, err := s.CreateAPIToken(ctx, in.Body.Name, time.Duration(in.Body.Days)*24*time.Hour, (*person.Powers)(in.Body.Powers))
		return prefix + "/api-tokens", apiTokenOf(made), err
	})
	add(a, h, huma.Operation{
		OperationID: "revoke-api-token", Method: http.MethodDelete, Path: "/api-tokens/{id}", Tags: []string{"People"}, DefaultStatus: http.StatusNoContent,
		Summary: "Revoke an API token of your own", Description: "It ends at once.",
	}, func(ctx context.Context, in *TokenRef) (*struct{}, error) {
		was, err := a.as(ctx).RevokeCredential(ctx, in.ID)
		if err == nil && !was {
			err = newProblem(http.StatusNotFound, "token_not_found", fmt.Sprintf("you have no API token %s", in.ID), "")
		}
		return nil, err
	})
}
