package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/metrics"
	"github.com/tendril-run/tendril/internal/controlplane/web"
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
// Prometheus. It is a port of its own, so that no path of the public one leads here.
type monitor struct {
	metrics *metrics.Metrics
	keeper  *keeper
	loops   []loop
	version string
}

// monitorLimits are for few clients that are quick.
var monitorLimits = web.Limits{ReadTimeout: 5 * time.Second, WriteTimeout: 20 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeader: 8 << 10, MaxConnections: 64}

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
	return listener, nil
}

// handler has all paths of the port.
func (m *monitor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.metrics.Handler())
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
	contract, err := m.keeper.contract(ctx)
	r.Database.OK, r.Database.Contract = err == nil, contract
	if contract < queue.Contract {
		r.Status = "unavailable"
	}
	return r, r.Status == "ok"
}

func answer(w http.ResponseWriter, body any, ok bool) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // the client is gone: nobody to tell
}
