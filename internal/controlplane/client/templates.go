package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Templates lists the organisation's catalogue.
func (c *Client) Templates(ctx context.Context) ([]store.Template, error) {
	return list[store.Template](ctx, c, call{doing: "list the templates", method: http.MethodGet, path: []string{"templates"}, query: c.inOrg()}, mostItems)
}

// Template returns one template of the catalogue.
func (c *Client) Template(ctx context.Context, ref string) (store.Template, error) {
	return ask[store.Template](ctx, c, call{doing: "look for the template", method: http.MethodGet, path: []string{"templates", ref}, query: c.inOrg()})
}

// SaveTemplate puts a template into the catalogue, or changes what stands there
// under its name, and returns what stands there then.
func (c *Client) SaveTemplate(ctx context.Context, e store.Template) (store.Template, error) {
	body := map[string]string{"name": e.Name, "repo": e.Repo, "version": e.Version}
	for name, value := range map[string]string{"path": e.Path, "description": e.Description, "approval": e.Approval} {
		if value != "" {
			body[name] = value
		}
	}
	return ask[store.Template](ctx, c, call{doing: "save the template", method: http.MethodPost, path: []string{"templates"}, query: c.inOrg(), body: body})
}

// RemoveTemplate takes a template out of the catalogue.
func (c *Client) RemoveTemplate(ctx context.Context, ref string) error {
	return c.remove(ctx, "remove the template", c.inOrg(), "templates", ref)
}

// ofVersion is the query for a version of a template; "" is the catalogue's own.
func (c *Client) ofVersion(version string) url.Values {
	query := url.Values{}
	if c.options.Org != "" {
		query.Set("org", c.options.Org)
	}
	if version != "" {
		query.Set("version", version)
	}
	return query
}

// PinTemplate says which commit a tag of a template means for the organisation.
func (c *Client) PinTemplate(ctx context.Context, ref, tag, commit, reason string) error {
	_, err := ask[struct{}](ctx, c, call{doing: "pin the template", method: http.MethodPost, path: []string{"templates", ref, "pin"}, query: c.inOrg(),
		body: map[string]string{"version": tag, "commit": commit, "reason": reason}})
	return err
}

// InspectTemplate has a version of a template looked at again, and returns what
// is known of it until then.
func (c *Client) InspectTemplate(ctx context.Context, ref, version string) (store.Inspection, error) {
	return ask[store.Inspection](ctx, c, call{doing: "have the template inspected", method: http.MethodPost, path: []string{"templates", ref, "inspect"}, query: c.ofVersion(version)})
}

// TemplateVariables returns what is known of a version of a template.
func (c *Client) TemplateVariables(ctx context.Context, ref, version string) (store.Inspection, error) {
	return ask[store.Inspection](ctx, c, call{doing: "read what the template declares", method: http.MethodGet, path: []string{"templates", ref, "variables"}, query: c.ofVersion(version)})
}
