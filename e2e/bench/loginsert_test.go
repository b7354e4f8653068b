package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// BenchmarkLogInsert is how fast the database stores lines of runs, each with a
// connection of its own, while somebody listens. Bare inserts the same text by
// the same number of connections, chunks and commits, into a table of the same
// columns, key and compression.
func BenchmarkLogInsert(b *testing.B) {
	for _, c := range []struct{ writers, chunks, calls int }{
		{1, 20, 40}, {8, 20, 15}, {1, 1, 400}, {8, 1, 150},
	} {
		b.Run(fmt.Sprintf("writers=%d/chunks=%d", c.writers, c.chunks), func(b *testing.B) { logInserts(b, c.writers, c.chunks, c.calls) })
	}
}

// storing is one run whose lines are stored.
type storing struct {
	*worker
	claimID   uuid.UUID
	next, row int64
}

func logInserts(b *testing.B, writers, chunks, calls int) {
	const rounds = 3
	ctx := b.Context()
	w := queuetest.NewWorld(b)
	w.Exec(b, "CREATE TABLE public.bare (LIKE public.provision_logs INCLUDING DEFAULTS INCLUDING INDEXES INCLUDING COMPRESSION)")
	runs := make([]*storing, writers)
	for i, agent := range newWorkers(b, w, writers) {
		w.Deploy(b, fmt.Sprint("w", i))
		runs[i] = &storing{worker: agent, claimID: uuid.New(), next: 1}
		if err := agent.claim(ctx, runs[i].claimID); err != nil {
			b.Fatal(err)
		}
	}
	others := connections(b, w.URL, writers)
	viewer := listen(b, w.URL, "tendril_provision")
	go func() {
		for {
			if _, err := viewer.conn.WaitForNotification(ctx); err != nil {
				return // the benchmark is over
			}
		}
	}()

	texts := logTexts(chunks)
	streams, times := make([]string, chunks), make([]time.Time, chunks)
	size := 0
	for i, text := range texts {
		streams[i], times[i] = "STDOUT", time.Now()
		size += len(text)
	}
	ours := func(i int) error {
		r := runs[i]
		return r.conn.QueryRow(ctx, "SELECT public.append_provision_log($1, $2, $3, $4, $5, $6)",
			r.hash, r.claimID, r.next, streams, texts, times).Scan(&r.next)
	}
	bare := func(i int) error {
		r := runs[i]
		_, err := others[i].Exec(ctx, `INSERT INTO public.bare (provision_id, seq, org_id, stream_type, log_chunk, emitted_at)
			SELECT $1, $2 + t.n, $3, 'STDOUT', t.chunk, now() FROM unnest($4::text[]) WITH ORDINALITY AS t (chunk, n)`, r.claimID, r.row, w.Org, texts)
		r.row += int64(chunks)
		return err
	}
	var with, without series
	var took, bareTook time.Duration
	for b.Loop() {
		atOnce(b, writers, 2, bare, nil) // plans are made once
		atOnce(b, writers, 2, ours, nil)
		w.Exec(b, "TRUNCATE public.provision_logs, public.bare")
		for range rounds {
			bareTook += atOnce(b, writers, calls, bare, &without)
			took += atOnce(b, writers, calls, ours, &with)
			for _, table := range []string{"public.provision_logs", "public.bare"} {
				if got, want := w.Text(b, "SELECT sum(octet_length(log_chunk))::text FROM "+table), fmt.Sprint(writers*calls*size); got != want {
					b.Fatalf("%s has %s bytes, want %s", table, got, want)
				}
			}
			w.Exec(b, "TRUNCATE public.provision_logs, public.bare")
		}
	}
	rate := func(s series, t time.Duration) float64 { return float64(len(s)*size) / 1e6 / t.Seconds() }
	b.ReportMetric(rate(without, bareTook), "bare-MB/s")
	b.ReportMetric(rate(with, took), "MB/s")
	b.ReportMetric(float64(len(without))/bareTook.Seconds(), "bare-calls-/s")
	b.ReportMetric(float64(len(with))/took.Seconds(), "calls-/s")
	without.report(b, "bare-", 50, 99)
	with.report(b, "", 50, 99)
	only(b)
}

// logTexts are chunks of what an engine prints while it applies: lines much
// alike, with what tells them apart.
func logTexts(n int) []string {
	kinds := []string{"aws_instance", "aws_security_group_rule", "aws_route53_record", "aws_iam_role_policy_attachment", "kubernetes_namespace"}
	texts := make([]string, n)
	for i, line := 0, 0; i < n; i++ {
		var text strings.Builder
		for ; text.Len() < provision.ChunkTarget; line++ {
			id := uuid.NewSHA1(uuid.NameSpaceURL, fmt.Append(nil, line))
			switch address := fmt.Sprintf("module.cell[%d].%s.node[%q]", line%17, kinds[line%len(kinds)], id.String()[:8]); line % 3 {
			case 0:
				fmt.Fprintf(&text, "%s: Creating...\n", address)
			case 1:
				fmt.Fprintf(&text, "%s: Still creating... [%dm%ds elapsed]\n", address, line%7, line%60)
			default:
				fmt.Fprintf(&text, "%s: Creation complete after %ds [id=%s]\n", address, line%90, id)
			}
		}
		texts[i] = text.String()
	}
	return texts
}
