package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

type clusterReasonInput struct {
	ClusterRef
	Reason
}

type policyAnswer struct{ Body store.Policy }

type setPolicyInput struct {
	ClusterRef
	Body store.PolicyChange
}

type rotateInput struct {
	Keyed
	ClusterRef
	Body *struct {
		Overlap *int64 `json:"overlap_seconds,omitempty" minimum:"0" maximum:"2592000" doc:"How long the tokens before it go on being valid, in seconds; at most 30 days. Not given: a day." example:"86400"`
	}
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
			return nil, a.withCluster(ctx, in.ClusterRef, word+" the cluster", func(ctx context.Context, s *store.Store, c store.Cluster) error {
				return s.Pause(ctx, c.ID, paused, in.reason())
			})
		})
	}

	add(a, h, huma.Operation{
		OperationID: "get-cluster-policy", Method: http.MethodGet, Path: "/clusters/{ref}/policy", Tags: []string{"Clusters"},
		Summary: "When plans for it must be approved, and by whom",
	}, func(ctx context.Context, in *ClusterRef) (*policyAnswer, error) {
		answer := &policyAnswer{}
		return answer, a.withCluster(ctx, *in, "read the cluster's policy", func(ctx context.Context, s *store.Store, c store.Cluster) (err error) {
			answer.Body, err = s.Policy(ctx, c.ID)
			return err
		})
	})
	add(a, h, huma.Operation{
		OperationID: "set-cluster-policy", Method: http.MethodPut, Path: "/clusters/{ref}/policy", Tags: []string{"Clusters"},
		Summary: "Change its policy", Description: "What is not given stays as it is. Admins may do this.",
	}, func(ctx context.Context, in *setPolicyInput) (*policyAnswer, error) {
		answer := &policyAnswer{}
		return answer, a.withCluster(ctx, in.ClusterRef, "set the cluster's policy", func(ctx context.Context, s *store.Store, c store.Cluster) (err error) {
			answer.Body, err = s.SetPolicy(ctx, c.ID, in.Body)
			return err
		})
	})

	add(a, h, huma.Operation{
		OperationID: "list-cluster-tokens", Method: http.MethodGet, Path: "/clusters/{ref}/tokens", Tags: []string{"Clusters"},
		Summary: "The tokens of its agents", Description: "Without what would let anybody use them; the newest first, at most 200, in one page. Admins may do this.",
	}, func(ctx context.Context, in *ClusterRef) (*listed[store.ClusterToken], error) {
		var list []store.ClusterToken
		err := a.withCluster(ctx, *in, "list the cluster's tokens", func(ctx context.Context, s *store.Store, c store.Cluster) (err error) {
			list, err = s.ClusterTokens(ctx, c.ID)
			return err
		})
		return listAfter("tokens", list, "", err)
	})
	onceSecret(a, h, huma.Operation{
		OperationID: "rotate-cluster-token", Method: http.MethodPost, Path: "/clusters/{ref}/tokens", Tags: []string{"Clusters"}, DefaultStatus: http.StatusCreated,
		Summary: "Make a new token for its agents", Description: "Nobody can read it again. The ones before it end after a while, so that agents can be given the new one without a gap. Admins may do this.",
	}, func(ctx context.Context, s *store.Store, in *rotateInput) (string, store.NewToken, error) {
		overlap := 24 * time.Hour
		if in.Body != nil && in.Body.Overlap != nil {
			overlap = time.Duration(*in.Body.Overlap) * time.Second
		}
		org, err := in.org(ctx, s)
		if err != nil {
			return "", store.NewToken{}, err
		}
		c, err := s.ClusterByRef(ctx, org, in.Ref)
		if err != nil {
			return "", store.NewToken{}, err
		}
		made, err := s.NewClusterToken(ctx, c.ID, overlap)
		return prefix + "/clusters/" + c.ID.String() + "/tokens", made, err
	})
	add(a, h, huma.Operation{
		OperationID: "revoke-cluster-token", Method: http.MethodDelete, Path: "/clusters/{ref}/tokens/{id}", Tags: []string{"Clusters"}, DefaultStatus: http.StatusNoContent,
		Summary: "End a token at once", Description: "Agents that have no other are refused from now on. Admins may do this.",
	}, func(ctx context.Context, in *clusterTokenRef) (*struct{}, error) {
		return nil, a.withCluster(ctx, in.ClusterRef, "revoke the token", func(ctx context.Context, s *store.Store, c store.Cluster) error {
			ended, err := s.RevokeTokens(ctx, c.ID, &in.ID)
			if err == nil && ended == 0 {
				err = newProblem(http.StatusNotFound, "token_not_found", fmt.Sprintf("cluster %s has no token %s that is valid", c.Name, in.ID), "")
			}
			return err
		})
	})
}
