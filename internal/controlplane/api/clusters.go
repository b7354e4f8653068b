package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// ClusterRef is the path parameter that names a cluster.
type ClusterRef struct {
	Ref string `path:"ref" maxLength:"100" doc:"The cluster, by its name or id." example:"prod"`
	OrgParam
}

type newClusterInput struct {
	Keyed
	Body wire.NewClusterInputBody
	OrgParam
}

// clusters registers what is asked of clusters.
func (a *api) clusters(h huma.API) {
	add(a, h, huma.Operation{
		OperationID: "list-clusters", Method: http.MethodGet, Path: "/clusters", Tags: []string{"Clusters"},
		Summary: "List clusters by name, with the agents seen within a day",
	}, func(ctx context.Context, in *orgListInput) (*listed[wire.Cluster], error) {
		return paged(ctx, a, in.OrgParam, in.PageParams, "clusters", "list the clusters", clusterOf, func(ctx context.Context, s *store.Store, org store.Org, after string, limit int) ([]store.Cluster, string, error) {
			return s.ListClusters(ctx, org.ID, after, limit)
		})
	})

	onceSecret(a, h, huma.Operation{
		OperationID: "create-cluster", Method: http.MethodPost, Path: "/clusters", Tags: []string{"Clusters"},
		Summary: "Make a cluster", DefaultStatus: http.StatusCreated,
		Description: "The answer has the token for its agents, which nobody can read again. Admins may do this.",
	}, func(ctx context.Context, s *store.Store, in *newClusterInput) (string, wire.NewCluster, error) {
		org, err := s.FindOrg(ctx, in.Org)
		if err != nil {
			return "", wire.NewCluster{}, err
		}
		c, err := s.CreateCluster(ctx, org.ID, in.Body.Name)
		return prefix + "/clusters/" + c.ID.String(), wire.NewCluster(c), err
	})

	add(a, h, huma.Operation{
		OperationID: "get-cluster", Method: http.MethodGet, Path: "/clusters/{ref}", Tags: []string{"Clusters"},
		Summary: "One cluster",
	}, func(ctx context.Context, in *ClusterRef) (*answer[wire.Cluster], error) {
		return told(ctx, a, clusterOf, *in, "read the cluster", itself[store.Cluster])
	})
}

func (in ClusterRef) find(ctx context.Context, s *store.Store) (store.Cluster, error) {
	org, err := in.org(ctx, s)
	if err != nil {
		return store.Cluster{}, err
	}
	return s.ClusterByRef(ctx, org, in.Ref)
}

type clusterReasonInput struct {
	ClusterRef
	Body *wire.ClusterReasonInputBody
}

type setPolicyInput struct {
	ClusterRef
	Body wire.PolicyChange
}

type rotateInput struct {
	Keyed
	ClusterRef
	Body *wire.RotateInputBody
}

type clusterTokenRef struct {
	ClusterRef
	ID uuid.UUID `path:"id" doc:"The token's id."`
}

