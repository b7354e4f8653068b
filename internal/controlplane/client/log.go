package client

import (
	"context"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Log tells of each row of a provision's log that there is now.
func (c *Client) Log(ctx context.Context, id uuid.UUID, line func(store.LogRow) error) error {
	return (&following{client: c, id: id, Follower: Follower{Line: line}}).catchUp(ctx)
}
