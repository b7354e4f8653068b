package rpcqueue_test

import (
	"testing"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// And by an agent that has no token and signs its requests with a key.
func TestConformanceByKey(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, func(t *testing.T, w *queuetest.World, token string, agent queue.Agent) queue.Queue {
		t.Helper()
		gateway := gatewaytest.ServeForKeys(t, w)
		return dial(t, rpcqueue.Options{URL: gateway.URL, APIKey: gateway.APIKey, CAFile: gateway.CAFile, Key: w.Join(t, token, agent.Name), Agent: agent})
	})
}

// All that an agent may count on, over HTTPS and the gateway.
func TestConformance(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, func(t *testing.T, w *queuetest.World, token string, agent queue.Agent) queue.Queue {
		t.Helper()
		gateway := gatewaytest.Serve(t, w)
		return dial(t, rpcqueue.Options{URL: gateway.URL, APIKey: gateway.APIKey, CAFile: gateway.CAFile, Token: token, Agent: agent})
	})
}