// agents registers what is decided about a cluster's agents: whether they claim
// anything, by which rules, and with which tokens.
func (a *api) agents(h huma.API) {
	for word, paused := range map[string]bool{"pause": true, "resume": false} {
		add(a, h, huma.Operation{
			OperationID: word + "-cluster", Method: http.MethodPost, Path: "/clusters/{ref}/" + word, Tags: []string{"Clusters"}, DefaultStatus: http.StatusNoContent,
			Summary:     map[bool]string{true: "Have its agents claim nothing more", false: "Have its agents claim again"}[paused],
			Description: "What runs goes on. Admins may do this. The same once more changes nothing.",
		}, func(ctx context.Context, in *clusterReasonInput) (*struct{}, error) {
			return nothing(ctx, a, in.ClusterRef, word+" the cluster", func(ctx context.Context, s *store.Store, c store.Cluster) error {
				return s.Pause(ctx, c.ID, paused, given(in.Body).Reason)
			})
		})
	}

	add(a, h, huma.Operation{
		OperationID: "get-cluster-policy", Method: http.MethodGet, Path: "/clusters/{ref}/policy", Tags: []string{"Clusters"},
		Summary: "When plans for it must be approved, and by whom",
	}, func(ctx context.Context, in *ClusterRef) (*answer[wire.Policy], error) {
		return told(ctx, a, policyOf, *in, "read the cluster's policy", func(ctx context.Context, s *store.Store, c store.Cluster) (store.Policy, error) {
			return s.Policy(ctx, c.ID)
		})
	})
	add(a, h, huma.Operation{
		OperationID: "set-cluster-policy", Method: http.MethodPut, Path: "/clusters/{ref}/policy", Tags: []string{"Clusters"},
		Summary: "Change its policy", Description: "What is not given stays as it is. Admins may do this.",
	}, func(ctx context.Context, in *setPolicyInput) (*answer[wire.Policy], error) {
		return told(ctx, a, policyOf, in.ClusterRef, "set the cluster's policy", func(ctx context.Context, s *store.Store, c store.Cluster) (store.Policy, error) {
			return s.SetPolicy(ctx, c.ID, store.PolicyChange(in.Body))
		})
	})

	add(a, h, huma.Operation{
		OperationID: "list-cluster-tokens", Method: http.MethodGet, Path: "/clusters/{ref}/tokens", Tags: []string{"Clusters"},
		Summary: "The tokens and keys of its agents", Description: "Without what would let anybody use them; the newest first, at most 200, in one page. Admins may do this.",
	}, func(ctx context.Context, in *ClusterRef) (*listed[wire.ClusterToken], error) {
		list, err := about(ctx, a, *in, "list the cluster's tokens", func(ctx context.Context, s *store.Store, c store.Cluster) ([]store.ClusterToken, error) {
			return s.ClusterTokens(ctx, c.ID)
		})
		return listAfter("tokens", each(clusterTokenOf, list), "", err)
	})
	onceSecret(a, h, huma.Operation{
		OperationID: "rotate-cluster-token", Method: http.MethodPost, Path: "/clusters/{ref}/tokens", Tags: []string{"Clusters"}, DefaultStatus: http.StatusCreated,
		Summary: "Make a new token for its agents", Description: "Nobody can read it again. The ones before it end after a while, so that agents can be given the new one without a gap. Admins may do this.",
	}, func(ctx context.Context, s *store.Store, in *rotateInput) (string, wire.NewToken, error) {
		overlap := 24 * time.Hour
		if given := given(in.Body).Overlap; given != nil {
			overlap = time.Duration(*given) * time.Second
		}
		c, err := in.find(ctx, s)
		if err != nil {
			return "", wire.NewToken{}, err
		}
		made, err := s.NewClusterToken(ctx, c.ID, overlap)
		return prefix + "/clusters/" + c.ID.String() + "/tokens", wire.NewToken(made), err
	})
	add(a, h, huma.Operation{
		OperationID: "revoke-cluster-token", Method: http.MethodDelete, Path: "/clusters/{ref}/tokens/{id}", Tags: []string{"Clusters"}, DefaultStatus: http.StatusNoContent,
		Summary: "Revoke a token, a join token or a key at once", Description: "Agents that have no other are refused from now on. The runs of an agent whose key is revoked end as those of a lost agent, and the keys that it has rotated to are revoked with it. Admins may do this.",
	}, func(ctx context.Context, in *clusterTokenRef) (*struct{}, error) {
		return nothing(ctx, a, in.ClusterRef, "revoke the token", func(ctx context.Context, s *store.Store, c store.Cluster) error {
			ended, err := s.RevokeTokens(ctx, c.ID, &in.ID)
			if err == nil && ended == 0 {
				err = newProblem(http.StatusNotFound, "token_not_found", fmt.Sprintf("cluster %s has no token or key %s that is valid", c.Name, in.ID), "")
			}
			return err
		})
	})
}
