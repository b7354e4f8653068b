package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// WorkspaceRef is the path parameter that names a workspace.
type WorkspaceRef struct {
	Ref string `path:"ref" maxLength:"200" doc:"The workspace, by its name or id. In a name each / is written %2F." example:"acme%2Fprod"`
	OrgParam
	Cluster string `query:"cluster" maxLength:"100" doc:"The cluster that it is on, by its name or id. Only needed where several have a workspace of that name." example:"prod"`
}

type workspacesInput struct {
	OrgParam
	PageParams
	Cluster string `query:"cluster" maxLength:"100" doc:"Only those of this cluster, by its name or id." example:"prod"`
}

// workspaces registers what is read of workspaces.
func (a *api) workspaces(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-workspaces", Method: http.MethodGet, Path: "/workspaces", Tags: []string{"Workspaces"},
		Summary: "List workspaces by cluster and name",
	}, a.listWorkspaces)

	add(a, h, huma.Operation{
		OperationID: "get-workspace", Method: http.MethodGet, Path: "/workspaces/{ref}", Tags: []string{"Workspaces"},
		Summary: "One workspace: what goes on there, who has locked it, where its state is",
	}, func(ctx context.Context, in *WorkspaceRef) (*answer[wire.WorkspaceDetail], error) {
		return told(ctx, a, workspaceOf, *in, "read the workspace", func(ctx context.Context, s *store.Store, w store.Workspace) (store.Situation, error) {
			return s.Situation(ctx, w.OrgID, w.ID.String())
		})
	})
}

func (a *api) listWorkspaces(ctx context.Context, in *workspacesInput) (*listed[wire.Standing], error) {
	var after store.WorkspaceKey
	if err := decodeCursor("workspaces", in.Cursor, &after.Cluster, &after.Name); err != nil {
		return nil, err
	}
	var list []store.Situation
	var next *store.WorkspaceKey
	err := a.as(ctx).Within(ctx, "list the workspaces", func(ctx context.Context, s *store.Store) error {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return err
		}
		cluster, err := clusterID(ctx, s, org.ID, in.Cluster)
		if err != nil {
			return err
		}
		list, next, err = s.ListWorkspaces(ctx, org.ID, cluster, after, in.Limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	cursor := ""
	if next != nil {
		cursor = encodeCursor("workspaces", next.Cluster, next.Name)
	}
	return listOf(each(standingOf, list), cursor), nil
}

func (in WorkspaceRef) find(ctx context.Context, s *store.Store) (store.Workspace, error) {
	org, err := in.org(ctx, s)
	if err != nil {
		return store.Workspace{}, err
	}
	cluster, err := clusterID(ctx, s, org, in.Cluster)
	if err != nil {
		return store.Workspace{}, err
	}
	return s.WorkspaceByRef(ctx, org, cluster, in.Ref)
}

// clusterID is the id of the cluster that a parameter names, uuid.Nil where it
// names none.
func clusterID(ctx context.Context, s *store.Store, org uuid.UUID, ref string) (uuid.UUID, error) {
	if ref == "" {
		return uuid.Nil, nil
	}
	cluster, err := s.ClusterByRef(ctx, org, ref)
	return cluster.ID, err
}

type workspaceListInput struct {
	WorkspaceRef
	PageParams
}

// inventory registers what is read of what exists in a workspace.
func (a *api) inventory(h huma.API) {
	operation := func(word, id, summary, description string) huma.Operation {
		return huma.Operation{
			OperationID: id, Method: http.MethodGet, Path: "/workspaces/{ref}/" + word, Tags: []string{"Workspaces"},
			Summary: summary, Description: description,
		}
	}

	add(a, h, operation("resources", "list-workspace-resources", "What exists there, by address", "What is sensitive is not among it."),
		func(ctx context.Context, in *workspaceListInput) (*listed[wire.Resource], error) {
			return paged(ctx, a, in.WorkspaceRef, in.PageParams, "resources", "list the resources", resourceOf, func(ctx context.Context, s *store.Store, w store.Workspace, after string, limit int) ([]store.Resource, string, error) {
				return s.ListResources(ctx, w.ID, after, limit)
			})
		})

	add(a, h, operation("provisions", "list-workspace-provisions", "What was asked of it, the newest first", "As in the list of all provisions."),
		func(ctx context.Context, in *workspaceListInput) (*listed[wire.Provision], error) {
			return paged(ctx, a, in.WorkspaceRef, in.PageParams, "provisions", "list the provisions", provisionOf, func(ctx context.Context, s *store.Store, w store.Workspace, before int64, limit int) ([]store.Provision, int64, error) {
				return s.ListProvisions(ctx, w.OrgID, store.ProvisionFilter{Workspace: w.ID}, before, limit)
			})
		})

	add(a, h, operation("states", "list-workspace-states", "The managed states that are kept of it, the newest first", "What is in them nobody but the cluster's agents can read."),
		func(ctx context.Context, in *WorkspaceRef) (*listed[wire.StateVersion], error) {
			list, err := about(ctx, a, *in, "list the states", func(ctx context.Context, s *store.Store, w store.Workspace) ([]store.StateVersion, error) {
				return s.StateVersions(ctx, w.ID)
			})
			return listAfter("states", each(stateVersionOf, list), "", err)
		})

	add(a, h, operation("outputs", "get-workspace-outputs", "The newest provision there that has outputs", "The value of a sensitive output is not among them, except sealed to the requester_key of its snapshot."),
		func(ctx context.Context, in *WorkspaceRef) (*answer[wire.Provision], error) {
			return told(ctx, a, provisionOf, *in, "look for the outputs", func(ctx context.Context, s *store.Store, w store.Workspace) (store.Provision, error) {
				return s.LastOutputs(ctx, w)
			})
		})

	add(a, h, operation("applied", "get-workspace-applied", "What was applied there last", "The snapshot of the newest apply that succeeded, else of the newest: to deploy again, or to destroy."),
		func(ctx context.Context, in *WorkspaceRef) (*answer[wire.AppliedAnswerBody], error) {
			return about(ctx, a, *in, "look for what was deployed", func(ctx context.Context, s *store.Store, w store.Workspace) (_ *answer[wire.AppliedAnswerBody], err error) {
				answer := &answer[wire.AppliedAnswerBody]{}
				answer.Body.ClusterID, answer.Body.Snapshot, err = s.LastApplied(ctx, w)
				return answer, err
			})
		})
}

// listAfter is a page of a list with one key: next, if it is not its zero value.
func listAfter[T any, K comparable](list string, items []T, next K, err error) (*listed[T], error) {
	if err != nil {
		return nil, err
	}
	var none K
	if next == none {
		return listOf(items, ""), nil
	}
	return listOf(items, encodeCursor(list, next)), nil
}

type workspaceReasonInput struct {
	WorkspaceRef
	Body *wire.WorkspaceReasonInputBody
}

type lockInput struct {
	WorkspaceRef
	Body wire.LockInputBody
}

type rebindInput struct {
	WorkspaceRef
	Body wire.RebindInputBody
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
			return nothing(ctx, a, in.WorkspaceRef, "lock the workspace", func(ctx context.Context, s *store.Store, w store.Workspace) error {
				return s.Lock(ctx, w.ID, in.Body.Reason)
			})
		})
	add(a, h, operation("unlock", "End a lock", "One's own as an operator, anybody's as an admin. Where there is none nothing changes."),
		func(ctx context.Context, in *workspaceReasonInput) (*struct{}, error) {
			return nothing(ctx, a, in.WorkspaceRef, "unlock the workspace", func(ctx context.Context, s *store.Store, w store.Workspace) error {
				return s.Unlock(ctx, w.ID, given(in.Body).Reason)
			})
		})
	add(a, h, operation("release", "End what holds it without a run", "An agent that was lost during apply, or a state that an agent keeps because it could not be stored. Make sure first that nothing is at work there any more. Admins may do this."),
		func(ctx context.Context, in *workspaceReasonInput) (*struct{}, error) {
			return nothing(ctx, a, in.WorkspaceRef, "release the workspace", func(ctx context.Context, s *store.Store, w store.Workspace) error {
				return s.Release(ctx, w.ID, given(in.Body).Reason)
			})
		})
	add(a, h, operation("rebind", "Bind it to another template", "The next apply there destroys what that template does not know. Admins may do this."),
		func(ctx context.Context, in *rebindInput) (*struct{}, error) {
			return nothing(ctx, a, in.WorkspaceRef, "bind the workspace to another template", func(ctx context.Context, s *store.Store, w store.Workspace) error {
				return s.Rebind(ctx, w.ID, in.Body.Repo, in.Body.Path, in.Body.Reason)
			})
		})
}

