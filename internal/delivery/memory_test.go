package delivery

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/spool"
)

// discard is a queue that stores nothing and looks at the heap now and then.
type discard struct {
	next  int64
	bytes int64
	calls int
	heap  int64 // the most that was in use
}

func (d *discard) AppendLog(_ context.Context, _ uuid.UUID, first int64, chunks []provision.LogChunk) (int64, error) {
	if len(chunks) == 0 {
		return max(d.next, first), nil // it is asked what it has
	}
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
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools had before the first one
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What the tests below hold against the heap. They are not parallel: they
// measure the whole process.
const (
	huge       = 64 << 20 // a log that must not be in memory
	mostMemory = 6 << 20  // of a Writer or a Pump
)

func TestMemoryIsBounded(t *testing.T) {
	before := heap()
	file := newSpool(t)
	w := spool.NewWriter(file, nil)
	block := bytes.Repeat([]byte("module.vpc.aws_subnet.private[3]: Still creating... [10s elapsed]\n"), 1000)
	var written int64
	for written < huge {
		n, err := w.Stream(provision.Stdout).Write(block)
		if err != nil {
			t.Fatal(err)
		}
		written += int64(n)
	}
	writing := heap() - before
	closeWriter(t, w)

	q := &discard{}
	d := run(t, NewPump(q, uuid.New(), file, PumpOptions{}))
	if q.bytes != written || d.Bytes != written {
		t.Errorf("delivered %d bytes, counted %d, want %d", q.bytes, d.Bytes, written)
	}
	if writing > mostMemory {
		t.Errorf("the Writer takes %d bytes, want at most %d", writing, mostMemory)
	}
	if q.heap > before+mostMemory {
		t.Errorf("the Pump takes %d bytes, want at most %d", q.heap-before, mostMemory)
	}
	wantRestartBounded(t, file, d.NextChunk-1)
}

// wantRestartBounded is what an agent does that starts and finds the spool of a
// dead child, of which the database has a third.
func wantRestartBounded(t *testing.T, file *os.File, last int64) {
	t.Helper()
	before := heap()
	resumed, err := spool.Resume(file, spool.Tail{})
	if err != nil {
		t.Fatal(err)
	}
	if got := heap(); got > before+mostMemory {
		t.Errorf("Resume() takes %d bytes, want at most %d", got-before, mostMemory)
	}
	resumed.System("the child died")
	closeWriter(t, resumed)
	q := &discard{next: last / 3}
	d := run(t, NewPump(q, uuid.New(), file, PumpOptions{Resume: true}))
	if d.NextChunk != last+2 || q.bytes < huge*6/10 || q.bytes > huge*7/10 {
		t.Errorf("Run() = %+v after %d bytes, want the last two thirds of %d chunks", d, q.bytes, last+1)
	}
	if q.heap > before+mostMemory {
		t.Errorf("the Pump takes %d bytes, want at most %d", q.heap-before, mostMemory)
	}
}

// TestMemoryIsBoundedOverGarbage: whatever has got into a spool, a Reader holds
// no more of it than a record may have.
func TestMemoryIsBoundedOverGarbage(t *testing.T) {
	record := []byte(`{"c":1,"s":"STDOUT","at":"2026-01-02T03:04:05Z","d":"` + "\n")
	for name, garbage := range map[string][]byte{
		"one line without an end": bytes.Repeat([]byte("x"), 1<<20),
		"zeros":                   make([]byte, 1<<20),
		"one record without end":  bytes.Repeat(record[:len(record)-1], (1<<20)/len(record)),
		"brackets":                bytes.Repeat([]byte("["), 1<<20),
	} {
		file := newSpool(t)
		write := func(p []byte) {
			t.Helper()
			if _, err := file.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		write([]byte(lineA))
		for range huge / (1 << 20) {
			write(garbage)
		}
		write([]byte("\n" + lineC))
		before := heap()
		resumed, err := spool.Resume(file, spool.Tail{})
		if err != nil {
			t.Fatal(err)
		}
		resumed.System("the child died")
		closeWriter(t, resumed)
		q := &memQueue{}
		p := NewPump(q, uuid.New(), file, PumpOptions{Resume: true})
		d := run(t, p)
		if got, want := q.text(), "a\nc\nthe child died\n"; got != want || d.Skipped != 1 {
			t.Errorf("%s: stored %q, %d lines skipped, want %q, 1", name, got, d.Skipped, want)
		}
		if got := heap(); got > before+mostMemory {
			t.Errorf("%s: the Pump takes %d bytes, want at most %d", name, got-before, mostMemory)
		}
		if err := os.Truncate(file.Name(), 0); err != nil {
			t.Fatal(err)
		}
	}
}
