package logstream

import "time"

// closeOnTime closes chunks that nothing else closed, and shows samples that are
// due. It is the Writer's own goroutine: Close ends it and waits for it.
func (w *Writer) closeOnTime(stop <-chan struct{}) {
	defer close(w.stopped)
	defer w.timer.Stop()
	for {
		select {
		case <-stop:
			return
		case <-w.timer.C:
			w.closeDue()
		}
	}
}

// look makes closeOnTime look at a time, or before.
func (w *Writer) look(at time.Time) {
	if w.looking.IsZero() || at.Before(w.looking) {
		w.looking = at
		w.timer.Reset(time.Until(at))
	}
}

func (w *Writer) closeDue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.bell()
	w.looking = time.Time{}
	_ = w.settle() // kept in w.file.err
	now := time.Now()
	switch {
	case !w.open:
	case now.Before(w.due):
		w.look(w.due)
	default:
		w.closeChunk()
	}
	if l := w.limit; l == nil || !l.recent.pending() || w.closed || w.ended {
		return // after the end least of all: what follows a result undoes it
	}
	if now.Before(w.limit.pace.next) {
		w.look(w.limit.pace.next)
		return
	}
	_ = w.sample(now) // the tail has the text
}

// closeChunk writes that the open chunk is complete.
func (w *Writer) closeChunk() {
	if !w.open {
		return
	}
	w.line = appendClose(w.line[:0], w.chunk)
	if w.file.append(w.line, false) == nil { // else the next record closes it, or the end of the file
		w.ring = true
	}
	w.open = false
}
