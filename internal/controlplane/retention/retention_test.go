package retention_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/retention"
)

// What is due is told before, archived to the last row, and its room is used again
// or given back; of what is young nothing changes, and no byte of any log.
func TestArchiveAndCompact(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.logs(t, 60, 400, 300, "9 days")
	w.logs(t, 3, 3, 9000, "10 days")
	w.logs(t, 4, 500, 300, "1 hour") // at the end of the table
	before := w.digest(t)
	due, err := w.session.Due(t.Context(), "")
	if want := (retention.Due{Logs: 63, Rows: 24_009, Bytes: 60*400*300 + 9*9000}); err != nil || due != want {
		t.Errorf("Due() = %+v, %v, want %+v", due, err, want)
	}
	for older, want := range map[string]int64{"30 days": 0, "228 hours": 3, "1 second": 63} { // never younger than a day: lines may still come
		if due, err := w.session.Due(t.Context(), older); err != nil || due.Logs != want {
			t.Errorf("Due(%s) = %+v, %v, want %d logs", older, due, err, want)
		}
	}
	full := w.sizes(t)
	steps := 0
	done, err := w.session.Archive(t.Context(), "", func(retention.Archived) { steps++ })
	if want := (retention.Archived{Logs: 63, Rows: 24_009, Bytes: 60*400*300 + 9*9000}); err != nil || done != want || steps < 2 {
		t.Errorf("Archive() = %+v, %v in %d steps, want %+v in some", done, err, steps, want)
	}
	if got := w.digest(t); got != before {
		t.Error("what is read of the logs has changed")
	}
	if err := w.session.Vacuum(t.Context()); err != nil {
		t.Fatal(err)
	}
	if kept := w.sizes(t); kept.Rows < full.Rows*9/10 {
		t.Fatalf("rows take %d bytes of %d after a VACUUM: young rows are not at the end, and the test shows nothing", kept.Rows, full.Rows)
	}
	moved, err := w.session.Compact(t.Context(), func(int64) {})
	if err != nil || moved < 2000 {
		t.Errorf("Compact() = %d rows moved, %v, want the 2000 that are young", moved, err)
	}
	got := w.sizes(t)
	if got.Rows > full.Rows/5 || got.Indexes > full.Indexes/5 || got.Total() > full.Total()/2 {
		t.Errorf("sizes = %+v, want a fraction of %+v", got, full)
	}
	if now := w.digest(t); now != before {
		t.Error("what is read of the logs has changed")
	}
	if err := w.session.Rewrite(t.Context()); err != nil {
		t.Error(err)
	}
	if now, least := w.digest(t), w.sizes(t); now != before || least.Rows > got.Rows {
		t.Errorf("after Rewrite() sizes are %+v, want no more than %+v, and the same logs", least, got)
	}
	if again, err := w.session.Archive(t.Context(), "", func(retention.Archived) {}); err != nil || again != (retention.Archived{}) {
		t.Errorf("Archive() again = %+v, %v, want nothing", again, err)
	}
}

func (w *world) sizes(t *testing.T) retention.Sizes {
	t.Helper()
	s, err := w.session.Sizes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Rows may be moved while others write, read and delete.
func TestCompactWhileAllGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.logs(t, 40, 400, 300, "9 days")
	w.logs(t, 10, 200, 300, "1 hour")
	if _, err := w.session.Archive(t.Context(), "", func(retention.Archived) {}); err != nil {
		t.Fatal(err)
	}
	var id uuid.UUID
	if err := w.Conn.QueryRow(t.Context(), "SELECT provision_id FROM public.provision_logs LIMIT 1").Scan(&id); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	var written int
	writer, reader, deleter := w.open(t), w.open(t), w.open(t)
	others.Go(func() {
		for ; ctx.Err() == nil; written++ {
			if _, err := writer.Exec(t.Context(), "SELECT tendril.system_line($1, 'more')", id); err != nil {
				t.Error(err)
				return
			}
		}
	})
	others.Go(func() {
		for ctx.Err() == nil {
			var rows, last int
			if err := reader.QueryRow(t.Context(), "SELECT count(*), max(seq) FROM tendril.log_page($1, 0, 1000000, 1000000000)", id).Scan(&rows, &last); err != nil || rows != last || rows < 200 {
				t.Errorf("a reader sees %d rows up to %d, %v", rows, last, err)
				return
			}
		}
	})
	others.Go(func() {
		for ctx.Err() == nil {
			if _, err := deleter.Exec(t.Context(), `DELETE FROM public.provisions WHERE id =
				(SELECT provision_id FROM public.provision_logs WHERE provision_id <> $1 ORDER BY ctid DESC LIMIT 1)`, id); err != nil {
				t.Error(err)
				return
			}
		}
	})
	_, err := w.session.Compact(t.Context(), func(int64) {})
	cancel()
	others.Wait()
	if err != nil {
		t.Errorf("Compact() = %v, want nil", err)
	}
	var rows, orphans int
	if err := w.Conn.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE provision_id = $1), count(*) FILTER (WHERE NOT EXISTS (SELECT FROM public.provisions p WHERE p.id = provision_id))
		FROM public.provision_logs`, id).Scan(&rows, &orphans); err != nil || rows != 200+written || orphans > 0 {
		t.Errorf("rows = %d, %d of no provision, %v, want %d and none", rows, orphans, err, 200+written)
	}
}

// One that is broken off half-way has done what it has done, and nothing by half.
func TestArchiveIsBrokenOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.logs(t, 30, 1500, 100, "9 days")
	before := w.digest(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := w.session.Archive(ctx, "", func(retention.Archived) { cancel() }); err == nil {
		t.Fatal("Archive() of a context that has ended = nil, want its error")
	}
	if got := w.digest(t); got != before {
		t.Error("what is read of the logs has changed")
	}
	again, err := retention.Open(t.Context(), w.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close(context.Background()) //nolint:errcheck // the test is over
	left, err := again.Due(t.Context(), "")
	if err != nil || left.Logs == 0 || left.Logs == 30 {
		t.Errorf("left after one step = %+v, %v, want some of the 30", left, err)
	}
	if rest, err := again.Archive(t.Context(), "", func(retention.Archived) {}); err != nil || rest.Logs != left.Logs {
		t.Errorf("going on = %+v, %v, want the %d logs that are left", rest, err, left.Logs)
	}
	if got := w.digest(t); got != before {
		t.Error("what is read of the logs has changed")
	}
}
