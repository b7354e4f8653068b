// Package site puts together what people and programs reach over HTTP: sign-in,
// pages, REST, live updates.
//
//	guards: limits, origin, host name ─▶ signin ─▶ console | api | live
//	                                      │          └───── store ─────▶ database
//	                                      └▶ tools (language models) ─▶ api
//
// `trellis serve` and `trellis up` serve the same site.
//
// The package must not know what any part answers, nor where the server listens.
package site

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tendril-run/tendril/internal/controlplane/api"
	"github.com/tendril-run/tendril/internal/controlplane/apidocs"
	"github.com/tendril-run/tendril/internal/controlplane/callaudit"
	"github.com/tendril-run/tendril/internal/controlplane/console"
	"github.com/tendril-run/tendril/internal/controlplane/inspect"
	"github.com/tendril-run/tendril/internal/controlplane/live"
	"github.com/tendril-run/tendril/internal/controlplane/notify"
	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/signin"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/tools"
	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/pgurl"
	"github.com/tendril-run/tendril/internal/tracing"
)

// DefaultMaxConns bounds the connections to the database for people's requests,
// besides the one that listens.
const DefaultMaxConns = 10

// Options say what to serve.
type Options struct {
	// DatabaseURL connects as the contract's owner.
	DatabaseURL string
	// DatabaseURLNow is asked for it again before each connection; nil: it stays.
	DatabaseURLNow pgurl.Source
	MaxConns       int // 0: DefaultMaxConns
	// PublicURL is how people and agents reach this server, without a slash at
	// its end; "" where nobody said: then as each request came.
	PublicURL string
	// LocalHost is the host name that browsers on this machine come by, always over
	// plain HTTP; "" where there is none. See localhost.
	LocalHost string
	// TrustedProxies are believed what they say in X-Forwarded-For.
	TrustedProxies []netip.Prefix
	signin.Issuers
	// Inspect says how templates are looked at; the log is set here.
	Inspect inspect.Options
	// Notify says how webhooks are served; the log, the version and the URL are
	// set here.
	Notify notify.Options
	// Streams bound what is told live.
	Streams live.Limits
	Version string
	// Tracer records requests, and is closed with the Site; nil: none. TraceURL is where people see a trace, with {trace_id}
	// in place of its id; "" for nowhere.
	Tracer   *tracing.Tracer
	TraceURL string
	Log      *slog.Logger
}

// Site is one that runs, until Close.
type Site struct {
	handler    http.Handler
	database   *store.Database
	entrance   *signin.SignIn
	audit      *callaudit.Audit
	tracer     *tracing.Tracer
	hub        *live.Hub
	models     *tools.Site
	background sync.WaitGroup
	stop       context.CancelFunc
	streams    sync.WaitGroup
	endStreams context.CancelFunc
	closing    sync.Once
}

// Start connects and begins what goes on in the background. The error is a
// *store.RefusedError when the database is not migrated, and a
// *store.UnreachableError when it cannot be reached.
func Start(ctx context.Context, o Options) (_ *Site, err error) {
	database, err := store.ConnectAnew(ctx, o.DatabaseURL, o.DatabaseURLNow, cmp.Or(o.MaxConns, DefaultMaxConns))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			database.Close()
		}
	}()
	hub := live.NewHub(database, o.Log, o.Streams)
	o.Notify.PublicURL, o.Notify.Version, o.Notify.Log = o.PublicURL, o.Version, o.Log
	notifier := notify.New(database, o.Notify)
	pages, err := console.New(console.Config{Database: database, Notifier: notifier, Version: o.Version, PublicURL: o.PublicURL, LocalHost: o.LocalHost, TraceURL: o.TraceURL, Log: o.Log})
	if err != nil {
		return nil, err
	}
	audit := callaudit.New(database, o.Log, callaudit.DefaultEvery)
	entrance, err := signin.New(signin.Config{Database: database, Refused: audit.Refused, PublicURL: o.PublicURL, LocalHost: o.LocalHost, Asset: console.AssetURL, TrustedProxies: o.TrustedProxies, Issuers: o.Issuers, Log: o.Log})
	if err != nil {
		return nil, err
	}
	rest := api.New(api.Config{Database: database, Live: hub, Notifier: notifier, Version: o.Version, Log: o.Log})
	var docs *apidocs.Page
	rest.Read(func(o *huma.OpenAPI) { docs, err = apidocs.New(o, console.AssetURL) })
	if err != nil {
		return nil, err
	}
	compress, err := compressor()
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/api/", rest)
	mux.Handle("GET /api/", compress(rest))
	mux.Handle("GET /api/v1/docs", compress(docs))
	for _, what := range []string{"logs", "events"} { // what a stream tells leaves at once
		mux.Handle("GET /api/v1/provisions/{ref}/"+what+"/stream", rest)
	}
	mux.Handle("GET /live", hub)
	mux.Handle("GET /assets/", compress(pages))
	mux.Handle("/", pages)
	entrance.Mount(mux)
	models := tools.NewSite(tools.SiteOptions{
		API: entrance.Middleware(rest), Base: entrance.Base, PublicURL: o.PublicURL, LocalHost: o.LocalHost, Version: o.Version, Log: o.Log, Refused: audit.Refused,
		Record: func(ctx context.Context, by person.Person, org string, made tools.ToolCall) error {
			return audit.Call(ctx, by, org, made)
		},
	})
	models.Mount(mux)

	handler, err := guarded(entrance.Middleware(web.Routed(mux)), o.PublicURL)
	if err != nil {
		return nil, err
	}
	if o.LocalHost != "" {
		handler = localhost(handler, o.LocalHost)
	}
	s := &Site{handler: traced(handler, o.Tracer), database: database, entrance: entrance, audit: audit, tracer: o.Tracer, hub: hub, models: models}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	streams, endStreams := context.WithCancel(background)
	s.endStreams = endStreams
	s.streams.Go(func() { hub.Run(streams) })
	s.background.Go(func() { entrance.Run(background) })
	s.background.Go(func() { notifier.Run(background) })
	o.Inspect.Log = o.Log
	s.background.Go(func() { inspect.New(database, o.Inspect).Run(background) })
	return s, nil
}

// Database is the connections that requests share, until Close.
func (s *Site) Database() *store.Database { return s.database }

// Live says how live updates stand.
func (s *Site) Live() live.State { return s.hub.State() }

// ServeHTTP implements http.Handler.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// EndStreams ends all that goes on by itself, and admits no more. The HTTP
// server is stopped after it, for it waits for them, and before Close, without
// which what it still answers would fail.
func (s *Site) EndStreams() {
	s.endStreams()
	s.models.Close()
	s.streams.Wait()
}

// Close ends what goes on in the background, then the connections. Further calls
// do nothing.
func (s *Site) Close() {
	s.closing.Do(func() {
		s.EndStreams()
		s.stop()
		s.background.Wait()
		s.entrance.Close()
		s.audit.Close()
		s.database.Close()
		s.tracer.Close()
	})
}
