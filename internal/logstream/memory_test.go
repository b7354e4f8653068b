package logstream

import (
	"bytes"
	"context"
	"runtime"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// discard is a queue that stores nothing and looks at the heap now and then.
type discard struct {
	next  int64
	bytes int64
	calls int
	heap  uint64 // the most that was in use
}

func (d *discard) AppendLog(_ context.Context, _ uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	for _, c := range chunks {
		d.bytes += int64(len(c.Text))
	}
	d.next = first + int64(len(chunks))
	if d.calls++; d.calls%50 == 0 {
		d.heap = max(d.heap, heap())
	}
	return d.next, nil
}

func (d *discard) Report(context.Context, uuid.UUID, provision.Report) error { return nil }

// heap returns how many bytes of it are in use.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemoryIsBounded is not parallel: it measures the whole process.
func TestMemoryIsBounded(t *testing.T) {
	const (
		size  = 200 << 20
		limit = 6 << 20
	)
	before := heap()
	spool := newSpool(t)
	w := NewWriter(spool, nil)
	block := bytes.Repeat([]byte("module.vpc.aws_subnet.private[3]: Still creating... [10s elapsed]\n"), 1000)
	var written int64
	for written < size {
		n, err := w.Stream(provision.Stdout).Write(block)
		if err != nil {
			t.Fatal(err)
		}
		written += int64(n)
	}
	writing := heap() - before
	closeWriter(t, w)

	q := &discard{}
	d := run(t, NewPump(q, uuid.New(), spool, PumpOptions{}))
	if q.bytes != written || d.Bytes != written {
		t.Errorf("delivered %d bytes, counted %d, want %d", q.bytes, d.Bytes, written)
	}
	if writing > limit {
		t.Errorf("the Writer takes %d bytes, want at most %d", writing, limit)
	}
	if q.heap > before+limit {
		t.Errorf("the Pump takes %d bytes, want at most %d", q.heap-before, limit)
	}
}
