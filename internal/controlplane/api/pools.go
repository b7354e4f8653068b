package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/placement"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

// PoolRef is the path parameter that names a pool.
type PoolRef struct {
	Ref string `path:"ref" maxLength:"200" doc:"The pool, by its name or id." example:"lab"`
	OrgParam
	Cluster string `query:"cluster" maxLength:"200" doc:"The cluster that it is on, by its name or id. Only needed where several have a pool of that name." example:"prod"`
}

func (in PoolRef) find(ctx context.Context, s *store.Store) (store.Pool, error) {
	org, err := in.org(ctx, s)
	if err != nil {
		return store.Pool{}, err
	}
	cluster, err := clusterID(ctx, s, org, in.Cluster)
	if err != nil {
		return store.Pool{}, err
	}
	return s.PoolByRef(ctx, org, cluster, in.Ref)
}

type poolsInput struct {
	OrgParam
	Cluster string `query:"cluster" maxLength:"200" doc:"Only those of this cluster, by its name or id." example:"prod"`
}

type poolImageInput struct {
	PoolRef
	Body wire.PoolImageBody
}

type poolImageRef struct {
	PoolRef
	Image string `query:"image" required:"true" maxLength:"200" doc:"The name that templates use." example:"debian-13"`
}

type poolQuotaInput struct {
	OrgParam
	Body wire.PoolQuotaBody
}

// PoolQuotaRef is the path parameter that names a quota.
type PoolQuotaRef struct {
	ID uuid.UUID `path:"id" doc:"The quota's id."`
	OrgParam
}

// pools registers what is read and decided of pools.
func (a *api) pools(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-pools", Method: http.MethodGet, Path: "/pools", Tags: []string{"Pools"},
		Summary: "List pools by cluster and name", Description: "As agents last reported them, in one page.",
	}, func(ctx context.Context, in *poolsInput) (*listed[wire.Pool], error) {
		list, err := about(ctx, a, in.OrgParam, "list the pools", func(ctx context.Context, s *store.Store, org store.Org) ([]store.Pool, error) {
			cluster, err := clusterID(ctx, s, org.ID, in.Cluster)
			if err != nil {
				return nil, err
			}
			return s.ListPools(ctx, org.ID, cluster)
		})
		return listAfter("pools", each(poolOf, list), "", err)
	})

	add(a, h, huma.Operation{
		OperationID: "get-pool", Method: http.MethodGet, Path: "/pools/{ref}", Tags: []string{"Pools"},
		Summary: "One pool, with its nodes and what is reserved there",
	}, func(ctx context.Context, in *PoolRef) (*answer[wire.PoolDetail], error) {
		return told(ctx, a, poolDetailOf, *in, "read the pool", func(ctx context.Context, s *store.Store, p store.Pool) (store.PoolDetail, error) {
			return s.PoolDetail(ctx, p)
		})
	})

	add(a, h, huma.Operation{
		OperationID: "set-pool-image", Method: http.MethodPut, Path: "/pools/{ref}/images", Tags: []string{"Pools"}, DefaultStatus: http.StatusNoContent,
		Summary: "Say what an image that templates name is called in a pool", Description: "Machines are placed on nodes that have the image of that name, and made from it. Admins may do this.",
	}, func(ctx context.Context, in *poolImageInput) (*struct{}, error) {
		return nothing(ctx, a, in.PoolRef, "set the image's name", func(ctx context.Context, s *store.Store, p store.Pool) error {
			return s.SetPoolImage(ctx, p.ID, in.Body.Image, in.Body.Name)
		})
	})
	add(a, h, huma.Operation{
		OperationID: "delete-pool-image", Method: http.MethodDelete, Path: "/pools/{ref}/images", Tags: []string{"Pools"}, DefaultStatus: http.StatusNoContent,
		Summary: "Forget what an image is called in a pool", Description: "It has the same name there as in templates, from then on. Admins may do this.",
	}, func(ctx context.Context, in *poolImageRef) (*struct{}, error) {
		return nothing(ctx, a, in.PoolRef, "delete the image's name", func(ctx context.Context, s *store.Store, p store.Pool) error {
			return s.SetPoolImage(ctx, p.ID, in.Image, "")
		})
	})
}

type placementInput struct {
	OrgParam
	Body wire.PlacementBody
}

type placeRef struct {
	OrgParam
	Machine   string `path:"machine" maxLength:"200" doc:"The machine's name." example:"ada"`
	Workspace string `query:"workspace" required:"true" maxLength:"200" doc:"Its workspace, by its name or id." example:"acme/prod"`
}

