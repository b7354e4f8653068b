package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Workspaces lists the organisation's workspaces by cluster and name, at most limit.
func (c *Client) Workspaces(ctx context.Context, limit int) ([]store.Standing, error) {
	return list[store.Standing](ctx, c, call{doing: "list the workspaces", method: http.MethodGet, path: []string{"workspaces"}, query: c.inOrg()}, limit)
}

// FindWorkspace returns the workspace of that name or id.
func (c *Client) FindWorkspace(ctx context.Context, ref string) (store.Workspace, error) {
	return ask[store.Workspace](ctx, c, call{doing: "look for the workspace", method: http.MethodGet, path: []string{"workspaces", ref}, query: c.inOrg()})
}

// Resources is store.Store's.
func (c *Client) Resources(ctx context.Context, workspace uuid.UUID) ([]store.Resource, error) {
	return list[store.Resource](ctx, c, call{doing: "list the resources", method: http.MethodGet, path: []string{"workspaces", workspace.String(), "resources"}, query: c.inOrg()}, mostItems)
}

// LastApplied is store.Store's.
func (c *Client) LastApplied(ctx context.Context, w store.Workspace) (cluster uuid.UUID, snapshot json.RawMessage, err error) {
	found, err := get[struct {
		Cluster  uuid.UUID       `json:"cluster_id"`
		Snapshot json.RawMessage `json:"config_snapshot"`
	}](ctx, c, "look for what was deployed", "workspaces", w.ID.String(), "applied")
	return found.Cluster, found.Snapshot, err
}

// LastOutputs is store.Store's.
func (c *Client) LastOutputs(ctx context.Context, w store.Workspace) (store.Provision, error) {
	return get[store.Provision](ctx, c, "look for the outputs", "workspaces", w.ID.String(), "outputs")
}

// Lock is store.Store's.
func (c *Client) Lock(ctx context.Context, workspace uuid.UUID, reason string) error {
	return c.doTo(ctx, "lock the workspace", workspace, "lock", reason)
}

// Unlock is store.Store's.
func (c *Client) Unlock(ctx context.Context, workspace uuid.UUID, reason string) error {
	return c.doTo(ctx, "unlock the workspace", workspace, "unlock", reason)
}

// Release is store.Store's.
func (c *Client) Release(ctx context.Context, workspace uuid.UUID, reason string) error {
	return c.doTo(ctx, "release the workspace", workspace, "release", reason)
}

func (c *Client) doTo(ctx context.Context, doing string, workspace uuid.UUID, verb, reason string) error {
	_, err := post[struct{}](ctx, c, doing, map[string]string{"reason": reason}, "workspaces", workspace.String(), verb)
	return err
}

// Drift is store.Store's.
func (c *Client) Drift(ctx context.Context, workspace uuid.UUID) (store.Drift, error) {
	return get[store.Drift](ctx, c, "read what has drifted", "workspaces", workspace.String(), "drift")
}

// WatchDrift is store.Store's.
func (c *Client) WatchDrift(ctx context.Context, workspace uuid.UUID, every time.Duration) error {
	_, err := ask[struct{}](ctx, c, call{doing: "set the schedule", method: http.MethodPut, path: []string{"workspaces", workspace.String(), "drift"}, body: map[string]int64{"every_seconds": int64(every.Seconds())}})
	return err
}

// StateVersions is store.Store's.
func (c *Client) StateVersions(ctx context.Context, workspace uuid.UUID) ([]store.StateVersion, error) {
	return whole[store.StateVersion](ctx, c, "list the states", nil, "workspaces", workspace.String(), "states")
}

// Drifts lists the workspaces that are looked at for drift, or were.
func (c *Client) Drifts(ctx context.Context) ([]store.Drift, error) {
	return whole[store.Drift](ctx, c, "list what has drifted", c.inOrg(), "drift")
}
