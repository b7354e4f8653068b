package delivery

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// sizes is a queue that notes how much text each call carries.
type sizes struct {
	memQueue
	carried []int
}

func (s *sizes) AppendLog(ctx context.Context, claim uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	size := 0
	for _, c := range chunks {
		size += len(c.Text)
	}
	s.carried = append(s.carried, size)
	return s.memQueue.AppendLog(ctx, claim, first, chunks)
}

// TestPumpFarBehindFillsItsCalls: as far as they may be, of whatever lines the
// text is.
func TestPumpFarBehindFillsItsCalls(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{
		"short lines": "a line\n", "lines": strings.Repeat("x", 120) + "\n",
		"long lines": strings.Repeat("x", 11<<10) + "\n", "one line": strings.Repeat("é", 4<<10),
	} {
		file := newSpool(t)
		w := spool.NewWriter(file, nil)
		block := []byte(strings.Repeat(line, 1+60_000/len(line)))
		for written := 0; written < 3<<20; written += len(block) {
			if _, err := w.Stream(provision.Stdout).Write(block); err != nil {
				t.Fatal(err)
			}
		}
		closeWriter(t, w)
		q := &sizes{}
		run(t, NewPump(q, uuid.New(), file, PumpOptions{}))
		for i, size := range q.carried[:len(q.carried)-1] {
			if size > provision.MaxBatch || size < provision.MaxBatch*7/8 {
				t.Errorf("%s: call %d carries %d bytes, want nearly %d", name, i+1, size, provision.MaxBatch)
			}
		}
		if last := q.carried[len(q.carried)-1]; last > provision.MaxBatch {
			t.Errorf("%s: the last call carries %d bytes, want at most %d", name, last, provision.MaxBatch)
		}
	}
}

// TestStorm prints a second's worth of a hundred thousand lines, with lines of
// a megabyte, NUL and broken UTF-8 among them, on two streams, while a Pump
// delivers them: the database has every byte that it can store, in order.
func TestStorm(t *testing.T) {
	t.Parallel()
	const lines = 100_000
	file := newSpool(t)
	wake, dead := make(chan struct{}, 1), make(chan struct{})
	w := spool.NewWriter(file, ringer(wake))
	w.Gather()
	q := &memQueue{}
	var delivered Delivered
	var failed error
	var pumping sync.WaitGroup
	pumping.Go(func() {
		delivered, failed = NewPump(q, uuid.New(), file, PumpOptions{}).Run(t.Context(), wake, dead)
	})
	stored := strings.NewReplacer("\x00", "\ufffd", "\xff\xc3", "\ufffd\ufffd")
	want := map[provision.Stream]*bytes.Buffer{provision.Stdout: {}, provision.Stderr: {}}
	began := time.Now()
	for n := range lines {
		stream, line := provision.Stdout, fmt.Sprintf("line %d of the storm\n", n)
		switch n % 1000 {
		case 1:
			line = fmt.Sprintf("nul \x00 and \xff\xc3 in line %d\n", n)
		case 2, 3, 4:
			stream = provision.Stderr
		}
		if n%20_000 == 5 {
			line = strings.Repeat("m", 1<<20) + line
		}
		write(t, w, stream, line)
		want[stream].WriteString(stored.Replace(line))
	}
	took := time.Since(began)
	closeWriter(t, w)
	close(dead)
	pumping.Wait()
	if failed != nil || delivered.Lines != lines || delivered.Skipped != 0 {
		t.Errorf("Run() = %+v, %v, want %d lines", delivered, failed, lines)
	}
	for stream, want := range want {
		var got strings.Builder
		for _, c := range q.chunks {
			if c.Stream == stream {
				got.WriteString(c.Text)
			}
		}
		if got.String() != want.String() {
			t.Errorf("%s has %d bytes, want the %d printed, in order", stream, got.Len(), want.Len())
		}
	}
	t.Logf("%d lines in %v", lines, took)
}
