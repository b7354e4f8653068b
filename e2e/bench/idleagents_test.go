package bench

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/agent"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
)

// BenchmarkIdleAgents is what agents with nothing to do cost trellis serve and PostgreSQL, at the
// intervals that agents are told. They are those of "tendril run", all in this process, each with
// a connection of its own.
func BenchmarkIdleAgents(b *testing.B) {
	b.Run("agents=1k", func(b *testing.B) { idleAgents(b, 1000, false) })
	b.Run("agents=1k/by-key", func(b *testing.B) { idleAgents(b, 1000, true) })
	b.Run("agents=10k/by-key", func(b *testing.B) { idleAgents(b, 10_000, true) })
}

func idleAgents(b *testing.B, agents int, byKey bool) {
	const watched = 20 * time.Second
	s := site.New(b)
	s.Exec(b, "UPDATE tendril.settings SET agent_limit = $1", agents)
	// All have one address here, which has three quarters of the connections and half of what
	// may be held.
	gateway := s.Serve("--max-connections", fmt.Sprint(2*agents), "--max-held", fmt.Sprint(2*agents+100)).Cmd.Process.Pid
	startAgents(b, s, fleet{agents: agents, url: s.Gateway.URL, byKey: byKey, token: s.Token})
	postgres := serverPID(b, s)
	var serving, storing, whole time.Duration
	for b.Loop() {
		began, trellis, database := time.Now(), cpuOf(b, gateway), usageBelow(b, postgres)
		<-time.After(watched) // the agents work
		whole, serving, storing = whole+time.Since(began), serving+cpuOf(b, gateway)-trellis, storing+usageBelow(b, postgres)-database
	}
	if got := s.Text(b, "SELECT count(*)::text FROM public.agents WHERE last_heartbeat_at > now() - interval '30 s'"); got != fmt.Sprint(agents) {
		b.Fatalf("%s agents of %d are alive", got, agents)
	}
	percent := func(t time.Duration) float64 { return 100 * t.Seconds() / whole.Seconds() }
	b.ReportMetric(percent(serving+storing), "cpu-%")
	b.ReportMetric(percent(serving), "trellis-cpu-%")
	b.ReportMetric(percent(storing), "postgres-cpu-%")
	b.ReportMetric(float64(site.PeakMemory(gateway))/(1<<20), "trellis-MB")
	var conns int
	if err := s.Conn.QueryRow(b.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()").Scan(&conns); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(conns), "connections")
	only(b)
}

// fleet is many agents in this process, which have nothing to do.
type fleet struct {
	agents int
	url    string // of the queue
	byKey  bool
	token  string // of the cluster, also for those that join by key
	// wrap stands between an agent and its queue; nil: nothing does.
	wrap func(*rpcqueue.Queue) queue.Queue
}

// startAgents starts agents and returns when all are registered. They end with
// the benchmark.
func startAgents(b *testing.B, s *site.Site, f fleet) {
	b.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	b.Cleanup(func() {
		stop()
		running.Wait()
	})
	dir, keys := b.TempDir(), make([]ed25519.PrivateKey, f.agents)
	if f.byKey {
		for i := range keys {
			keys[i] = s.Join(b, f.token, fmt.Sprint("idle-", i))
		}
	}
	for i := range keys {
		a := agent.New(agent.Options{
			DataDir: filepath.Join(dir, fmt.Sprint(i)), Name: fmt.Sprint("idle-", i), Version: "bench", Slots: 1, UIDs: "off",
			Open: func(self queue.Agent) (queue.Queue, error) {
				options := rpcqueue.Options{URL: f.url, CAFile: s.Git.CAFile, Token: f.token, Agent: self}
				if f.byKey {
					options.Token, options.Key = "", keys[i]
				}
				q, err := rpcqueue.New(options)
				if err != nil || f.wrap == nil {
					return q, err
				}
				return f.wrap(q), nil
			},
			Log: slog.New(slog.DiscardHandler),
		})
		running.Go(func() {
			if err := a.Run(ctx); err != nil {
				b.Errorf("agent %d: %v", i, err)
			}
		})
	}
	s.Await("all agents to register", "SELECT count(*) = $1 FROM public.agents WHERE name LIKE 'idle-%'", f.agents)
}
