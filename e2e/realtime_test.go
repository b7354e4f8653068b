package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/realtimetest"

	"github.com/tendril-run/tendril/e2e/site"
)

// An agent of a Supabase project hears at once of work, for which it would ask each 10 minutes,
// and of cancels.
func TestRealtimeWakesAnAgent(t *testing.T) {
	t.Parallel()
	s := site.New(t)
	s.Exec(t, realtimetest.Schema)
	server := realtimetest.Serve(t)
	server.Rest = gatewaytest.Handler(t, s.World, realtimetest.Key)
	server.Forward(s.URL)
	a := s.NewAgent("one", 1, "")
	a.Env = slices.DeleteFunc(a.Env, func(entry string) bool { return strings.HasPrefix(entry, "TENDRIL_QUEUE_URL=") })
	a.Set("SUPABASE_URL", server.URL)
	a.Set("SUPABASE_ANON_KEY", realtimetest.Key)
	a.Set("SSL_CERT_FILE", gatewaytest.CAFile(t, server.Certificate()))
	a.Set("TENDRIL_QUEUE_POLL_INTERVAL", "10m")
	a.Start()
	// The heartbeat after an event has arrived is the first that can be woken, and hears how seldom
	// the next ones are.
	s.Await("an event", "SELECT EXISTS (SELECT FROM realtime.messages WHERE event = 'probe')")
	s.Exec(t, "UPDATE tendril.settings SET heartbeat = '1 minute', lease = '1 hour'")
	now := s.Text(t, "SELECT clock_timestamp()::text")
	s.Await("another heartbeat", "SELECT EXISTS (SELECT FROM public.agents WHERE last_heartbeat_at > $1::timestamptz)", now)

	asked := time.Now()
	endless := s.Template("endless", map[string]string{"main.tf": slowApply(t.TempDir())})
	id := s.DeployTemplate(endless, "a", nil)
	s.Await("the claim", "SELECT EXISTS (SELECT FROM public.provisions WHERE id = $1 AND status <> 'QUEUED')", id)
	t.Logf("the claim took %s", time.Since(asked))
	s.AwaitLine(id, "applying")
	asked = time.Now()
	s.Exec(t, "SELECT public.cancel_provision($1)", id)
	if got := s.AwaitEnd(id); got != "CANCELLED/cancelled" {
		t.Errorf("the cancelled provision = %s: %s", got, s.Message(id))
	}
	t.Logf("the cancel took %s", time.Since(asked)) // 12 s and more without a wake
	a.Terminate()
	if log := a.Out.String(); strings.Contains(log, "Realtime") {
		t.Errorf("the agent's log speaks of what works:\n%s", log)
	}
}
