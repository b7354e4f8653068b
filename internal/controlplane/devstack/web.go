package devstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	// healthLimit bounds the health check's own query.
	healthLimit = 2 * time.Second
	// shutdownLimit is how long open requests may take at the end.
	shutdownLimit = 5 * time.Second
)

// health is what /healthz answers.
type health struct {
	Status   string       `json:"status"` // "ok", else "unavailable"
	Version  string       `json:"version"`
	Database part         `json:"database"`
	Agent    agentsHealth `json:"agent"`
}

type part struct {
	OK bool `json:"ok"`
}

type agentsHealth struct {
	part
	Name string `json:"name"`
	// LastHeartbeatAt is null before the first.
	LastHeartbeatAt *time.Time `json:"last_heartbeat_at"`
}

// health asks the database. Why it does not answer is not told: the error may
// name hosts and users, and nobody signs in here.
func (s *Stack) health(ctx context.Context) health {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	h := health{Status: "unavailable", Version: s.options.Version, Agent: agentsHealth{Name: s.name}}
	var alive *bool
	err := s.db.QueryRow(ctx, `SELECT max(last_heartbeat_at), max(last_heartbeat_at) > clock_timestamp() - (SELECT agent_alive FROM tendril.settings)
		FROM public.agents WHERE cluster_id = $1 AND name = $2`, s.home.cluster, s.name).Scan(&h.Agent.LastHeartbeatAt, &alive)
	h.Database.OK = err == nil
	h.Agent.OK = err == nil && alive != nil && *alive
	if h.Agent.OK {
		h.Status = "ok"
	}
	return h
}

// web is the HTTP server.
type web struct {
	server *http.Server
	done   chan struct{}
}

// serve answers on the listener until stop. It calls broken when it cannot.
func serve(listener net.Listener, look func(context.Context) health, broken func(error)) *web {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		h := look(r.Context())
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if h.Status != "ok" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(h) // the client is gone: nobody to tell
	})
	w := &web{
		server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10},
		done:   make(chan struct{}),
	}
	go func() {
		defer close(w.done)
		if err := w.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			broken(fmt.Errorf("serve HTTP: %w", err))
		}
	}()
	return w
}

// stop lets open requests finish for a moment, then cuts them.
func (w *web) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownLimit)
	defer cancel()
	if w.server.Shutdown(ctx) != nil {
		_ = w.server.Close() // its listener is closed already
	}
	<-w.done
}
