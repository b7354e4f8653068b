package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// Part says which part of a list is wanted.
type Part struct {
	Cursor string // the NextCursor of the page before; "": the first page
	Limit  int    // from 1 to 200 items
}

// ProvisionFilter says which provisions a list has; what is empty does not matter.
type ProvisionFilter struct {
	Status, Operation  string // several are separated by commas
	Cluster, Workspace string // by name or id
}

// ProvisionPage lists a page of the provisions, the newest first. A page may have fewer
// items than were wanted before the end of the list.
func (c *Client) ProvisionPage(ctx context.Context, f ProvisionFilter, part Part) (wire.Page[wire.Provision], error) {
	return page[wire.Provision](ctx, c, "list the provisions", part, map[string]string{
		"status": f.Status, "operation": f.Operation, "cluster": f.Cluster, "workspace": f.Workspace,
	}, "provisions")
}

// TemplatePage lists a page of the organisation's catalogue.
func (c *Client) TemplatePage(ctx context.Context, part Part) (wire.Page[wire.Template], error) {
	return page[wire.Template](ctx, c, "list the templates", part, nil, "templates")
}

// WorkspacePage lists a page of the workspaces by cluster and name; cluster, if it is not
// empty, is the one to look in.
func (c *Client) WorkspacePage(ctx context.Context, cluster string, part Part) (wire.Page[wire.Standing], error) {
	return page[wire.Standing](ctx, c, "list the workspaces", part, map[string]string{"cluster": cluster}, "workspaces")
}

// ResourcePage lists a page of what exists in a workspace, by address.
func (c *Client) ResourcePage(ctx context.Context, workspace uuid.UUID, part Part) (wire.Page[wire.Resource], error) {
	return page[wire.Resource](ctx, c, "list the resources", part, nil, "workspaces", workspace.String(), "resources")
}

// MachinePage lists a page of the machines by name.
func (c *Client) MachinePage(ctx context.Context, f MachineFilter, part Part) (wire.Page[wire.Machine], error) {
	return page[wire.Machine](ctx, c, "list the machines", part, f.parameters(), "machines")
}

func page[T any](ctx context.Context, c *Client, doing string, part Part, parameters map[string]string, path ...string) (wire.Page[T], error) {
	query := c.inOrgWith(parameters)
	if part.Cursor != "" {
		query.Set("cursor", part.Cursor)
	}
	if part.Limit > 0 {
		query.Set("limit", strconv.Itoa(part.Limit))
	}
	return ask[wire.Page[T]](ctx, c, call{doing: doing, method: http.MethodGet, path: path, query: query})
}

// LogRange returns at most limit rows of a provision's log (1,000 at most) after the row
// after, and of these the last tail, if that is above 0. A page has about 1 MiB of text.
func (c *Client) LogRange(ctx context.Context, id uuid.UUID, after, tail int64, limit int) (wire.LogPage, error) {
	query := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(limit)}}
	if tail > 0 {
		query.Set("tail", strconv.FormatInt(tail, 10))
	}
	return ask[wire.LogPage](ctx, c, call{doing: "read the log", method: http.MethodGet, path: []string{"provisions", id.String(), "logs"}, query: query})
}
