package spool

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tendril-run/tendril/internal/provision"
)

// TailReader reads a dead child's Tail as records that follow those of its
// spool. They depend on nothing but the files and the number they begin at, so
// whoever delivers them cuts the same chunks.
type TailReader struct {
	segments []tailSegment // those still to be read, the oldest first
	told     bool          // the line that says what is left out
	skipped  int           // lines that nobody can read
	text     []byte

	now   Record // the record at hand, its text as far as it is not returned yet
	chunk int64  // the last number given
	open  bool   // whether that chunk is
	size  int
}

type tailSegment struct {
	segmentHead
	reader *Reader
}

// NewTailReader returns a TailReader that begins after the given chunk.
func NewTailReader(tail Tail, chunk int64) *TailReader {
	t := &TailReader{chunk: chunk}
	for i, file := range tail {
		if head, length, used := tail.head(i); used {
			t.segments = append(t.segments, tailSegment{head, &Reader{spool: file, offset: length, final: true}})
		}
	}
	slices.SortFunc(t.segments, func(a, b tailSegment) int { return cmp.Compare(a.Segment, b.Segment) })
	return t
}

// Skipped returns how many lines were skipped that nobody can read.
func (t *TailReader) Skipped() int { return t.skipped }

// Next returns the next piece of text, or io.EOF. Its text lives until the next
// call.
func (t *TailReader) Next() (Record, error) {
	for len(t.now.Text) == 0 {
		last := t.now
		next, err := t.record()
		if err != nil {
			return Record{}, err
		}
		if !t.told {
			t.told = true
			t.chunk++
			return Record{Chunk: t.chunk, Stream: provision.System, At: next.At, Text: t.leftOut(), End: true}, nil
		}
		if next.Stream != last.Stream || next.Chunk != last.Chunk {
			t.open = false
		}
	}
	if !t.open {
		t.chunk++
		t.size = 0
	}
	n, full := cut(t.now.Text, t.size)
	r := Record{Chunk: t.chunk, Stream: t.now.Stream, At: t.now.At, Text: t.now.Text[:n], End: full}
	t.size += n
	t.open = !full
	t.now.Text = t.now.Text[n:]
	return r, nil
}

// record makes the next record the one at hand.
func (t *TailReader) record() (Record, error) {
	for len(t.segments) > 0 {
		line, err := t.segments[0].reader.line()
		if errors.Is(err, io.EOF) {
			t.segments = t.segments[1:]
			continue
		}
		if err != nil {
			return Record{}, fmt.Errorf("read the log's tail: %w", err)
		}
		r, text, err := decode(line, t.text)
		t.text = text
		switch {
		case err == nil && r.Stream != "":
			t.now = r
			return r, nil
		case len(line) > 0:
			t.skipped++
		}
	}
	return Record{}, io.EOF
}

// leftOut says what is missing between the spool's first half and the tail.
func (t *TailReader) leftOut() []byte {
	head := t.segments[0].segmentHead
	if head.Bytes == 0 {
		return []byte("Nothing is left out of this log: all that came after the limit was reached follows, " +
			"with what was shown of it above once more.\n")
	}
	return fmt.Appendf(nil, "%s are left out of this log, but for the samples above. "+
		"What came after them follows whole, with what was shown of it above once more.\n", extent(head.Lines, head.Bytes))
}
