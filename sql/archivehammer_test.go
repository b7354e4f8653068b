package sql_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// Logs are archived by several at once whose connections are killed, put back and
// added to, and whoever reads meanwhile sees each row once and in order.
func TestReadersNoticeNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	w := newWorld(t, db.Conn(t))
	agent := w.newAgent(t, "one")
	ids := []uuid.UUID{w.over(t, agent, "8 days", 200, 100), w.over(t, agent, "8 days", 200, 10), w.over(t, agent, "8 days", 40, 9000)}
	want := map[uuid.UUID][]string{}
	for _, id := range ids {
		want[id], _ = w.readLog(t, w.conn, id, 0, 1000, 1<<20)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var busy, readers sync.WaitGroup
	var archived, restored, killed, added atomic.Int64
	// often runs a statement again and again, by new connections where one was killed.
	often := func(statement string, count *atomic.Int64, args func() []any) {
		busy.Go(func() {
			for ctx.Err() == nil {
				conn, err := pgx.Connect(ctx, db.URL)
				if err != nil {
					continue // the killer was here, or the end
				}
				for err == nil && ctx.Err() == nil {
					var did int64
					if err = conn.QueryRow(ctx, statement, args()...).Scan(&did); err == nil {
						count.Add(did)
					}
				}
				if answer := answerOf(err); err != nil && ctx.Err() == nil && !slices.Contains([]string{"57P01", "55P03", "PT503"}, answer) && len(answer) == 5 {
					t.Errorf("%s: %v", statement, err)
				}
				_ = conn.Close(context.Background())
			}
		})
	}
	one := func() []any { return []any{ids[rand.N(len(ids))]} }
	for range 2 {
		often("SELECT logs FROM tendril.archive_logs(p_rows => 1)", &archived, func() []any { return nil })
	}
	often("SELECT (tendril.restore_log($1) > 0)::int", &restored, one)
	often("SELECT count(*) FROM (SELECT tendril.system_line($1, 'late'), pg_sleep(0.005)) l", &added, one)
	// The next is killed when something was archived since: on a slow machine none would end.
	var seen int64
	often(`SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid, pg_sleep(0.1) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE '%archive_logs(p_rows%' AND pid <> pg_backend_pid() LIMIT 1) a`, &killed, func() []any {
		for limit := patience.Begin(time.Minute); archived.Load() == seen && ctx.Err() == nil; {
			limit.Pause()
		}
		seen = archived.Load()
		return nil
	})
	for range 2 {
		conn := db.Conn(t)
		readers.Go(func() {
			for i := 0; i < 20 || archived.Load() < 20 || restored.Load() < 20 || killed.Load() < 3; i++ {
				id := ids[rand.N(len(ids))]
				after := rand.N(40)
				got, _ := w.readLog(t, conn, id, int64(after), 7, 1<<20)
				if rest := want[id][after:]; len(got) < len(rest) || !slices.Equal(got[:len(rest)], rest) {
					t.Errorf("rows after %d: %d of the %d that were there", after, len(got), len(rest))
					return
				}
				for n, row := range got {
					if !strings.HasPrefix(row, fmt.Sprintf("%d ", after+n+1)) {
						t.Errorf("row %.20q in place of %d", row, after+n+1)
						return
					}
				}
			}
		})
	}
	readers.Wait()
	cancel()
	busy.Wait()
	awaitAlone(t, w.conn, 3) // this connection and the readers': what was cancelled may go on in the server for a moment
	t.Logf("archived %d times, put back %d times, %d lines added, %d connections killed", archived.Load(), restored.Load(), added.Load(), killed.Load())
	for _, id := range ids {
		if got, _ := w.readLog(t, w.conn, id, 0, 1000, 1<<20); int64(len(got)) != nextSeq(t, w.conn, id)-1 {
			t.Errorf("rows at the end = %d, want %d", len(got), nextSeq(t, w.conn, id)-1)
		}
	}
}

