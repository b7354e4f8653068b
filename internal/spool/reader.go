package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/tendril-run/tendril/internal/provision"
)

// readBlock is how much a Reader asks of the file at once, in bytes. Its
// buffer grows only for a record that is larger, up to maxRecord.
const readBlock = 128 << 10

// Reader reads the records of a spool in order while it is still being
// written. Lines that are no record, are too long for one, or end no chunk are
// skipped and counted; the records are numbered in the order of the file (see
// sequence). Its memory is bounded whatever the file holds. Its methods are for
// one goroutine at a time.
type Reader struct {
	spool   io.ReaderAt
	offset  int64  // where in the file buf ends
	buf     []byte // read and not yet consumed
	start   int    // where in buf the next line begins
	scanned int    // how much of buf from start holds no newline
	tooLong bool   // the line at hand is being skipped
	final   bool
	skipped int
	order   sequence
	text    []byte
}

// NewReader returns a Reader at the start of a spool.
func NewReader(spool io.ReaderAt) *Reader { return &Reader{spool: spool} }

// Final says that nothing will be appended any more: a last line without a
// newline is then a record if it is whole, and skipped if it is torn.
func (r *Reader) Final() { r.final = true }

// Offset is how much of the file was read.
func (r *Reader) Offset() int64 { return r.offset }

// Skipped returns how many lines were skipped.
func (r *Reader) Skipped() int { return r.skipped }

// Rewind goes back to the start of the spool.
func (r *Reader) Rewind() {
	*r = Reader{spool: r.spool, final: r.final, buf: r.buf[:0], text: r.text}
}

// Next returns the next record, or io.EOF when there is none yet: when the
// spool has grown it may be called again. Other errors are the file's.
func (r *Reader) Next() (Record, error) {
	for {
		line, err := r.line()
		if err != nil {
			return Record{}, err
		}
		if len(line) == 0 {
			continue // the newline that ends a torn record
		}
		record, text, err := decode(line, r.text)
		r.text = text
		if err == nil && r.order.take(&record) {
			return record, nil
		}
		r.skipped++
	}
}

// line returns the next line without its newline.
func (r *Reader) line() ([]byte, error) {
	for {
		rest := r.buf[r.start:]
		if i := bytes.IndexByte(rest[r.scanned:], '\n'); i >= 0 {
			line := rest[:r.scanned+i]
			r.start += len(line) + 1
			r.scanned = 0
			if !r.tooLong {
				return line, nil
			}
			r.tooLong = false
			r.skipped++
			continue
		}
		r.scanned = len(rest)
		if r.tooLong || len(rest) > maxRecord {
			r.tooLong = true
			r.start, r.scanned = len(r.buf), 0
		}
		switch err := r.fill(); {
		case errors.Is(err, io.EOF) && r.final && (r.tooLong || r.start < len(r.buf)):
			return r.last(), nil
		case err != nil:
			return nil, err
		}
	}
}

// last returns what follows the last newline of a spool that is final; nothing
// where that is too long.
func (r *Reader) last() []byte {
	line := r.buf[r.start:]
	if r.tooLong {
		r.skipped++
		line = nil
	}
	r.start, r.scanned, r.tooLong = len(r.buf), 0, false
	return line
}

// fill reads more of the file. It returns io.EOF only when there was nothing.
func (r *Reader) fill() error {
	if r.start > 0 {
		r.buf = r.buf[:copy(r.buf, r.buf[r.start:])]
		r.start = 0
	}
	if free := cap(r.buf) - len(r.buf); free < readBlock/2 {
		grown := make([]byte, len(r.buf), max(readBlock, 2*cap(r.buf)))
		copy(grown, r.buf)
		r.buf = grown
	}
	n, err := r.spool.ReadAt(r.buf[len(r.buf):cap(r.buf)], r.offset)
	r.buf = r.buf[:len(r.buf)+n]
	r.offset += int64(n)
	switch {
	case n > 0:
		return nil
	case err == nil, errors.Is(err, io.EOF):
		return io.EOF
	default:
		return fmt.Errorf("read the spool: %w", err)
	}
}

// maxGap is how many numbers may be missing from a damaged spool. What claims
// to be further ahead comes next instead: each number left out costs the
// database a row that says so.
const maxGap = 100

// sequence gives each record its number. A record keeps the one its Writer gave
// it unless that is taken or too far ahead, as happens when something else wrote
// to the spool: then it comes next. So no record makes a later one be skipped,
// and the numbers depend on nothing but the file up to there, whoever reads it.
type sequence struct {
	chunk   int64 // the last one
	written int64 // as the spool numbers it
	open    bool  // whether more of it may come
	of      provision.Stream
	size    int
	update  int64
}

// take numbers a record. It reports false for one that ends no chunk.
func (s *sequence) take(r *Record) bool {
	same := s.open && r.Chunk == s.written
	switch {
	case r.Update != 0:
		r.Asked = r.Update
		s.update = next(s.update, r.Update)
		r.Update, s.open = s.update, false
		return true
	case r.Stream == "":
		if !same {
			return false
		}
		s.open = false
	case same && r.Stream == s.of && s.size+len(r.Text) <= provision.MaxChunk:
		s.size += len(r.Text)
		s.open = !r.End
	default:
		s.written = r.Chunk
		s.chunk = next(s.chunk, r.Chunk)
		s.of, s.size, s.open = r.Stream, len(r.Text), !r.End
	}
	r.Chunk = s.chunk
	return true
}

// next returns the number of what follows last and calls itself number.
func next(last, number int64) int64 {
	if number <= last || number-last > maxGap {
		return last + 1
	}
	return number
}
