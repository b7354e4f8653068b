package logstream

import (
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// append writes what a stream prints, clean and masked, and returns how much of
// it was written. What was not is for the caller to try again or to give up.
func (w *Writer) append(name provision.Stream, text []byte) (done int, err error) {
	for done < len(text) {
		var n int
		if w.limit != nil && w.limit.reached() {
			n, err = w.beyond(name, text[done:])
		} else {
			n, err = w.putChunk(name, text[done:], time.Now())
		}
		if done += n; err != nil {
			return done, err
		}
	}
	return done, nil
}

// put writes clean, masked text to the spool.
func (w *Writer) put(name provision.Stream, text []byte, now time.Time) error {
	for len(text) > 0 {
		n, err := w.putChunk(name, text, now)
		if err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// putChunk writes as much of a text as goes into one chunk, and returns that.
func (w *Writer) putChunk(name provision.Stream, text []byte, now time.Time) (int, error) {
	if err := w.confess(); err != nil {
		return 0, err
	}
	if w.open && w.of != name {
		w.open = false // the number of the record to come says so
		w.ring = true
	}
	chunk, size := w.chunk, w.size
	if !w.open {
		chunk, size = w.chunk+1, 0
	}
	n, full := cut(text, size)
	end := full || !w.open && now.Sub(w.lastText) >= provision.FlushAfter
	w.line = appendText(w.line[:0], chunk, name, now, text[:n], end)
	if err := w.file.append(w.line, name == provision.System); err != nil {
		return 0, err
	}
	if !w.open && !end {
		w.due = now.Add(provision.FlushAfter)
		w.look(w.due)
	}
	if w.limit != nil {
		w.limit.passed(name, text[:n], w.line)
	}
	w.chunk, w.of, w.size, w.open = chunk, name, size+n, !end
	w.ring = w.ring || end
	w.lastText = now
	return n, nil
}

// confess says, once the spool can be written again, that lines are missing.
func (w *Writer) confess() error {
	if !w.file.lost || w.limit.epilogue() {
		return nil
	}
	line := "Lines are missing here: " + w.file.err.Error() + "\n"
	w.line = appendText(w.line[:0], w.chunk+1, provision.System, time.Now(), []byte(line), true)
	if err := w.file.append(w.line, true); err != nil {
		return err
	}
	w.file.lost = false
	w.chunk++
	w.open = false
	return nil
}
