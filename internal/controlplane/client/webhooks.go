package client

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// NewWebhook is what a webhook is made of.
type NewWebhook struct {
	Name      string     `json:"name"`
	Kind      string     `json:"kind,omitempty"`
	URL       string     `json:"url"`
	Events    []string   `json:"events,omitempty"`
	ClusterID *uuid.UUID `json:"cluster_id,omitempty"`
	Workspace string     `json:"workspace,omitempty"`
}

// MadeWebhook is a webhook just made, and its secret, which nobody can read
// again.
type MadeWebhook struct {
	store.Webhook
	Secret string `json:"secret"`
}

// Webhooks lists the organisation's webhooks.
func (c *Client) Webhooks(ctx context.Context) ([]store.Webhook, error) {
	return whole[store.Webhook](ctx, c, "list the webhooks", c.inOrg(), "webhooks")
}

// AddWebhook makes a webhook.
func (c *Client) AddWebhook(ctx context.Context, n NewWebhook) (MadeWebhook, error) {
	return ask[MadeWebhook](ctx, c, call{doing: "make the webhook", method: http.MethodPost, path: []string{"webhooks"}, query: c.inOrg(), body: n})
}

// RemoveWebhook removes a webhook, and what was sent to it.
func (c *Client) RemoveWebhook(ctx context.Context, id uuid.UUID) error {
	return c.remove(ctx, "remove the webhook", nil, "webhooks", id.String())
}

// TestWebhook sends a message that only tries, and returns its delivery.
func (c *Client) TestWebhook(ctx context.Context, id uuid.UUID) (uuid.UUID, error) {
	sent, err := post[struct {
		ID uuid.UUID `json:"id"`
	}](ctx, c, "try the webhook", nil, "webhooks", id.String(), "test")
	return sent.ID, err
}

// Deliveries lists what was sent to a webhook, the latest first.
func (c *Client) Deliveries(ctx context.Context, id uuid.UUID, limit int) ([]store.Delivery, error) {
	return list[store.Delivery](ctx, c, call{doing: "list what was sent", method: http.MethodGet, path: []string{"webhooks", id.String(), "deliveries"}}, limit)
}
