// Package api is the REST API below /api/v1, for programs: typed operations
// from which its OpenAPI document is generated. Each request runs as its person
// in the database (package store), which decides what they see and do; a refusal
// becomes a problem document (RFC 9457).
//
// It must not know pages, nor how it was found out who asks.
package api

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/live"
	"github.com/tendril-run/tendril/internal/controlplane/notify"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// Config is what the API needs of the process it runs in.
type Config struct {
	Database *store.Database
	Live     *live.Hub
	Notifier *notify.Notifier
	Version  string
	Log      *slog.Logger
}

// api is what the operations share.
type api struct {
	Config
}

// API answers everything below /api/.
type API struct {
	handler  http.Handler
	document []byte
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.handler.ServeHTTP(w, r) }

// Document is the OpenAPI document, as JSON.
func (a *API) Document() []byte { return a.document }

// New makes the API of a control plane.
func New(c Config) *API {
	mux := http.NewServeMux()
	h := humago.New(mux, configuration(c.Version))
	h.UseMiddleware(signedIn(h), bounded(h))
	a := &api{Config: c}

	a.me(h)
	a.provisions(h)
	a.provisionParts(h)
	a.sealed(h)
	a.decisions(h)
	a.workspaces(h)
	a.inventory(h)
	a.drift(h)
	a.locks(h)
	a.clusters(h)
	a.agents(h)
	a.templates(h)
	a.variables(h)
	a.members(h)
	a.logs(h)
	a.events(h)
	a.webhooks(h)
	a.apiTokens(h)
	a.invitations(h)

	return &API{handler: routed(mux, c.Log), document: serveDocument(mux, h.OpenAPI())}
}

// as returns the store of the request's person, whom the middleware has seen.
func (a *api) as(ctx context.Context) *store.Store {
	p, _ := person.From(ctx)
	return a.Database.As(p.ID)
}

// OrgParam says which organisation, where it is not clear.
type OrgParam struct {
	Org string `query:"org" maxLength:"200" doc:"The organisation, by its id or name. Only needed by who belongs to several." example:"acme"`
}

// org is the id of the organisation that a ref is looked for in: uuid.Nil, all
// that the person belongs to, unless one is named.
func (o OrgParam) org(ctx context.Context, s *store.Store) (uuid.UUID, error) {
	if o.Org == "" {
		return uuid.Nil, nil
	}
	org, err := s.FindOrg(ctx, o.Org)
	return org.ID, err
}
