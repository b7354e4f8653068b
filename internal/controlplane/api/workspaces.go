package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
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

type workspaceAnswer struct{ Body store.WorkspaceDetail }

// workspaces registers what is read of workspaces.
func (a *api) workspaces(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-workspaces", Method: http.MethodGet, Path: "/workspaces", Tags: []string{"Workspaces"},
		Summary: "List workspaces by cluster and name",
	}, a.listWorkspaces)

	add(a, h, huma.Operation{
		OperationID: "get-workspace", Method: http.MethodGet, Path: "/workspaces/{ref}", Tags: []string{"Workspaces"},
		Summary: "One workspace: what goes on there, who has locked it, where its state is",
	}, func(ctx context.Context, in *WorkspaceRef) (*workspaceAnswer, error) {
		answer := &workspaceAnswer{}
		return answer, a.withWorkspace(ctx, *in, "read the workspace", func(ctx context.Context, s *store.Store, w store.Workspace) (err error) {
			answer.Body, err = s.WorkspaceDetail(ctx, w)
			return err
		})
	})
}

func (a *api) listWorkspaces(ctx context.Context, in *workspacesInput) (*listed[store.Standing], error) {
	var after store.WorkspaceKey
	if err := decodeCursor("workspaces", in.Cursor, &after.Cluster, &after.Name); err != nil {
		return nil, err
	}
	var list []store.Standing
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
	return listOf(list, cursor), nil
}

// withWorkspace finds the workspace of that ref and does something with it, in
// one transaction.
func (a *api) withWorkspace(ctx context.Context, in WorkspaceRef, doing string, do func(context.Context, *store.Store, store.Workspace) error) error {
	return a.as(ctx).Within(ctx, doing, func(ctx context.Context, s *store.Store) error {
		org, err := in.org(ctx, s)
		if err != nil {
			return err
		}
		cluster, err := clusterID(ctx, s, org, in.Cluster)
		if err != nil {
			return err
		}
		workspace, err := s.WorkspaceByRef(ctx, org, cluster, in.Ref)
		if err != nil {
			return err
		}
		return do(ctx, s, workspace)
	})
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
