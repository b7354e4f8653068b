package delivery

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// restored is a queue that goes back to keep chunks while a call, the first one
// that begins at or after from, is on its way. It takes its time.
type restored struct {
	memQueue
	from int64
	keep int
	took time.Duration
}

func (q *restored) AppendLog(ctx context.Context, claim uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	time.Sleep(q.took)
	q.mu.Lock()
	if q.from > 0 && first >= q.from {
		q.chunks, q.from = q.chunks[:q.keep], 0
	}
	q.mu.Unlock()
	return q.memQueue.AppendLog(context.WithoutCancel(ctx), claim, first, chunks)
}

// backlog makes a dead child's spool of more full chunks than that, with updates
// among them, and returns what pumps it, and its text.
func backlog(t *testing.T, chunks int) (pump func(Queue) *Pump, text string) {
	t.Helper()
	f := newSpool(t)
	w := spool.NewWriter(f, nil)
	var all strings.Builder
	for n := range chunks {
		line := fmt.Sprintf("chunk %d ", n) + strings.Repeat("x", provision.ChunkTarget) + "\n"
		write(t, w, provision.Stdout, line)
		all.WriteString(line)
		if n%100 == 99 {
			if err := w.Update(processing(provision.StagePlan)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Update(ended(provision.Success)); err != nil {
		t.Fatal(err)
	}
	closeWriter(t, w)
	return func(q Queue) *Pump { return NewPump(q, uuid.New(), f, PumpOptions{}) }, all.String()
}

// TestPumpGoesBackWhileABatchIsInFlight: the database is restored from a backup
// while one batch is on its way and the next is collected. Both are sent again,
// with what the backup lacks, and no update is reported twice.
func TestPumpGoesBackWhileABatchIsInFlight(t *testing.T) {
	t.Parallel()
	for _, keep := range []int{0, 1, 30, 99} {
		t.Run(fmt.Sprintf("to %d chunks", keep), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				pump, text := backlog(t, 250)
				q := &restored{from: 101, keep: keep, took: 50 * time.Millisecond}
				d, err := pump(q).Run(t.Context(), nil, closed())
				if err != nil || d.Result == nil || d.NextChunk != int64(len(q.chunks))+1 {
					t.Errorf("Run() = %+v, %v, want SUCCESS, next chunk %d", d, err, len(q.chunks)+1)
				}
				if q.from != 0 || q.text() != text {
					t.Errorf("stored %d bytes, want %d, each once and in order", len(q.text()), len(text))
				}
				if last := q.order[len(q.order)-1]; len(q.reports) != 3 || last != "report SUCCESS" {
					t.Errorf("%d reports, the last thing is %s; want 3, report SUCCESS", len(q.reports), last)
				}
			})
		})
	}
}

// TestPumpEndsWhileABatchIsInFlight: what it says that the database expects next
// is what the last answer said, also after a restore.
func TestPumpEndsWhileABatchIsInFlight(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]int64{"stored": 0, "restored meanwhile": 40} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				pump, _ := backlog(t, 90)
				q := &restored{from: from, keep: 7, took: time.Second}
				ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond) // in the second call
				defer cancel()
				d, err := pump(q).Run(ctx, nil, closed())
				if err == nil || d.NextChunk != int64(len(q.chunks))+1 {
					t.Errorf("Run() = %+v, %v, want next chunk %d", d, err, len(q.chunks)+1)
				}
				if restored := len(q.chunks) == 7; q.from != 0 || restored != (from > 0) {
					t.Errorf("the queue has %d chunks", len(q.chunks))
				}
			})
		})
	}
}
