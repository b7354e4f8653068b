// Package serve is `trellis serve`: a control plane that runs for long, on a
// database of the user's own. It mounts handlers on one HTTP server and does on
// a timer what nobody may be there to cause.
//
// The package must know nothing of terminals and flags, and nothing of what its
// handlers answer.
package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/controlplane/metrics"
	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/queue"
)

// Options say what to serve, and where.
type Options struct {
	Listen            string // host:port
	CertFile, KeyFile string // empty: plain HTTP
	// MetricsListen is host:port of /metrics, /healthz and /readyz for who watches
	// over the process, without TLS; "" for none.
	MetricsListen string
	Limits        web.Limits
	// Gateway brings the database's URL, how it is now and the log as well.
	Gateway rpcgateway.Options
	// Site is for people; the database, the log and the version are set here.
	Site    site.Options
	Version string // this program's, for /healthz
	// Started is told the address when it answers, Monitoring that of MetricsListen.
	Started    func(url string, contract int)
	Monitoring func(url string)
}

// Run serves until the context ends, then lets open requests finish. The error
// is a *rpcgateway.NotReadyError when the database is not migrated, and a
// *store.UnreachableError when it cannot be reached.
func Run(ctx context.Context, o Options) (err error) {
	var certificate *web.Certificate
	if o.CertFile != "" {
		if certificate, err = web.LoadCertificate(o.CertFile, o.KeyFile, o.Gateway.Log); err != nil {
			return err
		}
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w; choose another address with --listen", o.Listen, cause(err))
	}
	defer func() { _ = listener.Close() }() // the server has, once it runs
	watching, err := listenForMonitor(ctx, o.MetricsListen)
	if err != nil {
		return err
	}
	if watching != nil {
		defer func() { _ = watching.Close() }() // likewise
	}
	contract, err := rpcgateway.Prepare(ctx, o.Gateway.DatabaseURL, queue.Contract)
	if away, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return &store.UnreachableError{Doing: "reach the database", Err: away}
	}
	if err != nil {
		return err
	}
	counts := metrics.New(o.Version)
	counts.Duties(dutyNames()...)
	o.Gateway.Called, o.Site.Notify.Attempted = counts.Call, counts.Delivery
	gateway, err := rpcgateway.New(ctx, o.Gateway)
	if err != nil {
		return err
	}
	defer gateway.Close()
	o.Site.DatabaseURL, o.Site.DatabaseURLNow = o.Gateway.DatabaseURL, o.Gateway.DatabaseURLNow
	o.Site.Log, o.Site.Version = o.Gateway.Log, o.Version
	people, err := site.Start(ctx, o.Site)
	if err != nil {
		return err
	}
	defer people.Close()
	k, err := newKeeper(ctx, o.Gateway.DatabaseURL, o.Gateway.DatabaseURLNow, o.Gateway.Log, counts.Duty)
	if err != nil {
		return err
	}
	defer k.close()

	ctx, cancel := context.WithCancelCause(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel(nil) // before waiting for it
	background.Go(func() { k.keep(ctx) })
	if watching != nil {
		m, err := newMonitor(ctx, o, counts, people, gateway, k)
		if err != nil {
			return err
		}
		defer m.pool.Close()
		beside := web.Start(watching, m.handler(), monitorLimits, nil, o.Gateway.Log, func(err error) { cancel(err) })
		defer beside.Stop()
		if o.Monitoring != nil {
			o.Monitoring("http://" + watching.Addr().String())
		}
	}
	routes := web.Routes{RPC: gateway, RPCPaths: []string{rpcgateway.ProvidersPath}, Health: web.Sparing(k.health(o.Version)), Rest: people}
	observed := web.Observe(routes, func(r web.Request) { counts.Request(r.Route, r.Method, r.Status, r.Took, r.Stream, r.Trace) })
	server := web.Start(listener, observed, o.Limits, certificate, o.Gateway.Log, func(err error) { cancel(err) })
	defer server.Stop()
	defer people.EndStreams() // before the server, which waits for them
	defer gateway.EndHeld()   // and for these
	if o.Started != nil {
		scheme := "http://"
		if certificate != nil {
			scheme = "https://"
		}
		o.Started(scheme+listener.Addr().String(), contract)
	}
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// cause leaves out what net repeats.
func cause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}
