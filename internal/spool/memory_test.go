package spool

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

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
	mostMemory = 6 << 20  // of a Writer
)

// TestMemoryIsBoundedBeyondTheLimit: of a log that is far beyond it neither
// memory nor the disk holds more for its being longer.
func TestMemoryIsBoundedBeyondTheLimit(t *testing.T) {
	before := heap()
	w, spool, tail := newLimited(t, leastLimit)
	block := bytes.Repeat([]byte("module.vpc.aws_subnet.private[3]: Still creating... [10s elapsed]\n"), 1000)
	for written := 0; written < huge; written += len(block) {
		if _, err := w.Stream(provision.Stdout).Write(block); err != nil {
			t.Fatal(err)
		}
	}
	writing := heap() - before
	closeWriter(t, w)
	if writing > mostMemory {
		t.Errorf("the Writer takes %d bytes, want at most %d", writing, mostMemory)
	}
	wantFiles(t, spool, tail, leastLimit)
	if log := stored(t, spool, tail); !strings.HasSuffix(log[len(log)-1].Text, "[10s elapsed]\n") {
		t.Errorf("the log ends with %.60q, want what was printed last", log[len(log)-1].Text)
	}
}

// forever is a file of nothing but one byte, as far as it is read.
type forever struct {
	of   byte
	size int64
}

func (f forever) ReadAt(p []byte, at int64) (int, error) {
	n := int(min(int64(len(p)), f.size-at))
	if n <= 0 {
		return 0, io.EOF
	}
	for i := range p[:n] {
		p[i] = f.of
	}
	return n, nil
}

// A line without an end is not kept: a Reader holds no more than a record may have.
func TestReaderHoldsNoMoreThanARecord(t *testing.T) {
	t.Parallel()
	r := NewReader(forever{'x', huge})
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Fatalf("Next() = %v, want %v", err, io.EOF)
	}
	if r.Offset() != huge || cap(r.buf) > 4*maxRecord {
		t.Errorf("after %d bytes the Reader's buffer has %d, want at most %d after %d", r.Offset(), cap(r.buf), 4*maxRecord, huge)
	}
}
