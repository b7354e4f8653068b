package api

import (
	"cmp"
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// TemplateRef is the path parameter that names a template.
type TemplateRef struct {
	Ref string `path:"ref" maxLength:"200" doc:"The template, by its name or id." example:"envtempl"`
	OrgParam
}

type saveTemplateInput struct {
	Keyed
	OrgParam
	Body wire.SaveTemplateInputBody
}

// templates registers what is asked of the catalogue.
func (a *api) templates(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-templates", Method: http.MethodGet, Path: "/templates", Tags: []string{"Templates"},
		Summary: "List the catalogue by name",
	}, func(ctx context.Context, in *orgListInput) (*listed[wire.Template], error) {
		return paged(ctx, a, in.OrgParam, in.PageParams, "templates", "list the templates", templateOf, func(ctx context.Context, s *store.Store, org store.Org, after string, limit int) ([]store.Template, string, error) {
			return s.ListTemplates(ctx, org.ID, after, limit)
		})
	})

	once(a, h, huma.Operation{
		OperationID: "save-template", Method: http.MethodPost, Path: "/templates", Tags: []string{"Templates"}, DefaultStatus: http.StatusCreated,
		Summary: "Put a template into the catalogue, or change the one of that name", Description: "Admins may do this.",
	}, func(ctx context.Context, s *store.Store, in *saveTemplateInput) (string, wire.Template, error) {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return "", wire.Template{}, err
		}
		b := in.Body
		id, err := s.SaveTemplate(ctx, org.ID, store.Template{Name: b.Name, Repo: b.Repo, Version: b.Version, Path: b.Path, Description: b.Description, Approval: b.Approval})
		if err != nil {
			return "", wire.Template{}, err
		}
		saved, err := s.TemplateByRef(ctx, org.ID, id.String())
		return prefix + "/templates/" + id.String(), templateOf(saved), err
	})

	add(a, h, huma.Operation{
		OperationID: "get-template", Method: http.MethodGet, Path: "/templates/{ref}", Tags: []string{"Templates"}, Summary: "One template",
	}, func(ctx context.Context, in *TemplateRef) (*answer[wire.Template], error) {
		return told(ctx, a, templateOf, *in, "read the template", itself[store.Template])
	})

	add(a, h, huma.Operation{
		OperationID: "remove-template", Method: http.MethodDelete, Path: "/templates/{ref}", Tags: []string{"Templates"}, DefaultStatus: http.StatusNoContent,
		Summary: "Take a template out of the catalogue", Description: "What was deployed from it stays. Admins may do this.",
	}, func(ctx context.Context, in *TemplateRef) (*struct{}, error) {
		return nothing(ctx, a, *in, "remove the template", func(ctx context.Context, s *store.Store, t store.Template) error {
			_, err := s.RemoveTemplate(ctx, t.OrgID, t.Name) // gone meanwhile: as wanted
			return err
		})
	})
}

func (in TemplateRef) find(ctx context.Context, s *store.Store) (store.Template, error) {
	org, err := in.org(ctx, s)
	if err != nil {
		return store.Template{}, err
	}
	return s.TemplateByRef(ctx, org, in.Ref)
}

type variablesInput struct {
	TemplateRef
	Version string `query:"version" maxLength:"200" doc:"Which version; absent: the one that is offered first." example:"v1.2.0"`
}

type pinInput struct {
	TemplateRef
	Body wire.PinInputBody
}

// variables registers what is known of what a template declares.
func (a *api) variables(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "get-template-variables", Method: http.MethodGet, Path: "/templates/{ref}/variables", Tags: []string{"Templates"},
		Summary: "The variables that a version of it declares", Description: "As far as somebody has looked: have it inspected where nobody has.",
	}, func(ctx context.Context, in *variablesInput) (*answer[wire.Inspection], error) {
		return told(ctx, a, inspectionOf, in.TemplateRef, "read what the template declares", func(ctx context.Context, s *store.Store, t store.Template) (store.Inspection, error) {
			return s.TemplateVariables(ctx, t.OrgID, t.Repo, cmp.Or(in.Version, t.Version), t.Path)
		})
	})
	add(a, h, huma.Operation{
		OperationID: "inspect-template", Method: http.MethodPost, Path: "/templates/{ref}/inspect", Tags: []string{"Templates"}, DefaultStatus: http.StatusAccepted,
		Summary: "Have somebody look which variables it declares", Description: "This server where it can reach the repository, else an agent. Operators may do this.",
	}, func(ctx context.Context, in *variablesInput) (*answer[wire.Inspection], error) {
		return told(ctx, a, inspectionOf, in.TemplateRef, "have the template inspected", func(ctx context.Context, s *store.Store, t store.Template) (store.Inspection, error) {
			version := cmp.Or(in.Version, t.Version)
			if err := s.InspectTemplate(ctx, t.OrgID, t.Repo, version, t.Path); err != nil {
				return store.Inspection{}, err
			}
			return s.TemplateVariables(ctx, t.OrgID, t.Repo, version, t.Path)
		})
	})
	add(a, h, huma.Operation{
		OperationID: "pin-template", Method: http.MethodPost, Path: "/templates/{ref}/pin", Tags: []string{"Templates"}, DefaultStatus: http.StatusNoContent,
		Summary:     "Pin a tag to a commit",
		Description: "A tag means the commit that this server has inspected, or else the one that each cluster used first. This sets it for all clusters of the organisation, whatever was pinned before. Admins may do this.",
	}, func(ctx context.Context, in *pinInput) (*struct{}, error) {
		return nothing(ctx, a, in.TemplateRef, "pin the template", func(ctx context.Context, s *store.Store, t store.Template) error {
			return s.PinTemplate(ctx, t.OrgID, t.Repo, cmp.Or(in.Body.Version, t.Version), in.Body.Commit, in.Body.Reason)
		})
	})
}
