package rpcqueue_test

import (
	"testing"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// opens opens queues by way of a gateway.
type opens func(t *testing.T, g gatewaytest.Gateway, w *queuetest.World, token string, agent queue.Agent) queue.Queue

func byKey(t *testing.T, g gatewaytest.Gateway, w *queuetest.World, token string, agent queue.Agent) queue.Queue {
	t.Helper()
	w.Signs = true
	key := queuetest.RunnerKey(token)
	if agent.Runner == nil {
		key = w.Join(t, token, agent.Name)
	}
	return dial(t, rpcqueue.Options{URL: g.URL, APIKey: g.APIKey, CAFile: g.CAFile, Key: key, Agent: agent})
}

func byToken(t *testing.T, g gatewaytest.Gateway, _ *queuetest.World, token string, agent queue.Agent) queue.Queue {
	t.Helper()
	return dial(t, rpcqueue.Options{URL: g.URL, APIKey: g.APIKey, CAFile: g.CAFile, Token: token, Agent: agent})
}

// holder is a gateway that holds calls.
func (open opens) holder(serve func(testing.TB, *queuetest.World) gatewaytest.Gateway) func(*testing.T, *queuetest.World) queuetest.Holder {
	return func(t *testing.T, w *queuetest.World) queuetest.Holder {
		t.Helper()
		g := serve(t, w)
		return queuetest.Holder{
			Open: func(t *testing.T, token string, agent queue.Agent) queue.Queue { return open(t, g, w, token, agent) },
			Held: func() int { return g.Served.Held().Calls },
			Stop: g.Served.EndHeld,
		}
	}
}

// All that an agent may count on, over HTTPS and the gateway, by an agent that has no token and
// signs its requests with a key.
func TestConformanceByKey(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, func(t *testing.T, w *queuetest.World, token string, agent queue.Agent) queue.Queue {
		t.Helper()
		return byKey(t, gatewaytest.ServeForKeys(t, w), w, token, agent)
	})
}

// And by one that has a token.
func TestConformance(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, func(t *testing.T, w *queuetest.World, token string, agent queue.Agent) queue.Queue {
		t.Helper()
		return byToken(t, gatewaytest.Serve(t, w), w, token, agent)
	})
}

// What is held is signed once, for all repeats within the gateway.
func TestHeldConformanceByKey(t *testing.T) {
	t.Parallel()
	queuetest.RunHeld(t, opens(byKey).holder(gatewaytest.ServeForKeys))
}

func TestHeldConformance(t *testing.T) {
	t.Parallel()
	queuetest.RunHeld(t, opens(byToken).holder(gatewaytest.Serve))
}
