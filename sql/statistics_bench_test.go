package sql_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// BenchmarkStatistics asks where 1 M runs have ended and 100,000 wait, half of them
// in one workspace; "written" is the moment before the server has tidied up.
func BenchmarkStatistics(b *testing.B) {
	w := &world{conn: pgtest.New(b, migrated).Conn(b), org: uuid.New(), cluster: uuid.New()}
	if _, err := w.conn.Exec(b.Context(), "INSERT INTO public.orgs (id, name) VALUES ($1, 'bench')", w.org); err != nil {
		b.Fatal(err)
	}
	if _, err := w.conn.Exec(b.Context(), "INSERT INTO public.clusters (id, org_id, name) VALUES ($1, $2, 'bench')", w.cluster, w.org); err != nil {
		b.Fatal(err)
	}
	w.history(b, 1_000_000, 100_000)
	ask := func(b *testing.B) {
		quickest := time.Hour // what it takes where nobody else wants the processor
		for b.Loop() {
			began := time.Now()
			var text string
			if err := w.conn.QueryRow(b.Context(), "SELECT tendril.statistics()::text").Scan(&text); err != nil {
				b.Fatal(err)
			}
			quickest = min(quickest, time.Since(began))
		}
		b.ReportMetric(float64(quickest.Microseconds())/1000, "quickest-ms")
	}
	b.Run("quiet", ask)
	// Each row of the queue written anew: no page of it is known to be visible to all.
	if _, err := w.conn.Exec(b.Context(), "UPDATE public.provisions SET priority = 1 WHERE status = 'QUEUED'"); err != nil {
		b.Fatal(err)
	}
	b.Run("written", ask)
}
