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
		Email string `json:"email" minLength:"3" maxLength:"320" doc:"Who is meant: the address must be verified by the issuer that they sign in at." example:"ada@example.com"`
		Role  string `json:"role" enum:"viewer,operator,admin" example:"operator"`
	}
	OrgParam
}

type invitationAnswer struct {
	ID uuid.UUID `json:"id" doc:"The invitation's id."`
}

// InvitationRef is the path parameter that names an invitation.
type InvitationRef struct {
	ID uuid.UUID `path:"id" doc:"The invitation's id."`
	OrgParam
}

// invitations registers how people who have not signed in yet become members.
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
		Summary:     "Invite somebody by e-mail address",
		Description: "Whoever signs in with that verified address is a member then, and who has signed in already at once. No mail is sent. Admins may do this.",
	}, func(ctx context.Context, s *store.Store, in *newInvitationInput) (string, invitationAnswer, error) {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return "", invitationAnswer{}, err
		}
		id, err := s.Invite(ctx, org.ID, in.Body.Email, in.Body.Role)
		return prefix + "/invitations", invitationAnswer{id}, err
	})
	add(a, h, huma.Operation{
		OperationID: "revoke-invitation", Method: http.MethodDelete, Path: "/invitations/{id}", Tags: []string{"People"}, DefaultStatus: http.StatusNoContent,
		Summary: "Take an invitation back", Description: "Admins may do this.",
	}, func(ctx context.Context, in *InvitationRef) (*struct{}, error) {
		return a.inOrg(ctx, in.OrgParam, "take the invitation back", func(ctx context.Context, s *store.Store, org store.Org) error {
			was, err := s.RevokeInvitation(ctx, org.ID, in.ID)
			if err == nil && !was {
				err = newProblem(http.StatusNotFound, "invitation_not_found", fmt.Sprintf("there is no open invitation %s to %s", in.ID, org.Name), "")
			}
			return err
		})
	})
}
