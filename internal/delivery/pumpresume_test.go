package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// TestPumpGoesBackWhenTheDatabaseLacksChunks: a database restored from a
// backup expects a number that was sent long ago.
func TestPumpGoesBackWhenTheDatabaseLacksChunks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := goLive(t, nil, false)
		for i := range 10 {
			write(t, l.w, provision.Stdout, fmt.Sprintf("line %d\n", i))
			l.update(processing(provision.StagePlan))
		}
		synctest.Wait()
		want := l.q.text()
		l.q.mu.Lock()
		l.q.chunks = l.q.chunks[:3]
		reports := len(l.q.reports)
		l.q.mu.Unlock()
		write(t, l.w, provision.Stdout, "the last line\n")
		l.update(ended(provision.Success))
		l.die()
		if got := l.q.text(); got != want+"the last line\n" {
			t.Errorf("stored %q, want %q", got, want+"the last line\n")
		}
		if got := len(l.q.reports); got != reports+1 {
			t.Errorf("%d reports, want %d: none is repeated", got, reports+1)
		}
		if l.err != nil || l.got.Result == nil || l.got.NextChunk != 12 {
			t.Errorf("Run() = %+v, %v, want SUCCESS, next chunk 12", l.got, l.err)
		}
	})
}

// stuckQueue never stores anything and says so.
type stuckQueue struct {
	memQueue
	calls int
}

func (q *stuckQueue) AppendLog(context.Context, uuid.UUID, int64, []provision.LogChunk) (int64, error) {
	q.calls++
	return 1, nil
}

func TestPumpDoesNotSpinWhenNothingIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := newSpool(t)
		w := spool.NewWriter(file, nil)
		write(t, w, provision.Stdout, "a\n")
		closeWriter(t, w)
		q := &stuckQueue{}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if _, err := NewPump(q, uuid.New(), file, PumpOptions{}).Run(ctx, nil, closed()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run() = %v, want %v", err, context.DeadlineExceeded)
		}
		if q.calls > 250 {
			t.Errorf("%d calls in ten minutes, want one in 5 s or so", q.calls)
		}
	})
}

func TestPumpResumes(t *testing.T) {
	t.Parallel()
	file := newSpool(t)
	w := spool.NewWriter(file, nil)
	for i, stage := range []provision.Stage{provision.StageCheckout, provision.StageInit, provision.StagePlan} {
		write(t, w, provision.Stdout, fmt.Sprintf("line %d\n", i))
		if err := w.Update(processing(stage)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, w, provision.Stdout, "line 3\n")
	if _, err := w.UpdateAck(processing(provision.StageApply)); err != nil {
		t.Fatal(err)
	}
	write(t, w, provision.Stdout, "line 4\n")
	if err := w.Update(ended(provision.Success)); err != nil {
		t.Fatal(err)
	}
	closeWriter(t, w)
	for name, tt := range map[string]struct{ stored, want string }{
		"nothing":    {"", "chunk 1, report checkout, chunk 2, report init, chunk 3, report plan, chunk 4, chunk 5, report SUCCESS"},
		"some":       {"12", "report init, chunk 3, report plan, chunk 4, chunk 5, report SUCCESS"},
		"all lines":  {"12345", "report SUCCESS"},
		"more still": {"1234567", "report SUCCESS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := &memQueue{}
			for range tt.stored {
				q.chunks = append(q.chunks, provision.LogChunk{Stream: provision.Stdout, Text: "x"})
			}
			acked := func(n int64, _ *provision.Failure) { t.Errorf("Acked(%d), want no call: no one waits", n) }
			d, err := NewPump(q, uuid.New(), file, PumpOptions{Resume: true, Acked: acked}).Run(t.Context(), nil, closed())
			if err != nil {
				t.Fatalf("Run() = %v", err)
			}
			if got := q.happened(); got != tt.want {
				t.Errorf("the queue has got %s, want %s", got, tt.want)
			}
			if q.appends[0] != 0 {
				t.Errorf("the first call carries %d chunks, want none: it asks", q.appends[0])
			}
			if got, want := q.carried(), max(0, 5-len(tt.stored)); got != want {
				t.Errorf("%d chunks were sent, want %d: the others are stored", got, want)
			}
			if d.Result == nil || d.NextChunk != int64(max(5, len(tt.stored)))+1 {
				t.Errorf("Run() = %+v, want SUCCESS", d)
			}
		})
	}
}

// TestPumpSkipsWhatTheDatabaseHas: another delivery of the same spool was ahead.
func TestPumpSkipsWhatTheDatabaseHas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := goLive(t, nil, false)
		for range 10 {
			l.q.chunks = append(l.q.chunks, provision.LogChunk{Text: "x"})
		}
		for i := range 11 {
			write(t, l.w, provision.Stdout, fmt.Sprintf("line %d\n", i))
			time.Sleep(provision.FlushAfter)
		}
		l.update(ended(provision.Success))
		l.die()
		l.happened("chunk 11, report SUCCESS")
		if got := l.q.carried(); got != 2 {
			t.Errorf("%d chunks were sent, want 2: the first, and the one that was not there", got)
		}
		if l.err != nil || l.got.NextChunk != 12 {
			t.Errorf("Run() = %+v, %v, want next chunk 12", l.got, l.err)
		}
	})
}

// TestPumpDoesNotAnnounceWhatADeadChildNeverBegan: the database is away, the
// child asks to apply and dies.
func TestPumpDoesNotAnnounceWhatADeadChildNeverBegan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := goLive(t, always("report apply", errAway), false)
		l.updateAck(processing(provision.StageApply))
		time.Sleep(time.Minute)
		l.back()
		l.die()
		l.happened("")
		if l.err != nil || len(l.acks) != 0 || l.retries == 0 {
			t.Errorf("Run() = %v, acks %v after %d retries, want no ack", l.err, l.acks, l.retries)
		}
	})
}

// TestPumpFillsWhatIsDamaged: numbers must have no gap, or nothing behind it
// could be stored.
func TestPumpFillsWhatIsDamaged(t *testing.T) {
	t.Parallel()
	file := newSpool(t)
	content := lineA + lineB + strings.Replace(lineC, "at", "", 1) + strings.Replace(lineC, `"c":2`, `"c":3`, 1)
	if _, err := file.WriteString(content + `{"n":1,"report":{"status":"FAILED"}}` + "\n"); err != nil {
		t.Fatal(err)
	}
	q := &memQueue{}
	d := run(t, NewPump(q, uuid.New(), file, PumpOptions{}))
	if got, want := q.text(), "a\nb\x1b[0m\n"+damaged+"c\n"; got != want {
		t.Errorf("stored %q, want %q", got, want)
	}
	if d.Result == nil || d.Skipped != 1 || len(q.chunks) != 3 {
		t.Errorf("Run() = %+v, %d chunks, want FAILED, one line skipped, 3 chunks", d, len(q.chunks))
	}
	if got, want := q.chunks[0].EmittedAt, time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC); !got.Equal(want) {
		t.Errorf("chunk 1 was emitted at %v, want %v: that of its first byte", got, want)
	}
}
