package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// mostBytes bounds a result: a sealed state is the largest.
const mostBytes = 96 << 20

// Provision is store.Store's.
func (c *Client) Provision(ctx context.Context, ref string) (store.Provision, error) {
	ref = strings.TrimPrefix(ref, "#")
	if _, err := strconv.ParseInt(ref, 10, 64); err != nil {
		if _, err := uuid.Parse(ref); err != nil {
			return store.Provision{}, &store.NotProvisionError{Ref: ref}
		}
	}
	return get[store.Provision](ctx, c, "read the provision", "provisions", ref)
}

// Provisions lists the latest provisions, newest first.
func (c *Client) Provisions(ctx context.Context, limit int) ([]store.Provision, error) {
	return list[store.Provision](ctx, c, call{doing: "list the provisions", method: http.MethodGet, path: []string{"provisions"}, query: c.inOrg()}, limit)
}

// Deploy is store.Store's.
func (c *Client) Deploy(ctx context.Context, cluster uuid.UUID, operation provision.Operation, snapshot json.RawMessage) (store.Deployed, error) {
	return post[store.Deployed](ctx, c, "queue the deploy", map[string]any{"cluster": cluster, "operation": operation, "config_snapshot": snapshot}, "provisions")
}

// stands is how a provision stands after something was done about it.
type stands struct {
	Status provision.Status `json:"status"`
}

// Cancel is store.Store's.
func (c *Client) Cancel(ctx context.Context, id uuid.UUID) (provision.Status, error) {
	after, err := post[stands](ctx, c, "cancel the provision", nil, "provisions", id.String(), "cancel")
	return after.Status, err
}

// Approve is store.Store's.
func (c *Client) Approve(ctx context.Context, id uuid.UUID, planDigest string) (provision.Status, error) {
	after, err := post[stands](ctx, c, "approve the plan", map[string]string{"plan_digest": planDigest}, "provisions", id.String(), "approve")
	return after.Status, err
}

// Reject is store.Store's.
func (c *Client) Reject(ctx context.Context, id uuid.UUID, reason string) error {
	_, err := post[struct{}](ctx, c, "reject the plan", map[string]string{"reason": reason}, "provisions", id.String(), "reject")
	return err
}

// Retry is store.Store's.
func (c *Client) Retry(ctx context.Context, id uuid.UUID) (store.Deployed, error) {
	return post[store.Deployed](ctx, c, "retry the provision", nil, "provisions", id.String(), "retry")
}

// logPage is a part of a log. It ends where the server thinks it is enough.
type logPage struct {
	Items []store.LogRow `json:"items"`
	Last  int64          `json:"last_seq"` // the newest row there is
}

// logs returns rows of a provision's log after seq.
func (c *Client) logs(ctx context.Context, id uuid.UUID, after int64) (logPage, error) {
	return ask[logPage](ctx, c, call{
		doing: "read the log", method: http.MethodGet, path: []string{"provisions", id.String(), "logs"},
		query: url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(mostRows)}},
	})
}

// mostRows is how many rows of a log are asked for at once.
const mostRows = 1000

// Upload brings something that is sealed to a cluster's key, for an operation to
// name by the id returned.
func (c *Client) Upload(ctx context.Context, cluster uuid.UUID, sealed []byte) (uuid.UUID, error) {
	made, err := ask[struct {
		ID uuid.UUID `json:"id"`
	}](ctx, c, call{
		doing: "upload the file", method: http.MethodPost, path: []string{"uploads"}, query: url.Values{"cluster": {cluster.String()}},
		raw: sealed, limit: transferLimit,
	})
	return made.ID, err
}

// Result returns what a provision has left for who asked for it, sealed to the key
// that its snapshot names.
func (c *Client) Result(ctx context.Context, provision uuid.UUID) ([]byte, error) {
	return ask[[]byte](ctx, c, call{
		doing: "fetch the result", method: http.MethodGet, path: []string{"provisions", provision.String(), "result"},
		accept: "application/octet-stream", limit: transferLimit,
	})
}

// Events lists what happened to a provision.
func (c *Client) Events(ctx context.Context, id uuid.UUID) ([]store.Event, error) {
	var events []store.Event
	for after := int64(0); ; {
		page, err := ask[struct {
			Items []store.Event `json:"items"`
			Next  int64         `json:"next_after"`
		}](ctx, c, call{
			doing: "read the events", method: http.MethodGet, path: []string{"provisions", id.String(), "events"},
			query: url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(mostRows)}},
		})
		events = append(events, page.Items...)
		if err != nil || len(page.Items) == 0 || page.Next <= after || len(events) > mostItems {
			return events, err
		}
		after = page.Next
	}
}
