package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Reason is the optional body of what people do with a reason.
type Reason struct {
	Body *struct {
		Reason string `json:"reason,omitempty" maxLength:"1000" doc:"Why; others are shown it." example:"the network is being moved"`
	}
}

func (r Reason) reason() string {
	if r.Body == nil {
		return ""
	}
	return r.Body.Reason
}

type workspaceReasonInput struct {
	WorkspaceRef
	Reason
}

type lockInput struct {
	WorkspaceRef
	Body struct {
		Reason string `json:"reason" minLength:"1" maxLength:"1000" doc:"Why; others are shown it." example:"the network is being moved"`
	}
}

type rebindInput struct {
	WorkspaceRef
	Body struct {
		Repo   string `json:"repo" minLength:"1" maxLength:"500" doc:"The template's repository." example:"https://git.example/acme/envtempl"`
		Path   string `json:"path,omitempty" maxLength:"500" doc:"Its directory there; empty: the root." example:"envs/prod"`
		Reason string `json:"reason" minLength:"1" maxLength:"1000" doc:"Why; others are shown it." example:"the template has moved"`
	}
}

// locks registers what keeps a workspace from being used, and ends that.
func (a *api) locks(h huma.API) {
	operation := func(word, summary, description string) huma.Operation {
		return huma.Operation{
			OperationID: word + "-workspace", Method: http.MethodPost, Path: "/workspaces/{ref}/" + word, Tags: []string{"Workspaces"},
			Summary: summary, Description: description, DefaultStatus: http.StatusNoContent,
		}
	}

	add(a, h, operation("lock", "Keep it from running anything", "What runs goes on; what is asked for waits until it is unlocked. Operators may do this."),
		func(ctx context.Context, in *lockInput) (*struct{}, error) {
			return nil, a.withWorkspace(ctx, in.WorkspaceRef, "lock the workspace", func(ctx context.Context, s *store.Store, w store.Workspace) error {
				return s.Lock(ctx, w.ID, in.Body.Reason)
			})
		})
	add(a, h, operation("unlock", "End a lock", "One's own as an operator, anybody's as an admin. Where there is none nothing changes."),
		func(ctx context.Context, in *workspaceReasonInput) (*struct{}, error) {
			return nil, a.withWorkspace(ctx, in.WorkspaceRef, "unlock the workspace", func(ctx context.Context, s *store.Store, w store.Workspace) error {
				return s.Unlock(ctx, w.ID, in.reason())
			})
		})
	add(a, h, operation("release", "End what holds it without a run", "An agent that was lost during apply, or a state that an agent keeps because it could not be stored. Make sure first that nothing is at work there any more. Admins may do this."),
		func(ctx context.Context, in *workspaceReasonInput) (*struct{}, error) {
			return nil, a.withWorkspace(ctx, in.WorkspaceRef, "release the workspace", func(ctx context.Context, s *store.Store, w store.Workspace) error {
				return s.Release(ctx, w.ID, in.reason())
			})
		})
	add(a, h, operation("rebind", "Bind it to another template", "The next apply there destroys what that template does not know. Admins may do this."),
		func(ctx context.Context, in *rebindInput) (*struct{}, error) {
			return nil, a.withWorkspace(ctx, in.WorkspaceRef, "bind the workspace to another template", func(ctx context.Context, s *store.Store, w store.Workspace) error {
				return s.Rebind(ctx, w.ID, in.Body.Repo, in.Body.Path, in.Body.Reason)
			})
		})
}
