package rpcqueue_test

import (
	"testing"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// All that an agent may count on, over HTTPS and the gateway.
func TestConformance(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, func(t *testing.T, w *queuetest.World, token string, agent queue.Agent) queue.Queue {
		t.Helper()
		gateway := gatewaytest.Serve(t, w)
		return dial(t, rpcqueue.Options{URL: gateway.URL, APIKey: gateway.APIKey, CAFile: gateway.CAFile, Token: token, Agent: agent})
	})
}
