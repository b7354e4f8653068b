package bench

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// BenchmarkClaims is how fast a queue of 100,000, half of them on one busy
// workspace, is claimed by agents that ask again at once.
//
// Bare is as long a table with as many rows claimed before, of which
// connections take the first that nobody has: UPDATE … FOR UPDATE SKIP LOCKED,
// one index, one statement. It knows of no workspaces, tokens or leases.
func BenchmarkClaims(b *testing.B) {
	for _, finished := range []struct {
		name  string
		rows  int
		conns []int
	}{
		{"1k", 1_000, []int{8}},
		{"100k", 100_000, []int{8}},
		{"1M", 1_000_000, []int{1, 2, 4, 8, 16, 32}},
	} {
		b.Run("finished="+finished.name, func(b *testing.B) {
			w := filled(b, finished.rows)
			for _, conns := range finished.conns {
				b.Run("conns="+strconv.Itoa(conns), func(b *testing.B) { claims(b, w, conns) })
			}
		})
	}
}

const claimBare = `UPDATE public.bare SET claimed_at = clock_timestamp()
	WHERE id = (SELECT id FROM public.bare WHERE claimed_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, snapshot`

func claims(b *testing.B, w *queuetest.World, conns int) {
	const rounds = 2
	each := max(20, 1600/conns)
	workers, others := newWorkers(b, w, conns), connections(b, w.URL, conns)
	ours := func(i int) error { return workers[i].claim(b.Context(), uuid.Must(uuid.NewV7())) }
	bare := func(i int) error {
		var id int64
		var snapshot []byte
		return others[i].QueryRow(b.Context(), claimBare).Scan(&id, &snapshot)
	}
	var with, without series
	var took, bareTook time.Duration
	for b.Loop() {
		requeue(b, w)
		atOnce(b, conns, 10, bare, nil) // plans are made once
		atOnce(b, conns, 10, ours, nil)
		for range rounds {
			bareTook += atOnce(b, conns, each, bare, &without)
			took += atOnce(b, conns, each, ours, &with)
		}
		asked := conns * (rounds*each + 10)
		if got := w.Text(b, "SELECT count(DISTINCT workspace_id)::text FROM tendril.claims WHERE state = 'running'"); got != strconv.Itoa(asked+1) {
			b.Fatalf("%s workspaces run, want %d and the busy one", got, asked)
		}
	}
	b.ReportMetric(float64(len(without))/bareTook.Seconds(), "bare-claims-/s")
	b.ReportMetric(float64(len(with))/took.Seconds(), "claims-/s")
	without.report(b, "bare-", 50, 99)
	with.report(b, "", 50, 99)
	only(b)
}

// atOnce does something n times on each of some connections, all at once, and
// returns how long that took. It notes each time taken.
func atOnce(b *testing.B, conns, n int, do func(conn int) error, times *series) time.Duration {
	b.Helper()
	taken, errs := make([]series, conns), make([]error, conns)
	var all sync.WaitGroup
	began := time.Now()
	for i := range conns {
		all.Go(func() {
			for range n {
				one := time.Now()
				if errs[i] = do(i); errs[i] != nil {
					return
				}
				taken[i].add(time.Since(one))
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	if times != nil {
		for _, some := range taken {
			*times = append(*times, some...)
		}
	}
	return took
}
