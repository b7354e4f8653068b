package devstack

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/inspect"
	"github.com/tendril-run/tendril/internal/controlplane/notify"
	"github.com/tendril-run/tendril/internal/controlplane/rpcgateway"
	"github.com/tendril-run/tendril/internal/controlplane/site"
	"github.com/tendril-run/tendril/internal/controlplane/web"
	"github.com/tendril-run/tendril/internal/queue"
)

const (
	// healthLimit bounds the health check's own query.
	healthLimit = 2 * time.Second
	// gatewayConns is enough for the agents of one machine.
	gatewayConns = 4
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

// serve answers on the stack's listener: health, and agents that are set up to
// reach the queue over HTTP.
func (s *Stack) serve(ctx context.Context, databaseURL string) error {
	if _, err := rpcgateway.Prepare(ctx, databaseURL, queue.Contract); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(&noteWriter{s.report.Note}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var err error
	s.gateway, err = rpcgateway.New(ctx, rpcgateway.Options{DatabaseURL: databaseURL, MaxConns: gatewayConns, Log: log})
	if err != nil {
		return err
	}
	key, err := ensureKey(s.options.path("key"))
	if err != nil {
		return err
	}
	if s.site, err = site.Start(ctx, site.Options{Notify: notify.Options{Key: key, Allowed: notify.Local}, DatabaseURL: databaseURL, PublicURL: s.PublicURL(), LocalHost: s.hostName, Version: s.options.Version, Log: log,
		Inspect: inspect.Options{Command: s.options.InspectCommand, Files: []string{s.options.templatePattern()}}}); err != nil {
		return err
	}
	var certificate *web.Certificate
	if s.options.CertFile != "" {
		if certificate, err = web.LoadCertificate(s.options.CertFile, s.options.KeyFile, log); err != nil {
			return err
		}
	}
	routes := web.Routes{RPC: s.gateway, Rest: s.site, Health: func(r *http.Request) (any, bool) {
		h := s.health(r.Context())
		return h, h.Status == "ok"
	}}
	s.web = append(s.web, web.Start(s.listener, routes, web.Limits{}, certificate, log, s.fail))
	if s.local != s.listener {
		s.web = append(s.web, web.Start(s.local, routes, web.Limits{}, nil, log, s.fail))
	}
	return nil
}
