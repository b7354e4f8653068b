package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tendril-run/tendril/internal/controlplane/metrics"
	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/queue"
)

// stuckAfter is how long a loop may take for a turn before the process counts as
// stuck. Each waits for the database far less than that, so one that is away is no
// reason to end the process: that would only cut off who is being answered.
const stuckAfter = 2 * time.Minute

// loop is one of the process's own.
type loop struct {
	name     string
	turnedAt func() time.Time
}

// monitor answers on the port of who watches over the process: an orchestrator and
// Prometheus. It is a port of its own, so that no path of the public one leads here,
// and has a connection of its own, so that it waits for nobody.
type monitor struct {
	metrics *metrics.Metrics
	pool    *pgxpool.Pool
	loops   []loop
	version string
	log     *slog.Logger
	untold  atomic.Bool // that the database's numbers cannot be had
}

// newMonitor returns one of these parts. Its pool is for the caller to close, behind
// the server that answers by it.
func newMonitor(ctx context.Context, o Options, counts *metrics.Metrics, people *site.Site, gateway *rpcgateway.Gateway, k *keeper) (*monitor, error) {
	pool, err := onePool(ctx, o.Gateway.DatabaseURL, o.Gateway.DatabaseURLNow)
	if err != nil {
		return nil, err
	}
	m := &monitor{
		metrics: counts, pool: pool, version: o.Version, log: o.Gateway.Log,
		loops: []loop{{"keeper", k.turnedAt}, {"live", func() time.Time { return people.Live().TurnedAt }}},
	}
	counts.WatchDatabase(m.statistics)
	counts.Watch(func() metrics.Live {
		l := people.Live()
		return metrics.Live{Viewers: l.Viewers, Listening: l.Listening, Sessions: l.Sessions}
	}, func() metrics.Held { return metrics.Held(gateway.Held()) }, map[string]func() *pgxpool.Stat{
		"people": people.Database().Stat, "agents": gateway.Stat, "duties": k.pool.Stat, "monitor": pool.Stat,
	})
	return m, nil
}

// monitorLimits are for few clients that are quick.
var monitorLimits = web.Limits{ReadTimeout: 5 * time.Second, WriteTimeout: 20 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeader: 8 << 10}

// monitorConnections is how many are open at most.
const monitorConnections = 64

// listenForMonitor takes the port; a nil listener where none is wanted.
func listenForMonitor(ctx context.Context, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for metrics: %w; choose another address with --metrics-listen", address, cause(err))
	}
	return health.Crowd(listener, monitorConnections), nil
}

// handler has all paths of the port.
func (m *monitor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.metrics.Handler(m.log))
	mux.HandleFunc("GET /healthz", m.healthz)
	ready := web.Sparing(m.ready)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		body, ok := ready(r)
		answer(w, body, ok)
	})
	return mux
}

// alive is what /healthz answers.
type alive struct {
	Status  string `json:"status"` // "ok", else "stuck"
	Version string `json:"version"`
	// Loops has seconds since each turned.
	Loops map[string]float64 `json:"loops"`
}

func (m *monitor) healthz(w http.ResponseWriter, _ *http.Request) {
	a := alive{Status: "ok", Version: m.version, Loops: map[string]float64{}}
	for _, l := range m.loops {
		since := time.Since(l.turnedAt())
		a.Loops[l.name] = since.Round(100 * time.Millisecond).Seconds()
		if since > stuckAfter {
			a.Status = "stuck"
		}
	}
	answer(w, a, a.Status == "ok")
}

// readiness is what /readyz answers. Why the database does not is not told: the
// error may name hosts and users, and nobody signs in here.
type readiness struct {
	Status   string `json:"status"` // "ok", else "unavailable"
	Version  string `json:"version"`
	Database struct {
		OK       bool `json:"ok"`
		Contract int  `json:"contract"` // 0 where it does not answer
	} `json:"database"`
	Contract int `json:"contract"` // the least that this process needs
}

func (m *monitor) ready(ctx context.Context) (any, bool) {
	r := readiness{Status: "ok", Version: m.version, Contract: queue.Contract}
	contract, err := m.contract(ctx)
	r.Database.OK, r.Database.Contract = err == nil, contract
	if contract < queue.Contract {
		r.Status = "unavailable"
	}
	return r, r.Status == "ok"
}

// contract asks for the version of the database's contract.
func (m *monitor) contract(ctx context.Context) (version int, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	err = m.pool.QueryRow(ctx, "SELECT tendril.contract_version()").Scan(&version)
	m.afresh(err)
	return version, err
}

// statistics asks for what stands in the database. That it cannot be had is told
// once: who scrapes asks again in a moment.
func (m *monitor) statistics(ctx context.Context, clusters int) (text []byte, err error) {
	err = m.pool.QueryRow(ctx, "SELECT tendril.statistics($1)::text", clusters).Scan(&text)
	m.afresh(err)
	switch pg, answered := errors.AsType[*pgconn.PgError](err); {
	case err == nil:
		m.untold.Store(false)
	case m.untold.Swap(true):
	case answered && pg.Code == undefinedFunction:
		m.log.Warn(`the database cannot tell its numbers yet, and metrics lack them: run "trellis migrate"`)
	default:
		m.log.Warn("the database's numbers cannot be had, and metrics lack them; trying again", "error", err)
	}
	return text, err
}

// undefinedFunction is what a database says that has not been migrated so far.
const undefinedFunction = "42883"

// afresh forgets the connection after an error: it may be to a server that is the
// primary no more.
func (m *monitor) afresh(err error) {
	if err != nil {
		m.pool.Reset()
	}
}

func answer(w http.ResponseWriter, body any, ok bool) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // the client is gone: nobody to tell
}