type watchDriftInput struct {
	WorkspaceRef
	Body wire.WatchDriftInputBody
}

// drift registers what is asked of drift.
func (a *api) drift(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-drift", Method: http.MethodGet, Path: "/drift", Tags: []string{"Workspaces"},
		Summary:     "The workspaces that are checked for drift, or were",
		Description: "Those that have drifted first; at most 1,000, in one page.",
	}, func(ctx context.Context, in *OrgParam) (*listed[wire.Drift], error) {
		list, err := about(ctx, a, *in, "list what has drifted", func(ctx context.Context, s *store.Store, org store.Org) ([]store.Drift, error) {
			return s.ListDrifts(ctx, org.ID)
		})
		return listAfter("drift", each(driftOf, list), "", err)
	})

	add(a, h, huma.Operation{
		OperationID: "get-workspace-drift", Method: http.MethodGet, Path: "/workspaces/{ref}/drift", Tags: []string{"Workspaces"},
		Summary: "How the infrastructure differs from the state, as far as is known",
	}, func(ctx context.Context, in *WorkspaceRef) (*answer[wire.Drift], error) {
		return told(ctx, a, driftOf, *in, "read what has drifted", func(ctx context.Context, s *store.Store, w store.Workspace) (store.Drift, error) {
			return s.Drift(ctx, w.ID)
		})
	})

	add(a, h, huma.Operation{
		OperationID: "watch-workspace-drift", Method: http.MethodPut, Path: "/workspaces/{ref}/drift", Tags: []string{"Workspaces"},
		Summary: "Look for drift every so often", Description: "Operators may do this. To look once, make a provision of the operation refresh.",
	}, func(ctx context.Context, in *watchDriftInput) (*answer[wire.Drift], error) {
		return told(ctx, a, driftOf, in.WorkspaceRef, "set the schedule", func(ctx context.Context, s *store.Store, w store.Workspace) (store.Drift, error) {
			if err := s.WatchDrift(ctx, w.ID, time.Duration(in.Body.Every)*time.Second); err != nil {
				return store.Drift{}, err
			}
			return s.Drift(ctx, w.ID)
		})
	})
}
