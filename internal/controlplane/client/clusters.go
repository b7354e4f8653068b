package client

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Clusters lists the clusters of the organisation by name, with the agents heard of
// within a day.
func (c *Client) Clusters(ctx context.Context) ([]store.Cluster, error) {
	return list[store.Cluster](ctx, c, call{doing: "list the clusters", method: http.MethodGet, path: []string{"clusters"}, query: c.inOrg()}, mostItems)
}

// FindCluster returns the cluster of that name or id; "" means the only one there
// is. A *store.RefusedError says which there are when none is meant, or several.
func (c *Client) FindCluster(ctx context.Context, ref string) (store.Cluster, error) {
	clusters, err := c.Clusters(ctx)
	if err != nil {
		return store.Cluster{}, err
	}
	var matching []store.Cluster
	names := make([]string, len(clusters))
	for i, c := range clusters {
		names[i] = c.Name
		if ref == "" || c.Name == ref || strings.EqualFold(c.ID.String(), ref) {
			matching = append(matching, c)
		}
	}
	switch {
	case len(matching) == 1:
		return matching[0], nil
	case len(clusters) == 0:
		return store.Cluster{}, &store.RefusedError{Code: "PT404", Reason: "cluster_not_found", Message: "there is no cluster that you may see", Hint: "make one with: trellis clusters create NAME"}
	case ref == "":
		return store.Cluster{}, &store.RefusedError{Code: "PT422", Reason: "cluster_missing", Message: "there are several clusters: " + strings.Join(names, ", "), Hint: "say which one with --cluster"}
	case len(matching) > 1:
		return store.Cluster{}, &store.RefusedError{Code: "PT422", Reason: "cluster_ambiguous", Message: fmt.Sprintf("several clusters are named %q", ref), Hint: "give the id: trellis clusters list -o json"}
	}
	return store.Cluster{}, &store.RefusedError{Code: "PT404", Reason: "cluster_not_found", Message: fmt.Sprintf("there is no cluster %q that you may see", ref), Hint: "there are: " + strings.Join(names, ", ")}
}

// CreateCluster makes a cluster. Its token nobody can read again.
func (c *Client) CreateCluster(ctx context.Context, name string) (store.NewCluster, error) {
	return ask[store.NewCluster](ctx, c, call{doing: "create a cluster", method: http.MethodPost, path: []string{"clusters"}, query: c.inOrg(), body: map[string]string{"name": name}})
}

// Pause is store.Store's.
func (c *Client) Pause(ctx context.Context, cluster uuid.UUID, paused bool, reason string) error {
	verb := "resume"
	if paused {
		verb = "pause"
	}
	_, err := post[struct{}](ctx, c, "pause or resume the cluster", map[string]string{"reason": reason}, "clusters", cluster.String(), verb)
	return err
}

// Policy is store.Store's.
func (c *Client) Policy(ctx context.Context, cluster uuid.UUID) (store.Policy, error) {
	return get[store.Policy](ctx, c, "read the cluster's policy", "clusters", cluster.String(), "policy")
}

// SetPolicy is store.Store's.
func (c *Client) SetPolicy(ctx context.Context, cluster uuid.UUID, change store.PolicyChange) (store.Policy, error) {
	return ask[store.Policy](ctx, c, call{doing: "set the cluster's policy", method: http.MethodPut, path: []string{"clusters", cluster.String(), "policy"}, body: change})
}

// RotateToken makes a new token for a cluster's agents, which nobody can read again.
// Those before it go on being valid for overlap, at most 30 days.
func (c *Client) RotateToken(ctx context.Context, cluster uuid.UUID, overlap time.Duration) (string, error) {
	made, err := post[struct {
		Token string `json:"token"`
	}](ctx, c, "rotate the cluster's token", map[string]int64{"overlap_seconds": int64(overlap.Seconds())}, "clusters", cluster.String(), "tokens")
	return made.Token, err
}

// ClusterTokens lists what is known of the tokens of a cluster's agents.
func (c *Client) ClusterTokens(ctx context.Context, cluster uuid.UUID) ([]store.ClusterToken, error) {
	return whole[store.ClusterToken](ctx, c, "list the cluster's tokens", nil, "clusters", cluster.String(), "tokens")
}

// RevokeClusterToken ends a token of a cluster's agents at once.
func (c *Client) RevokeClusterToken(ctx context.Context, cluster, token uuid.UUID) error {
	return c.remove(ctx, "revoke the token", nil, "clusters", cluster.String(), "tokens", token.String())
}
