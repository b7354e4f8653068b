package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	"github.com/tendril-run/tendril/internal/testkit/wiretest"
)

// wired configures an agent that reaches its queue by way of a proxy.
func (w *works) wired(name string, slots int) (*site.Agent, *wiretest.Proxy) {
	w.T.Helper()
	a := w.agent(name, slots, w.SharedState())
	return a, a.Wire()
}

// The connections break again and again, are refused for a while, and stall.
func TestConnectionCutAgainAndAgain(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a, wire := w.wired("one", 3)
	a.Start()
	a.AwaitOutput("registered")
	for i := range fewer(8, 20, 200) {
		w.keepBusy(4)
		switch i % 4 {
		case 0:
			wire.Refuse()
			counted.add("faults: connections refused for a while", 1)
		case 1:
			wire.Stall()
			counted.add("faults: connections stalled for a while", 1)
			if i%40 == 21 { // for longer than any call takes: all is repeated, and then delivered twice
				w.Await("calls to be given up", "SELECT bool_and(last_heartbeat_at < clock_timestamp() - interval '20 s') FROM public.agents")
				counted.add("faults: connections stalled for longer than a call", 1)
			}
		default:
			counted.add("faults: connections cut", wire.Cut())
		}
		<-time.After(rand.N(600 * time.Millisecond))
		wire.Pass()
	}
	w.awaitAll()
	a.Terminate()
	w.nobodyLost()
	w.count(a, "SUCCESS")
}

// A bad line: a tenth of a second each way, and 32 KB a second.
func TestConnectionSlow(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a, wire := w.wired("one", 3)
	wire.Slow(100*time.Millisecond, 32<<10)
	a.Start()
	for i := range fewer(2, 4, 60) {
		w.deploy(fmt.Sprintf("w%d", i%4), 100, time.Millisecond)
		counted.add("faults: runs over a slow connection", 1)
	}
	w.awaitAll()
	a.Terminate()
	w.nobodyLost()
	w.count(a, "SUCCESS")
}

// Eight runs of a real agent print twice as much as its link carries, 16 KB a second, all
// the way from their claim. Leases stay alive, each run delivers at least every 30 seconds,
// every line arrives, and so does each end.
func TestNoisyRunsOnANarrowLink(t *testing.T) {
	t.Parallel()
	const runs, silence = 8, 30 * time.Second
	w := newWorks(site.New(t))
	w.Exec(t, "UPDATE tendril.settings SET lease = '20 s', heartbeat = '2 s', poll = '1 s'")
	f := torrent{Lines: 640, Bytes: 128, PerSecond: 32}
	a, wire := w.wired("one", runs)
	f.of(t, a)
	a.Start()
	a.AwaitOutput("registered")
	wire.Share(queuetest.SlowRate)
	var ids []uuid.UUID
	for i := range runs {
		name := fmt.Sprintf("w%d", i)
		ids = append(ids, w.DeployTemplate(w.repo, name, map[string]any{"n": i + 1, "workspace": name, "lines": 1, "pause": "0"}))
	}
	counted.add("faults: runs over a slow connection", runs)
	for i, id := range ids {
		if got := w.AwaitEnd(id); got != "SUCCESS" {
			t.Errorf("run %d = %s: %s, want SUCCESS", i+1, got, w.Message(id))
		}
		n := 0
		w.eachLine(id, func(line string) {
			if strings.HasPrefix(line, "line ") {
				if n++; line != f.line(n) {
					t.Fatalf("line %d of run %d is %q", n, i+1, line)
				}
			}
		})
		if n != f.Lines {
			t.Errorf("run %d has %d lines, want %d", i+1, n, f.Lines)
		}
		var longest, took time.Duration
		if err := w.Conn.QueryRow(t.Context(), `
			SELECT max(at - before), max(at) - min(at) FROM (
			  SELECT at, lag(at, 1, at) OVER (ORDER BY at) AS before FROM (
			    SELECT created_at AS at FROM public.provision_logs WHERE provision_id = $1
			    UNION ALL SELECT started_at FROM public.provisions WHERE id = $1
			    UNION ALL SELECT finished_at FROM public.provisions WHERE id = $1) t) g`, id).Scan(&longest, &took); err != nil {
			t.Fatal(err)
		}
		t.Logf("run %d took %s and delivered at least every %s", i+1, took.Round(time.Second), longest.Round(time.Second))
		if longest > silence {
			t.Errorf("run %d delivered nothing for %s, want %s at most", i+1, longest.Round(time.Second), silence)
		}
	}
	if got := w.Text(t, "SELECT count(*)::text FROM public.provision_events WHERE kind ~ 'lost'") + w.Text(t, "SELECT count(*)::text FROM public.provision_logs WHERE log_chunk LIKE '%is lost%' OR log_chunk LIKE '%reported after all%'"); got != "00" {
		t.Errorf("leases were lost on the way (%s)", got)
	}
	wire.Pass()
	a.Terminate()
	w.count(a)
}

// The agent's connections lead nowhere for longer than its lease, while another
// agent is there that reaps, and would run what is queued on the workspace.
func TestBlackHoleForLongerThanTheLease(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	w.shortLeases()
	lone, wire := w.wired("lone", 1)
	lone.Start()
	witness := w.agent("witness", 2, w.SharedState())
	for i := range times(1, 5) {
		lost := w.deploy("a", endless, 10*time.Millisecond)
		w.awaitPrinted(lost, 5)
		witness.Start()
		wire.BlackHole()
		began := time.Now()
		counted.add("faults: connections into a black hole for longer than the lease", 1)
		next := w.deploy("a", 10, 10*time.Millisecond)
		if got := w.AwaitEnd(lost.id); got != "FAILED/agent_lost" {
			t.Fatalf("the run of an agent that cannot be heard = %s, want FAILED/agent_lost", got)
		}
		w.waits(next)
		w.awaitMore(lost, 50) // nobody stopped it
		w.enough(lost)
		w.awaitFinished(lost)
		if got := w.Status(t, next.id); got != "QUEUED" {
			t.Errorf("what is queued behind a lost apply = %s, want QUEUED", got)
		}
		if full() { // else its calls are still waiting for their answers
			await(t, "the agent to notice", func() bool { return strings.Count(lone.Out.String(), "cannot reach the database") > i })
			t.Logf("the agent noticed the black hole after %s", time.Since(began).Round(time.Millisecond))
		}
		wire.Pass()
		back := time.Now()
		w.Await("the late settlement", "SELECT status = 'SUCCESS' FROM public.provisions WHERE id = $1", lost.id)
		t.Logf("settled %s after the black hole, %s after it began", time.Since(back).Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
		if got := w.AwaitEnd(next.id); got != "SUCCESS" {
			t.Errorf("what was queued behind it = %s, want SUCCESS", got)
		}
		witness.Terminate()
	}
	wire.Cut() // else the agent takes leave of what does not answer
	lone.Terminate()
	w.countLeftovers(lone)
	w.count(witness, "SUCCESS")
}
