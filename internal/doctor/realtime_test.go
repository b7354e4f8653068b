package doctor_test

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/tendril-run/tendril/internal/doctor"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/realtimetest"
)

// An agent of a Supabase project has no connection to the database: what wakes it is Realtime.
func TestRealtime(t *testing.T) {
	t.Parallel()
	p := healthy(t)
	p.Exec(t, realtimetest.Schema)
	server := realtimetest.Serve(t)
	server.Rest = gatewaytest.Handler(t, p.World, realtimetest.Key)
	server.Forward(p.URL)
	p.Config.Queue.URL, p.Config.Queue.APIKey, p.Config.Queue.CAFile = server.URL, realtimetest.Key, gatewaytest.CAFile(t, server.Certificate())
	p.Open = func(a queue.Agent) (queue.Queue, error) {
		q := p.Config.Queue
		return rpcqueue.New(rpcqueue.Options{URL: q.URL, APIKey: q.APIKey, CAFile: q.CAFile, Token: q.Token.Reveal(), Agent: a, Log: slog.New(slog.DiscardHandler)})
	}
	want(t, p.examine(t), "wakes", doctor.OK, "Realtime", "arrives")

	server.Behave(realtimetest.Behaviour{Reason: "PrivateOnly: This project only allows private channels"})
	want(t, p.examine(t), "wakes", doctor.Warn, "only allows private channels", "polled only", "public access")
	server.Behave(realtimetest.Behaviour{Status: http.StatusForbidden})
	want(t, p.examine(t), "wakes", doctor.Warn, "API key", "polled only")
	server.Behave(realtimetest.Behaviour{Status: http.StatusNotFound}) // trellis before a project's database
	want(t, p.examine(t), "wakes", doctor.OK, "polled", "no Realtime")
	server.Behave(realtimetest.Behaviour{})
	p.Exec(t, "DROP TABLE realtime.messages_of_all_days") // what is sent is lost
	want(t, p.examine(t), "wakes", doctor.Warn, "does not arrive", "SUPABASE.md")
	p.Exec(t, "DROP SCHEMA realtime CASCADE")
	want(t, p.examine(t), "wakes", doctor.OK, "polled")
}
