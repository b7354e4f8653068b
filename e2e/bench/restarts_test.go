package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
)

// BenchmarkGatewayRestarts kills and replaces trellis serve in turn, TENDRIL_BENCH_RESTARTS times
// (10), while 1,000 agents that have joined by key wait and runs go on, of which nothing may be
// lost. By how long ago the server was back it measures how soon an inserted row is claimed, and
// how many connections and calls the agents make in a second at most. TENDRIL_BENCH_CSV names a
// file for all of these.
func BenchmarkGatewayRestarts(b *testing.B) {
	const (
		agents = 1000
		window = 12 // seconds that are looked at after each restart
		back   = 10 // seconds after which agents are to be woken as before
		wakes  = 5  // rows that are inserted in a second
		lines  = 150
	)
	restarts, err := strconv.Atoi(cmp.Or(os.Getenv("TENDRIL_BENCH_RESTARTS"), "10"))
	if err != nil {
		b.Fatal(err)
	}
	s := site.New(b)
	s.Exec(b, "UPDATE tendril.settings SET agent_limit = $1", agents)
	gateway := s.Serve("--max-connections", fmt.Sprint(3*agents), "--max-held", fmt.Sprint(2*agents+100))
	door := site.Balance(b, gateway.Address)
	s.QueueURL = "https://" + door.Address
	s.NewAgent("worker", 3, "").Start().AwaitOutput("registered")
	template := s.Template("works", map[string]string{"main.tf": fmt.Sprintf(`resource "terraform_data" "x" {
  triggers_replace = timestamp()
  provisioner "local-exec" { command = "for i in $(seq %d); do echo line-$i; sleep 0.1; done" }
}`, lines)})
	idle, token := s.NewCluster(b, "idle")
	var calls atomic.Int64
	startAgents(b, s, fleet{agents: agents, url: s.QueueURL, byKey: true, token: token, wrap: func(q *rpcqueue.Queue) queue.Queue { return countedQueue{q, &calls} }})

	var inserted [window][]uuid.UUID
	var connections, asked [window]int64
	var works []uuid.UUID
	for b.Loop() {
		for i := range restarts {
			for len(works) < 3 || s.Text(b, "SELECT (count(*) < 3)::text FROM public.provisions WHERE cluster_id = $1 AND finished_at IS NULL", s.Cluster) == "true" {
				works = append(works, s.DeployTemplate(template, fmt.Sprintf("works/%d", len(works)%9), map[string]any{}))
			}
			if i%2 == 0 {
				gateway.Kill()
				gateway.Start()
			} else {
				gateway.Replace()
			}
			began := time.Now()
			for second := range window {
				opened, said := door.Opened.Load(), calls.Load()
				for n := range wakes {
					<-time.After(time.Until(began.Add(time.Duration(second*wakes+n) * time.Second / wakes)))
					id := s.Text(b, "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id::text", idle,
						site.SnapshotOf("https://git.example/not/allowed", fmt.Sprintf("here-%d-%d-%d", i, second, n), nil))
					inserted[second] = append(inserted[second], uuid.MustParse(id))
				}
				<-time.After(time.Until(began.Add(time.Duration(second+1) * time.Second)))
				connections[second] = max(connections[second], door.Opened.Load()-opened)
				asked[second] = max(asked[second], calls.Load()-said)
			}
		}
	}
	s.Await("the runs to end", "SELECT count(*) = 0 FROM public.provisions WHERE finished_at IS NULL")
	for _, id := range works {
		if got := s.Text(b, `SELECT p.status || ' ' || count(m) || ' ' || count(DISTINCT m) FROM public.provisions p
			LEFT JOIN (SELECT l.provision_id, (regexp_matches(l.log_chunk, 'local-exec\): line-(\d+)', 'g'))[1] AS m FROM public.provision_logs l) l ON l.provision_id = p.id
			WHERE p.id = $1 GROUP BY p.id`, id); got != fmt.Sprintf("SUCCESS %d %d", lines, lines) {
			b.Errorf("a run that went on meanwhile, its lines and how many differ: %s, want SUCCESS %d %d", got, lines, lines)
		}
	}
	csv := strings.Builder{}
	csv.WriteString("second,wake_p50_ms,wake_p99_ms,connections_a_second,calls_a_second\n")
	var late series
	for second, ids := range inserted {
		took := claimedAfter(b, s, ids)
		if second >= back {
			late = append(late, took...)
		}
		fmt.Fprintf(&csv, "%d,%.1f,%.1f,%d,%d\n", second, milliseconds(took.percentile(50)), milliseconds(took.percentile(99)), connections[second], asked[second])
	}
	b.Logf("by seconds since the server was back:\n%s", csv.String())
	if file := os.Getenv("TENDRIL_BENCH_CSV"); file != "" {
		if err := os.WriteFile(file, []byte(csv.String()), 0o600); err != nil {
			b.Error(err)
		}
	}
	late.report(b, "", 50, 99)
	b.ReportMetric(float64(slices.Max(connections[:])), "connections-/s")
	b.ReportMetric(float64(slices.Max(asked[:])), "calls-/s")
	b.ReportMetric(float64(len(works)), "runs")
	only(b)
}

// claimedAfter is how long each of the rows waited, by the clock of the database.
func claimedAfter(b *testing.B, s *site.Site, ids []uuid.UUID) (took series) {
	b.Helper()
	rows, err := s.Conn.Query(b.Context(), `SELECT extract(epoch FROM c.created_at - p.created_at)::float8 FROM public.provisions p JOIN tendril.claims c ON c.provision_id = p.id WHERE p.id = ANY ($1)`, ids)
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var seconds float64
		if err := rows.Scan(&seconds); err != nil {
			b.Fatal(err)
		}
		took.add(time.Duration(seconds * float64(time.Second)))
	}
	if rows.Err() != nil || len(took) != len(ids) {
		b.Fatalf("%d of %d rows were claimed once (%v)", len(took), len(ids), rows.Err())
	}
	return took
}

// countedQueue counts what an agent asks for while it has nothing to do. What it claims is at its
// end at once: nothing is run.
type countedQueue struct {
	*rpcqueue.Queue
	calls *atomic.Int64
}

func (q countedQueue) Register(ctx context.Context) (queue.Registration, error) {
	q.calls.Add(1)
	return q.Queue.Register(ctx)
}

func (q countedQueue) Heartbeat(ctx context.Context, beat queue.Beat) (queue.Pulse, error) {
	q.calls.Add(1)
	return q.Queue.Heartbeat(ctx, beat)
}

func (q countedQueue) Claim(ctx context.Context, id uuid.UUID) (*provision.Assignment, error) {
	a, err := q.Queue.Claim(ctx, id)
	if err == nil && a != nil {
		err = q.Report(ctx, id, provision.Report{Status: provision.Failed, Detail: provision.Detail{ErrorCode: provision.CodeRepoRefused, ErrorMessage: "nothing is run here"}})
	}
	return nil, err
}
