package rpcgateway

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/semaphore"

	"github.com/tendril-run/tendril/internal/controlplane/peer"
)

// Gateway is an http.Handler for all paths under /rest/v1/. Nothing may clean
// the path before it: what is odd about one is for the Gateway to refuse.
type Gateway struct {
	options   Options
	pool      *pgxpool.Pool
	catalogue *catalogue
	caller    *caller
	rates     *peer.Rates
	shares    *shares
	calls     *semaphore.Weighted
	bodies    *semaphore.Weighted
	listener  *listener
	refusals  *sampled
}

var _ http.Handler = (*Gateway)(nil)

// New makes a Gateway. It connects when first asked something, so a database
// that is away is not an error yet.
func New(ctx context.Context, o Options) (*Gateway, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	pool, err := openPool(ctx, o)
	if err != nil {
		return nil, err
	}
	g := &Gateway{
		options: o, pool: pool, rates: peer.NewRates(o.Rate, int(2*o.Rate)), shares: newShares(o),
		refusals:  newSampled(),
		catalogue: &catalogue{pool: pool, names: o.Functions},
		calls:     semaphore.NewWeighted(int64(o.MaxCalls)),
		bodies:    semaphore.NewWeighted(max(bodyBudget, o.MaxBody)),
	}
	g.caller = &caller{
		pool: pool, statementLimit: o.StatementTimeout,
		limits: [][]byte{milliseconds(o.StatementTimeout), milliseconds(o.LockTimeout)},
	}
	g.listener = startListener(pool.Config().ConnConfig, o.DatabaseURLNow, silence, g.catalogue.changed)
	return g, nil
}

func milliseconds(d time.Duration) []byte {
	return strconv.AppendInt(nil, max(1, d.Milliseconds()), 10)
}

// Close ends all connections to the database, once the calls under way are
// answered. No request may begin after it.
func (g *Gateway) Close() {
	g.listener.stop()
	g.pool.Close()
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	address := peer.Address(r, g.options.TrustedProxies)
	asked := &asked{ResponseWriter: w}
	function, no := g.serve(asked, r, address)
	if no != nil {
		no.write(asked)
	}
	duration := time.Since(began)
	g.log(r, asked.status, function, address.String(), duration, no)
	if g.options.Called != nil {
		g.options.Called(strings.TrimPrefix(function, unknown), asked.status, duration)
	}
}

// Stat says how its connections are used.
func (g *Gateway) Stat() *pgxpool.Stat { return g.pool.Stat() }

// log tells of a request, but not of what was in it: its body has the agent's
// token hash, its path and query what anybody cares to write there.
func (g *Gateway) log(r *http.Request, status int, function, address string, took time.Duration, no *refusal) {
	attrs := []slog.Attr{
		slog.String("function", function), slog.Int("status", status),
		slog.Duration("duration", took.Round(10*time.Microsecond)), slog.String("address", address),
	}
	level := slog.LevelInfo
	switch {
	case no == nil && !g.options.LogAll:
		return
	case no != nil && no.cause != nil:
		level = slog.LevelError
		attrs = append(attrs, slog.Any("error", no.cause))
	case status >= http.StatusInternalServerError:
		level = slog.LevelWarn
	case status == http.StatusTooManyRequests:
		level = slog.LevelDebug // they are many by their nature
	}
	if no != nil {
		attrs = append(attrs, slog.String("code", no.code()))
	}
	if !g.options.LogAll {
		leftOut, told := g.refusals.tell(level)
		if !told {
			return
		}
		if leftOut > 0 {
			attrs = append(attrs, slog.Int64("left_out", leftOut))
		}
	}
	g.options.Log.LogAttrs(r.Context(), level, "call", attrs...)
}

// asked remembers the status that was answered.
type asked struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (a *asked) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *asked) Unwrap() http.ResponseWriter { return a.ResponseWriter }
