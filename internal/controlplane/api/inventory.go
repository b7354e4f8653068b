package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

type workspaceListInput struct {
	WorkspaceRef
	PageParams
}

type appliedAnswer struct {
	Body struct {
		ClusterID uuid.UUID       `json:"cluster_id" doc:"The cluster it was applied on."`
		Snapshot  json.RawMessage `json:"config_snapshot" doc:"What was applied."`
	}
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
		func(ctx context.Context, in *workspaceListInput) (*listed[store.Resource], error) {
			var after, next string
			if err := decodeCursor("resources", in.Cursor, &after); err != nil {
				return nil, err
			}
			var list []store.Resource
			err := a.withWorkspace(ctx, in.WorkspaceRef, "list the resources", func(ctx context.Context, s *store.Store, w store.Workspace) (err error) {
				list, next, err = s.ListResources(ctx, w.ID, after, in.Limit)
				return err
			})
			return listAfter("resources", list, next, err)
		})

	add(a, h, operation("provisions", "list-workspace-provisions", "What was asked of it, the newest first", "As in the list of all provisions."),
		func(ctx context.Context, in *workspaceListInput) (*listed[store.Provision], error) {
			var before, next int64
			if err := decodeCursor("provisions", in.Cursor, &before); err != nil {
				return nil, err
			}
			var list []store.Provision
			err := a.withWorkspace(ctx, in.WorkspaceRef, "list the provisions", func(ctx context.Context, s *store.Store, w store.Workspace) (err error) {
				list, next, err = s.ListProvisions(ctx, w.OrgID, store.ProvisionFilter{Workspace: w.ID}, before, in.Limit)
				return err
			})
			return listAfter("provisions", list, next, err)
		})

	add(a, h, operation("states", "list-workspace-states", "The managed states that are kept of it, the newest first", "What is in them nobody but the cluster's agents can read."),
		func(ctx context.Context, in *WorkspaceRef) (*listed[store.StateVersion], error) {
			var list []store.StateVersion
			err := a.withWorkspace(ctx, *in, "list the states", func(ctx context.Context, s *store.Store, w store.Workspace) (err error) {
				list, err = s.StateVersions(ctx, w.ID)
				return err
			})
			return listAfter("states", list, "", err)
		})

	add(a, h, operation("outputs", "get-workspace-outputs", "The newest provision there that has outputs", "The value of a sensitive output is not among them, except sealed to the requester_key of its snapshot."),
		func(ctx context.Context, in *WorkspaceRef) (*provisionAnswer, error) {
			answer := &provisionAnswer{}
			return answer, a.withWorkspace(ctx, *in, "look for the outputs", func(ctx context.Context, s *store.Store, w store.Workspace) (err error) {
				answer.Body, err = s.LastOutputs(ctx, w)
				return err
			})
		})

	add(a, h, operation("applied", "get-workspace-applied", "What was applied there last", "The snapshot of the newest apply that succeeded, else of the newest: to deploy again, or to destroy."),
		func(ctx context.Context, in *WorkspaceRef) (*appliedAnswer, error) {
			answer := &appliedAnswer{}
			return answer, a.withWorkspace(ctx, *in, "look for what was deployed", func(ctx context.Context, s *store.Store, w store.Workspace) (err error) {
				answer.Body.ClusterID, answer.Body.Snapshot, err = s.LastApplied(ctx, w)
				return err
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
