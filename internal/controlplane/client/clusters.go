package client

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Clusters is store.Store's.
func (c *Client) Clusters(ctx context.Context) ([]store.Cluster, error) {
	return list[store.Cluster](ctx, c, call{doing: "list the clusters", method: http.MethodGet, path: []string{"clusters"}, query: c.inOrg()}, mostItems)
}

// FindCluster is store.Store's.
func (c *Client) FindCluster(ctx context.Context, ref string) (store.Cluster, error) {
	clusters, err := c.Clusters(ctx)
	if err != nil {
		return store.Cluster{}, err
	}
	return store.PickCluster(clusters, ref)
}

// CreateCluster is store.Store's.
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

// RotateToken is store.Store's.
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
