package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

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
	Body struct {
		Role string `json:"role" enum:"viewer,operator,admin" doc:"viewer reads; operator deploys, cancels, approves as well; admin manages clusters, templates, tokens and members as well." example:"operator"`
	}
}

// members registers who belongs to which organisation, and who did what there.
func (a *api) members(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-orgs", Method: http.MethodGet, Path: "/orgs", Tags: []string{"People"},
		Summary: "The organisations that you belong to, by name", Description: "In one page.",
	}, func(ctx context.Context, _ *struct{}) (*listed[store.Org], error) {
		orgs, err := a.as(ctx).Orgs(ctx)
		return listAfter("orgs", orgs, "", err)
	})

	add(a, h, huma.Operation{
		OperationID: "list-members", Method: http.MethodGet, Path: "/members", Tags: []string{"People"},
		Summary: "Who belongs to an organisation, and in which role",
	}, func(ctx context.Context, in *orgListInput) (*listed[store.Member], error) {
		var after, next uuid.UUID
		if err := decodeCursor("members", in.Cursor, &after); err != nil {
			return nil, err
		}
		var list []store.Member
		_, err := a.inOrg(ctx, in.OrgParam, "list the members", func(ctx context.Context, s *store.Store, org store.Org) (err error) {
			list, next, err = s.ListMembers(ctx, org.ID, after, in.Limit)
			return err
		})
		return listAfter("members", list, next, err)
	})
	add(a, h, huma.Operation{
		OperationID: "set-member", Method: http.MethodPut, Path: "/members/{user}", Tags: []string{"People"}, DefaultStatus: http.StatusNoContent,
		Summary: "Give a member another role", Description: "Admins may do this. An organisation keeps an admin. People join by an invitation that they accept.",
	}, func(ctx context.Context, in *setMemberInput) (*struct{}, error) {
		return a.inOrg(ctx, in.OrgParam, "set the member's role", func(ctx context.Context, s *store.Store, org store.Org) error {
			return s.SetMember(ctx, org.ID, in.User, in.Body.Role)
		})
	})
	add(a, h, huma.Operation{
		OperationID: "remove-member", Method: http.MethodDelete, Path: "/members/{user}", Tags: []string{"People"}, DefaultStatus: http.StatusNoContent,
		Summary: "Take a member out", Description: "Admins may do this. An organisation keeps an admin.",
	}, func(ctx context.Context, in *MemberRef) (*struct{}, error) {
		return a.inOrg(ctx, in.OrgParam, "remove the member", func(ctx context.Context, s *store.Store, org store.Org) error {
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
	}, func(ctx context.Context, in *orgListInput) (*listed[store.AuditEvent], error) {
		var before, next int64
		if err := decodeCursor("audit", in.Cursor, &before); err != nil {
			return nil, err
		}
		var list []store.AuditEvent
		_, err := a.inOrg(ctx, in.OrgParam, "read what was done", func(ctx context.Context, s *store.Store, org store.Org) (err error) {
			if org.Role != "admin" {
				// They see none of it whatever we say: an empty list would read as if
				// nothing had happened.
				return newProblem(http.StatusForbidden, "not_admin", "who did what is shown to admins, and you are "+org.Role+" of "+org.Name, "ask an admin")
			}
			list, next, err = s.Audit(ctx, org.ID, store.AuditFilter{}, before, in.Limit)
			return err
		})
		return listAfter("audit", list, next, err)
	})
}

// inOrg finds the organisation and does something there, in one transaction.
func (a *api) inOrg(ctx context.Context, in OrgParam, doing string, do func(context.Context, *store.Store, store.Org) error) (*struct{}, error) {
	return nil, a.as(ctx).Within(ctx, doing, func(ctx context.Context, s *store.Store) error {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return err
		}
		return do(ctx, s, org)
	})
}
