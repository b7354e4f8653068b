package logstream

import "time"

// closeOnTime closes chunks that nothing else closed. It is the Writer's own
// goroutine: Close ends it and waits for it.
func (w *Writer) closeOnTime() {
	defer close(w.stopped)
	defer w.timer.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-w.timer.C:
			w.closeDue()
		}
	}
}

// arm makes closeOnTime look after d. One look at a time is under way: chunks
// may come by the thousand in a second, and each is looked after in its turn.
func (w *Writer) arm(d time.Duration) {
	if !w.armed {
		w.armed = true
		w.timer.Reset(d)
	}
}

func (w *Writer) closeDue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.bell()
	w.armed = false
	if !w.open {
		return
	}
	if left := time.Until(w.due); left > 0 {
		w.arm(left)
		return
	}
	w.closeChunk()
}

// closeChunk writes that the open chunk is complete.
func (w *Writer) closeChunk() {
	if !w.open {
		return
	}
	w.line = appendClose(w.line[:0], w.chunk)
	if w.file.append(w.line) == nil { // else the next record closes it, or the end of the file
		w.ring = true
	}
	w.open = false
}
