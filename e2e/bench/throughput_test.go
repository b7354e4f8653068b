package bench

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
)

// throughputLines is how much each of so many runs prints in a round, about 90 bytes a
// line: as much as is shown of a plan, and of several together enough that the start of
// their processes is not what is measured.
func throughputLines(runs int) int { return 600_000 / min(runs, 2) }

// Engines print as fast as it is taken: from the first byte to the commit of
// the last row, against batch inserts on as many connections.
func BenchmarkLogThroughput(b *testing.B) {
	for _, runs := range []int{1, 4, 8} {
		b.Run(fmt.Sprintf("provisions=%d", runs), func(b *testing.B) {
			throughput(b, runs, printing{During: "plan", Lines: throughputLines(runs)})
		})
	}
	// What a run prints while it applies comes as events, which the child reads.
	b.Run("events", func(b *testing.B) {
		throughput(b, 1, printing{During: "apply", Lines: 150_000})
	})
}

// BenchmarkLogThroughputHTTPS is that of an agent that reaches the queue through
// trellis serve, beside one with connections to the database.
func BenchmarkLogThroughputHTTPS(b *testing.B) {
	for _, runs := range []int{1, 4} {
		b.Run(fmt.Sprintf("provisions=%d", runs), func(b *testing.B) {
			throughputHTTPS(b, runs, printing{During: "plan", Lines: throughputLines(runs)})
		})
	}
}

func throughputHTTPS(b *testing.B, runs int, p printing) {
	far := site.New(b)
	gateway := far.Serve().Cmd.Process.Pid
	ours, direct := printersAt(b, far, runs, p), newPrinters(b, runs, p)
	ours.agent.Start()
	direct.agent.Start()
	var through, straight costs
	var serving time.Duration
	for b.Loop() {
		for range 2 {
			direct.round(b, &straight, runs, p)
			before := cpuOf(b, gateway)
			ours.round(b, &through, runs, p)
			serving += cpuOf(b, gateway) - before
		}
	}
	b.ReportMetric(through.rate(), "MB/s")
	b.ReportMetric(straight.rate(), "direct-MB/s")
	b.ReportMetric(float64(site.PeakMemory(ours.agent.Cmd.Process.Pid))/(1<<20), "agent-MB")
	b.ReportMetric(float64(site.PeakMemory(gateway))/(1<<20), "gateway-MB")
	b.ReportMetric(through.per100MB(through.agent), "agent-cpu-s")
	b.ReportMetric(straight.per100MB(straight.agent), "direct-agent-cpu-s")
	b.ReportMetric(through.per100MB(serving), "gateway-cpu-s")
	only(b)
}

// costs are what rounds took: bytes, time and processor time, by whom.
type costs struct {
	bytes                                    int
	time, agent, children, engines, postgres time.Duration
}

func throughput(b *testing.B, runs int, p printing) {
	w := newPrinters(b, runs, p)
	w.agent.Start()
	conns := w.connect(b, runs)
	pid := w.agent.Cmd.Process.Pid
	stop := watchChildren(pid)
	defer stop()
	var ours, bare costs
	for b.Loop() {
		for range 2 {
			w.bareRound(b, &bare, conns, p.size())
			w.round(b, &ours, runs, p)
		}
	}
	b.ReportMetric(ours.rate(), "MB/s")
	b.ReportMetric(bare.rate(), "bare-MB/s")
	b.ReportMetric(100*ours.rate()/bare.rate(), "of-bare-%")
	b.ReportMetric(float64(site.PeakMemory(pid))/(1<<20), "agent-MB")
	b.ReportMetric(float64(stop())/(1<<20), "child-MB")
	// Processor time for 100 MB, so that it can be compared.
	b.ReportMetric(ours.per100MB(ours.agent), "agent-cpu-s")
	b.ReportMetric(ours.per100MB(ours.children), "child-cpu-s")
	b.ReportMetric(ours.per100MB(ours.engines), "engine-cpu-s")
	b.ReportMetric(ours.per100MB(ours.postgres), "postgres-cpu-s")
	b.ReportMetric(bare.per100MB(bare.postgres), "bare-postgres-cpu-s")
	only(b)
}

func (c costs) rate() float64 { return float64(c.bytes) / 1e6 / c.time.Seconds() }

func (c costs) per100MB(t time.Duration) float64 { return t.Seconds() * 100e6 / float64(c.bytes) }

// round has that many runs print together.
func (w *printers) round(b *testing.B, c *costs, runs int, p printing) {
	b.Helper()
	agent, postgres := usageOf(b, w.agent.Cmd.Process.Pid), usageBelow(b, w.postgres)
	ids := w.deploy(b, runs)
	began := w.journal.begin(b)
	for _, id := range ids {
		w.Await("the last line", `SELECT EXISTS (SELECT FROM (SELECT log_chunk FROM public.provision_logs
			WHERE provision_id = $1 AND stream_type = 'STDOUT' ORDER BY seq DESC LIMIT 2) t WHERE log_chunk LIKE '%' || $2)`, id, lastLine)
	}
	c.time += time.Since(began)
	w.settled(b, ids...)
	engines := w.journal.used(b, runs)
	now := usageOf(b, w.agent.Cmd.Process.Pid)
	c.agent += now.own - agent.own
	c.engines += engines
	c.children += now.children - agent.children - engines
	c.postgres += usageBelow(b, w.postgres) - postgres
	for _, id := range ids {
		if got, want := w.storedBytes(b, id), p.size(); got != want {
			b.Fatalf("%d bytes of %d are stored", got, want)
		}
		c.bytes += p.size()
	}
	w.Exec(b, "TRUNCATE public.provision_logs")
}

// bareRound has each connection store as much as one run prints.
func (w *printers) bareRound(b *testing.B, c *costs, conns []*pgx.Conn, size int) {
	b.Helper()
	postgres := usageBelow(b, w.postgres)
	began := time.Now()
	errs := make([]error, len(conns))
	var writers sync.WaitGroup
	for i, conn := range conns {
		writers.Go(func() { errs[i] = w.storeBare(b, conn, size) })
	}
	writers.Wait()
	c.time += time.Since(began)
	c.postgres += usageBelow(b, w.postgres) - postgres
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	var stored int
	if err := w.Conn.QueryRow(b.Context(), "SELECT sum(octet_length(log_chunk)) FROM public.bare").Scan(&stored); err != nil {
		b.Fatal(err)
	}
	if stored < size*len(conns) {
		b.Fatalf("%d bytes of %d are stored", stored, size*len(conns))
	}
	c.bytes += stored
	w.Exec(b, "TRUNCATE public.bare")
}
