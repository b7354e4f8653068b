package agentcmd

import (
	"log/slog"

	"github.com/tendril-run/tendril/internal/agent"
	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/health"
	"github.com/tendril-run/tendril/internal/metrics"
)

// observed has an agent that is to be made tell how it is, where the
// configuration wants a port for that. serve opens it, before the agent begins;
// what serve returns closes it, after the agent has ended.
func observed(c config.Config, o *agent.Options) (serve func(*agent.Agent) (stop func(), err error)) {
	if c.Health.Listen == "" {
		return func(*agent.Agent) (func(), error) { return func() {}, nil }
	}
	measured := metrics.New(o.Version)
	o.Observer, o.Loops, o.Standing = measured, health.NewLoops(health.Margin), health.NewStanding()
	log, loops, standing := o.Log, o.Loops, o.Standing
	return func(a *agent.Agent) (func(), error) {
		measured.Watch(func() metrics.Now { return metrics.Now(a.Now()) })
		measured.WatchData(a.DataBytes)
		server, err := health.Listen(c.Health.Listen, health.Handler(loops, standing, measured.Handler(log)))
		if err != nil {
			return nil, err
		}
		log.Info("serving health and metrics", slog.String("address", server.Address()))
		return server.Close, nil
	}
}
