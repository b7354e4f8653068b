package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// TemplateRef is the path parameter that names a template.
type TemplateRef struct {
	Ref string `path:"ref" maxLength:"200" doc:"The template, by its name or id." example:"envtempl"`
	OrgParam
}

type saveTemplateInput struct {
	Keyed
	OrgParam
	Body struct {
		Name        string `json:"name" minLength:"1" maxLength:"200" doc:"What it is called in the catalogue." example:"envtempl"`
		Repo        string `json:"repo" minLength:"1" maxLength:"500" doc:"Its repository: https://HOST/PATH, ssh://[USER@]HOST/PATH, USER@HOST:PATH or file:///PATH. Credentials belong to the agents, not here." example:"https://git.example/acme/envtempl"`
		Version     string `json:"version" minLength:"1" maxLength:"200" doc:"The version that is offered first: a tag or a full commit, never a branch." example:"v1.2.0"`
		Path        string `json:"path,omitempty" maxLength:"500" doc:"Its directory in the repository; empty: the root." example:"envs/prod"`
		Description string `json:"description,omitempty" maxLength:"4000" doc:"What it is for."`
		Approval    string `json:"approval,omitempty" enum:"never,destructive,always" doc:"When a plan of it must be approved; a cluster's policy may want more. Not given: as it is, never for a new one." example:"destructive"`
	}
}

type templateAnswer struct{ Body store.Template }

// templates registers what is asked of the catalogue.
func (a *api) templates(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-templates", Method: http.MethodGet, Path: "/templates", Tags: []string{"Templates"},
		Summary: "List the catalogue by name",
	}, func(ctx context.Context, in *orgListInput) (*listed[store.Template], error) {
		var after string
		if err := decodeCursor("templates", in.Cursor, &after); err != nil {
			return nil, err
		}
		return byName(ctx, a.as(ctx), "templates", in.Org, func(ctx context.Context, s *store.Store, org uuid.UUID) ([]store.Template, string, error) {
			return s.ListTemplates(ctx, org, after, in.Limit)
		})
	})

	once(a, h, huma.Operation{
		OperationID: "save-template", Method: http.MethodPost, Path: "/templates", Tags: []string{"Templates"}, DefaultStatus: http.StatusCreated,
		Summary: "Put a template into the catalogue, or change the one of that name", Description: "Admins may do this.",
	}, func(ctx context.Context, s *store.Store, in *saveTemplateInput) (string, store.Template, error) {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return "", store.Template{}, err
		}
		b := in.Body
		id, err := s.SaveTemplate(ctx, org.ID, store.Template{Name: b.Name, Repo: b.Repo, Version: b.Version, Path: b.Path, Description: b.Description, Approval: b.Approval})
		if err != nil {
			return "", store.Template{}, err
		}
		saved, err := s.TemplateByRef(ctx, org.ID, id.String())
		return prefix + "/templates/" + id.String(), saved, err
	})

	add(a, h, huma.Operation{
		OperationID: "get-template", Method: http.MethodGet, Path: "/templates/{ref}", Tags: []string{"Templates"}, Summary: "One template",
	}, func(ctx context.Context, in *TemplateRef) (*templateAnswer, error) {
		answer := &templateAnswer{}
		return answer, a.withTemplate(ctx, *in, "read the template", func(_ context.Context, _ *store.Store, t store.Template) error {
			answer.Body = t
			return nil
		})
	})

	add(a, h, huma.Operation{
		OperationID: "remove-template", Method: http.MethodDelete, Path: "/templates/{ref}", Tags: []string{"Templates"}, DefaultStatus: http.StatusNoContent,
		Summary: "Take a template out of the catalogue", Description: "What was deployed from it stays. Admins may do this.",
	}, func(ctx context.Context, in *TemplateRef) (*struct{}, error) {
		return nil, a.withTemplate(ctx, *in, "remove the template", func(ctx context.Context, s *store.Store, t store.Template) error {
			_, err := s.RemoveTemplate(ctx, t.OrgID, t.Name) // gone meanwhile: as wanted
			return err
		})
	})
}

// withTemplate finds the template of that ref and does something with it, in one
// transaction.
func (a *api) withTemplate(ctx context.Context, in TemplateRef, doing string, do func(context.Context, *store.Store, store.Template) error) error {
	return a.as(ctx).Within(ctx, doing, func(ctx context.Context, s *store.Store) error {
		org, err := in.org(ctx, s)
		if err != nil {
			return err
		}
		template, err := s.TemplateByRef(ctx, org, in.Ref)
		if err != nil {
			return err
		}
		return do(ctx, s, template)
	})
}