func nextSeq(t *testing.T, conn *pgx.Conn, id uuid.UUID) int64 {
	t.Helper()
	return one[int64](t, conn, "SELECT next_seq FROM tendril.log_heads WHERE provision_id = $1", id)
}

// Whatever happens to a log in whatever order, what is read of it is what was
// written and is not deleted.
func TestArchiveModel(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	mustExec(t, w.conn, "UPDATE tendril.settings SET late_log = '1 second', log_archive_after = '1 day', log_delete_after = '2 days' WHERE only_row")
	rapid.Check(t, func(rt *rapid.T) {
		id := w.over(t, agent, "36 hours", 0, 0)
		type row struct {
			seq  int64
			text string
		}
		var rows []row
		next := int64(1)
		aged := false
		rt.Repeat(map[string]func(*rapid.T){
			"lines": func(rt *rapid.T) {
				texts := rapid.SliceOfN(rapid.String().Filter(func(s string) bool { return !strings.Contains(s, "\x00") }), 1, 30).Draw(rt, "texts")
				mustExec(t, w.conn, "SELECT tendril.system_line($1, text) FROM unnest($2::text[]) WITH ORDINALITY t (text, nth) ORDER BY nth", id, texts)
				for _, text := range texts {
					rows = append(rows, row{next, text + "\n"})
					next++
				}
			},
			"archive": func(*rapid.T) { w.archive(t, "") },
			"part":    func(*rapid.T) { mustExec(t, w.conn, "SELECT tendril.archive_part($1, $2)", id, w.org) },
			"put back": func(*rapid.T) {
				mustExec(t, w.conn, "SELECT tendril.restore_log($1)", id)
			},
			"remove a row by hand": func(rt *rapid.T) {
				seq := rapid.Int64Range(1, 40).Draw(rt, "seq")
				if one[int](t, w.conn, "WITH d AS (DELETE FROM public.provision_logs WHERE provision_id = $1 AND seq = $2 RETURNING seq) SELECT count(*) FROM d", id, seq) > 0 {
					rows = slices.DeleteFunc(rows, func(r row) bool { return r.seq == seq })
				}
			},
			"delete": func(rt *rapid.T) {
				if !aged {
					aged = true
					w.age(t, id, "36 hours")
				}
				const told = "SELECT count(*) FROM public.audit_events WHERE action = 'delete_log' AND object_id = $1"
				before := one[int](t, w.conn, told, id)
				mustExec(t, w.conn, "SELECT tendril.delete_logs()") // those of sequences before as well
				if one[int](t, w.conn, told, id) > before {
					rows, next = []row{{1, one[string](t, w.conn, "SELECT log_chunk FROM public.provision_logs WHERE provision_id = $1 AND seq = 1", id)}}, 2
				}
			},
			"": func(rt *rapid.T) {
				after := rapid.Int64Range(0, next).Draw(rt, "after")
				limit := rapid.IntRange(1, 50).Draw(rt, "limit")
				rest := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.seq <= after })
				limit = max(limit, len(rest)/4) // few pages show as much as many
				for {
					found, err := w.conn.Query(t.Context(), "SELECT seq, log_chunk FROM tendril.log_page($1, $2, $3, 1000)", id, after, limit)
					if err != nil {
						rt.Fatal(err)
					}
					got, err := pgx.CollectRows(found, func(r pgx.CollectableRow) (x row, err error) { return x, r.Scan(&x.seq, &x.text) })
					if err != nil || len(got) > min(limit, len(rest)) || !slices.Equal(got, rest[:len(got)]) || len(got) == 0 && len(rest) > 0 {
						rt.Fatalf("a page after %d = %v, %v, want the next of %v", after, got, err, rest)
					}
					if len(got) == 0 {
						return
					}
					after, rest = got[len(got)-1].seq, rest[len(got):]
				}
			},
		})
	})
}
