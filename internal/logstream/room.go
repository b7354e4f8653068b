package logstream

import (
	"fmt"
	"time"
)

// lookForRoom is how often a stream that waits for room tries again.
const lookForRoom = 250 * time.Millisecond

// room is what a Writer does on a full disk.
type room struct {
	most    time.Duration
	stop    <-chan struct{}
	gaveUp  func(error)
	already bool // it gave up
}

// WaitForRoom lets streams that meet a full disk wait for room: Write returns
// when there is some, so a process that prints into it waits as well, and no
// line is lost; and so with updates that are large, and with whatever comes
// after gathered text that waits (see Gather). After most, or when stop is
// closed, the wait is over and text is lost. gaveUp hears once of the first text
// that is, whatever kept it from being written; it must not call the Writer.
// Call WaitForRoom before anything is written.
func (w *Writer) WaitForRoom(most time.Duration, stop <-chan struct{}, gaveUp func(error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room = room{most: most, stop: stop, gaveUp: gaveUp}
}

// append writes what the stream prints, clean and masked, and waits for room if
// need be.
func (s *stream) append(text []byte) error {
	w := s.writer
	var began time.Time // of the wait; zero while there is none
	for {
		n, err := w.append(s.name, text)
		text = text[n:]
		if err == nil {
			if !began.IsZero() {
				_ = w.system(fmt.Sprintf("The disk of the agent's data directory was full: the run waited %s for room.", time.Since(began).Round(time.Second))) // kept in w.file.err
			}
			return nil
		}
		if began.IsZero() {
			began = time.Now()
		}
		if !full(err) || !w.waitForRoom(began) {
			w.giveUp(err)
			return err
		}
	}
}

// waitForRoom lets others have the Writer for a while. It reports false when
// the wait is over: it has been long enough, the run is to stop, or text was
// given up before.
func (w *Writer) waitForRoom(began time.Time) bool {
	if w.room.already || time.Since(began) >= w.room.most {
		return false
	}
	w.mu.Unlock()
	look := time.NewTimer(lookForRoom)
	stopped := false
	select {
	case <-w.room.stop:
		stopped = true
	case <-look.C:
	}
	look.Stop()
	w.mu.Lock()
	return !stopped && !w.closed && !w.ended
}

// giveUp notes that text, or an update, is lost. What comes after it is tried
// once each, without waiting.
func (w *Writer) giveUp(err error) {
	w.file.lose(err)
	if w.room.already {
		return
	}
	w.room.already = true
	if w.room.gaveUp != nil {
		w.room.gaveUp(err)
	}
}
