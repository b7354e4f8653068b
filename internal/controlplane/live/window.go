package live

import "sort"

// frame is a row of a log as viewers get it.
type frame struct {
	seq  int64
	data []byte
}

// window is the newest part of a log, encoded once for all.
type window struct {
	frames []frame
	bytes  int
	base   int64 // rows up to this one are not here
	last   int64 // the newest row that was read
}

// add appends the next row.
func (w *window) add(f frame) {
	w.frames = append(w.frames, f)
	w.bytes += len(f.data)
	w.last = f.seq
}

// trim lets the oldest go beyond limit bytes, never the newest.
func (w *window) trim(limit int) {
	drop := 0
	for w.bytes > limit && drop < len(w.frames)-1 {
		w.bytes -= len(w.frames[drop].data)
		w.base = w.frames[drop].seq
		w.frames[drop].data = nil // append will move the others some day; this need not wait
		drop++
	}
	w.frames = w.frames[drop:]
}

// restart forgets all: what comes next follows seq.
func (w *window) restart(seq int64) { *w = window{base: seq, last: seq} }

// after appends to into the frames that follow seq, about limit bytes at most.
// False, with where the window begins, when they do not begin right after it: the
// table has what is between.
func (w *window) after(seq int64, into [][]byte, limit int) ([][]byte, int64, bool) {
	if seq < w.base {
		return into, w.base, false
	}
	from := sort.Search(len(w.frames), func(i int) bool { return w.frames[i].seq > seq })
	for _, f := range w.frames[from:] {
		if limit <= 0 {
			break
		}
		into = append(into, f.data)
		limit -= len(f.data)
		seq = f.seq
	}
	return into, seq, true
}
