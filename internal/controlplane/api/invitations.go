package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

type newInvitationInput struct {
	Keyed
	Body struct {
		Email string    `json:"email,omitempty" maxLength:"320" doc:"The person's address, which the issuer that they sign in at must have verified. Either this or user." example:"ada@example.com"`
		User  uuid.UUID `json:"user,omitempty" doc:"The person's id, where no address is known."`
		Role  string    `json:"role" enum:"viewer,operator,admin" example:"operator"`
	}
	OrgParam
}

type invitationAnswer struct {
	ID uuid.UUID `json:"id" doc:"The invitation's id."`
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
	Body struct {
		Role string `json:"role" enum:"viewer,operator,admin" doc:"The role that you were shown: an invitation that has changed since is not accepted." example:"operator"`
	}
}

// invitations registers how people become members: an admin invites them, and
// they accept.
func (a *api) invitations(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-invitations", Method: http.MethodGet, Path: "/invitations", Tags: []string{"People"},
		Summary: "Invitations that nobody has accepted", Description: "In one page. Only admins are shown any.",
	}, func(ctx context.Context, in *OrgParam) (*listed[store.Invitation], error) {
		var list []store.Invitation
		_, err := a.inOrg(ctx, *in, "list the invitations", func(ctx context.Context, s *store.Store, org store.Org) (err error) {
			if org.Role != "admin" {
				return newProblem(http.StatusForbidden, "not_admin", "invitations are shown to admins, and you are "+org.Role+" of "+org.Name, "ask an admin")
			}
			list, err = s.Invitations(ctx, org.ID)
			return err
		})
		return listAfter("invitations", list, "", err)
	})
	once(a, h, huma.Operation{
		OperationID: "invite-member", Method: http.MethodPost, Path: "/invitations", Tags: []string{"People"}, DefaultStatus: http.StatusCreated,
		Summary:     "Invite a person by e-mail address or id",
		Description: "They join when they accept the invitation. Until then nothing changes for either side. No mail is sent. Admins may do this.",
	}, func(ctx context.Context, s *store.Store, in *newInvitationInput) (string, invitationAnswer, error) {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return "", invitationAnswer{}, err
		}
		var user *uuid.UUID
		if in.Body.User != uuid.Nil {
			user = &in.Body.User
		}
		id, err := s.Invite(ctx, org.ID, in.Body.Email, user, in.Body.Role)
		return prefix + "/invitations", invitationAnswer{id}, err
	})
	add(a, h, huma.Operation{
		OperationID: "revoke-invitation", Method: http.MethodDelete, Path: "/invitations/{id}", Tags: []string{"People"}, DefaultStatus: http.StatusNoContent,
		Summary: "Revoke an invitation", Description: "Admins may do this.",
	}, func(ctx context.Context, in *InvitationRef) (*struct{}, error) {
		return a.inOrg(ctx, in.OrgParam, "revoke the invitation", func(ctx context.Context, s *store.Store, org store.Org) error {
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
	}, func(ctx context.Context, _ *struct{}) (*listed[store.OwnInvitation], error) {
		list, err := a.as(ctx).OwnInvitations(ctx)
		return listAfter("own-invitations", list, "", err)
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