// places registers where machines would go, and the end of a place that is left over.
func (a *api) places(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "preview-placement", Method: http.MethodPost, Path: "/placement", Tags: []string{"Pools"}, DefaultStatus: http.StatusOK,
		Summary: "Say where the machines of a deploy would go", Description: "Nothing is reserved. It is refused for the reasons for which a run would be refused, or would wait: no_room, never_fits, quota. placement_unknown: what is given does not say which machines there would be. Operators may do this.",
	}, func(ctx context.Context, in *placementInput) (*answer[wire.Placement], error) {
		found, err := about(ctx, a, in.OrgParam, "preview the placement", func(ctx context.Context, s *store.Store, org store.Org) (placement.Preview, error) {
			cluster, err := s.ClusterByRef(ctx, org.ID, in.Body.Cluster)
			if err != nil {
				return placement.Preview{}, err
			}
			asked, err := provision.ParseSnapshot(in.Body.Snapshot)
			if err != nil {
				return placement.Preview{}, &store.RefusedError{Code: "PT422", Reason: "bad_snapshot", Message: provision.AsFailure(err).Message}
			}
			workspace, _ := asked.WorkspaceName() // "" where it names none
			return placement.For(ctx, s, org.ID, cluster.ID, workspace, asked)
		})
		if unknown, is := errors.AsType[*placement.UnknownError](err); is {
			err = &store.RefusedError{Code: "PT422", Reason: "placement_unknown", Message: unknown.Text}
		}
		return body(placementOf, found, err)
	})

	add(a, h, huma.Operation{
		OperationID: "free-place", Method: http.MethodDelete, Path: "/places/{machine}", Tags: []string{"Pools"}, DefaultStatus: http.StatusNoContent,
		Summary: "Free the place of a machine that is gone or was never made", Description: "It is refused while the machine is there, or a run may still make it. Runs that wait for room are tried again. Admins may do this.",
	}, func(ctx context.Context, in *placeRef) (*struct{}, error) {
		return nothing(ctx, a, in.OrgParam, "free the place", func(ctx context.Context, s *store.Store, org store.Org) error {
			workspace, err := workspaceID(ctx, s, org.ID, in.Workspace)
			if err != nil {
				return err
			}
			return s.FreePlace(ctx, workspace, in.Machine)
		})
	})
}

// quotas registers how much workspaces may reserve in pools.
func (a *api) quotas(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-pool-quotas", Method: http.MethodGet, Path: "/pool-quotas", Tags: []string{"Pools"},
		Summary: "List quotas and what is used of them", Description: "By workspaces and pool, in one page.",
	}, func(ctx context.Context, in *OrgParam) (*listed[wire.PoolQuota], error) {
		list, err := about(ctx, a, *in, "list the quotas", func(ctx context.Context, s *store.Store, org store.Org) ([]store.PoolQuota, error) {
			return s.PoolQuotas(ctx, org.ID)
		})
		return listAfter("pool-quotas", each(poolQuotaOf, list), "", err)
	})
	add(a, h, huma.Operation{
		OperationID: "set-pool-quota", Method: http.MethodPut, Path: "/pool-quotas", Tags: []string{"Pools"},
		Summary: "Set how much workspaces may reserve in pools", Description: "It replaces the quota of the same workspaces and pool. What is reserved already stays, though it be more. Admins may do this.",
	}, func(ctx context.Context, in *poolQuotaInput) (*answer[wire.PoolQuotaAnswer], error) {
		id, err := about(ctx, a, in.OrgParam, "set the quota", func(ctx context.Context, s *store.Store, org store.Org) (uuid.UUID, error) {
			change := store.QuotaChange{Workspaces: in.Body.Workspaces, Machines: in.Body.Machines, Cores: in.Body.Cores, MemoryMiB: in.Body.MemoryMiB}
			if in.Body.Pool != "" {
				cluster, err := clusterID(ctx, s, org.ID, in.Body.Cluster)
				if err != nil {
					return uuid.Nil, err
				}
				pool, err := s.PoolByRef(ctx, org.ID, cluster, in.Body.Pool)
				if err != nil {
					return uuid.Nil, err
				}
				change.Pool = &pool.ID
			}
			return s.SetPoolQuota(ctx, org.ID, change)
		})
		return &answer[wire.PoolQuotaAnswer]{wire.PoolQuotaAnswer{ID: id}}, err
	})
	add(a, h, huma.Operation{
		OperationID: "delete-pool-quota", Method: http.MethodDelete, Path: "/pool-quotas/{id}", Tags: []string{"Pools"}, DefaultStatus: http.StatusNoContent,
		Summary: "Delete a quota", Description: "Admins may do this.",
	}, func(ctx context.Context, in *PoolQuotaRef) (*struct{}, error) {
		return nothing(ctx, a, in.OrgParam, "delete the quota", func(ctx context.Context, s *store.Store, org store.Org) error {
			return s.DeletePoolQuota(ctx, org.ID, in.ID)
		})
	})
}
