package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// ClusterRef is the path parameter that names a cluster.
type ClusterRef struct {
	Ref string `path:"ref" maxLength:"100" doc:"The cluster, by its name or id." example:"prod"`
	OrgParam
}

type clusterAnswer struct{ Body store.Cluster }

type newClusterInput struct {
	Keyed
	Body struct {
		Name string `json:"name" minLength:"1" maxLength:"63" doc:"1 to 63 letters, digits and . _ -" example:"prod"`
	}
	OrgParam
}

// clusters registers what is asked of clusters.
func (a *api) clusters(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-clusters", Method: http.MethodGet, Path: "/clusters", Tags: []string{"Clusters"},
		Summary: "List clusters by name, with the agents heard of within a day",
	}, func(ctx context.Context, in *orgListInput) (*listed[store.Cluster], error) {
		var after string
		if err := decodeCursor("clusters", in.Cursor, &after); err != nil {
			return nil, err
		}
		return byName(ctx, a.as(ctx), "clusters", in.Org, func(ctx context.Context, s *store.Store, org uuid.UUID) ([]store.Cluster, string, error) {
			return s.ListClusters(ctx, org, after, in.Limit)
		})
	})

	onceSecret(a, h, huma.Operation{
		OperationID: "create-cluster", Method: http.MethodPost, Path: "/clusters", Tags: []string{"Clusters"},
		Summary: "Make a cluster", DefaultStatus: http.StatusCreated,
		Description: "The answer has the token for its agents, which nobody can read again. Admins may do this.",
	}, func(ctx context.Context, s *store.Store, in *newClusterInput) (string, store.NewCluster, error) {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return "", store.NewCluster{}, err
		}
		c, err := s.CreateCluster(ctx, org.ID, in.Body.Name)
		return prefix + "/clusters/" + c.ID.String(), c, err
	})

	add(a, h, huma.Operation{
		OperationID: "get-cluster", Method: http.MethodGet, Path: "/clusters/{ref}", Tags: []string{"Clusters"},
		Summary: "One cluster",
	}, func(ctx context.Context, in *ClusterRef) (*clusterAnswer, error) {
		answer := &clusterAnswer{}
		return answer, a.withCluster(ctx, *in, "read the cluster", func(_ context.Context, _ *store.Store, c store.Cluster) error {
			answer.Body = c
			return nil
		})
	})
}

// withCluster finds the cluster of that ref and does something with it, in one
// transaction.
func (a *api) withCluster(ctx context.Context, in ClusterRef, doing string, do func(context.Context, *store.Store, store.Cluster) error) error {
	return a.as(ctx).Within(ctx, doing, func(ctx context.Context, s *store.Store) error {
		org, err := in.org(ctx, s)
		if err != nil {
			return err
		}
		cluster, err := s.ClusterByRef(ctx, org, in.Ref)
		if err != nil {
			return err
		}
		return do(ctx, s, cluster)
	})
}

// byName answers a page of an organisation's list whose keys are names.
func byName[T any](ctx context.Context, s *store.Store, list, org string,
	read func(context.Context, *store.Store, uuid.UUID) ([]T, string, error),
) (*listed[T], error) {
	var items []T
	var next string
	err := s.Within(ctx, "list the "+list, func(ctx context.Context, s *store.Store) error {
		found, err := s.FindOrg(ctx, org)
		if err != nil {
			return err
		}
		items, next, err = read(ctx, s, found.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	if next != "" {
		next = encodeCursor(list, next)
	}
	return listOf(items, next), nil
}
