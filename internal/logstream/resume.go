package logstream

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// Resume returns a Writer that goes on with a dead child's spool, so that the
// agent can say what became of the run. The files must be open for reading as
// well as for appending. The Writer begins a chunk of its own: the child's last
// one may have been delivered already. So may the tail, if there is one: then
// SYSTEM lines go to its end.
func Resume(spool *os.File, tail Tail) (*Writer, error) {
	r := NewReader(spool)
	r.Final()
	for {
		_, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("resume: %w", err)
		}
	}
	torn, err := endsTorn(spool, r.offset)
	if err != nil {
		return nil, fmt.Errorf("resume: %w", err)
	}
	end, err := resumeTail(tail)
	if err != nil {
		return nil, fmt.Errorf("resume: %w", err)
	}
	w := newWriter(spoolFile{file: spool, spare: end, torn: torn}, nil)
	w.limit = &limit{total: math.MaxInt64, begun: end.head.Segment > 0, tail: end}
	w.chunk, w.updates = r.order.chunk, r.order.update
	return w, nil
}

// endsTorn reports whether a spool of the given size lacks its last newline.
func endsTorn(spool io.ReaderAt, size int64) (bool, error) {
	if size == 0 {
		return false, nil
	}
	last := make([]byte, 1)
	if _, err := spool.ReadAt(last, size-1); err != nil {
		return false, fmt.Errorf("read the spool: %w", err)
	}
	return last[0] != '\n', nil
}
