package api

import (
	"cmp"
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

type variablesInput struct {
	TemplateRef
	Version string `query:"version" maxLength:"200" doc:"Which version; absent: the one that is offered first." example:"v1.2.0"`
}

type inspectionAnswer struct{ Body store.Inspection }

type pinInput struct {
	TemplateRef
	Body struct {
		Version string `json:"version,omitempty" maxLength:"255" doc:"The tag; default: the catalogue's own." example:"v1.2.0"`
		Commit  string `json:"commit" pattern:"^[0-9a-f]{40}$" doc:"The full commit that the tag means." example:"4b825dc642cb6eb9a060e54bf8d69288fbee4904"`
		Reason  string `json:"reason" minLength:"1" maxLength:"500" doc:"Why, for the audit." example:"Inspected by hand"`
	}
}

// variables registers what is known of what a template declares.
func (a *api) variables(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "get-template-variables", Method: http.MethodGet, Path: "/templates/{ref}/variables", Tags: []string{"Templates"},
		Summary: "The variables that a version of it declares", Description: "As far as somebody has looked: have it inspected where nobody has.",
	}, func(ctx context.Context, in *variablesInput) (*inspectionAnswer, error) {
		answer := &inspectionAnswer{}
		return answer, a.withTemplate(ctx, in.TemplateRef, "read what the template declares", func(ctx context.Context, s *store.Store, t store.Template) (err error) {
			answer.Body, err = s.TemplateVariables(ctx, t.OrgID, t.Repo, cmp.Or(in.Version, t.Version), t.Path)
			return err
		})
	})
	add(a, h, huma.Operation{
		OperationID: "inspect-template", Method: http.MethodPost, Path: "/templates/{ref}/inspect", Tags: []string{"Templates"}, DefaultStatus: http.StatusAccepted,
		Summary: "Have somebody look which variables it declares", Description: "This server where it can reach the repository, else an agent. Operators may do this.",
	}, func(ctx context.Context, in *variablesInput) (*inspectionAnswer, error) {
		answer := &inspectionAnswer{}
		return answer, a.withTemplate(ctx, in.TemplateRef, "have the template inspected", func(ctx context.Context, s *store.Store, t store.Template) error {
			version := cmp.Or(in.Version, t.Version)
			err := s.InspectTemplate(ctx, t.OrgID, t.Repo, version, t.Path)
			if err == nil {
				answer.Body, err = s.TemplateVariables(ctx, t.OrgID, t.Repo, version, t.Path)
			}
			return err
		})
	})
	add(a, h, huma.Operation{
		OperationID: "pin-template", Method: http.MethodPost, Path: "/templates/{ref}/pin", Tags: []string{"Templates"}, DefaultStatus: http.StatusNoContent,
		Summary:     "Pin a tag to a commit",
		Description: "A tag means the commit that this server has inspected, or else the one that each cluster used first. This sets it for all clusters of the organisation, whatever was pinned before. Admins may do this.",
	}, func(ctx context.Context, in *pinInput) (*struct{}, error) {
		return nil, a.withTemplate(ctx, in.TemplateRef, "pin the template", func(ctx context.Context, s *store.Store, t store.Template) error {
			return s.PinTemplate(ctx, t.OrgID, t.Repo, cmp.Or(in.Body.Version, t.Version), in.Body.Commit, in.Body.Reason)
		})
	})
}
