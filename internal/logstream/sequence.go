package logstream

import "github.com/tendril-run/tendril/internal/provision"

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
