package logstream

import "github.com/tendril-run/tendril/internal/provision"

// maxGap is how many chunks may be missing from a damaged spool. What claims to
// be further ahead is itself taken for damage.
const maxGap = 1000

// sequence knows which record may follow those before it.
type sequence struct {
	chunk  int64 // the last one
	open   bool  // whether more of it may come
	of     provision.Stream
	size   int
	update int64
}

// take reports whether a record is in its place, and notes it if so.
func (s *sequence) take(r Record) bool {
	switch {
	case r.Update != 0:
		if r.Update <= s.update {
			return false
		}
		s.update, s.open = r.Update, false
	case r.Stream == "":
		if r.Chunk != s.chunk || !s.open {
			return false
		}
		s.open = false
	case r.Chunk == s.chunk:
		if !s.open || r.Stream != s.of || s.size+len(r.Text) > provision.MaxChunk {
			return false
		}
		s.size += len(r.Text)
		s.open = !r.End
	default:
		if r.Chunk < s.chunk || r.Chunk-s.chunk > maxGap {
			return false
		}
		s.chunk, s.of, s.size, s.open = r.Chunk, r.Stream, len(r.Text), !r.End
	}
	return true
}
