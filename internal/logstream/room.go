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
// line is lost. After most, or when stop is closed, the wait is over and text is
// lost. gaveUp hears once of the first text that is, whatever kept it from being
// written; it must not call the Writer. Call WaitForRoom before anything is
// written.
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
			text = append([]byte{}, text...) // the masker's next text would overwrite it
		}
		if !full(err) || time.Since(began) >= w.room.most || !w.waitForRoom() || w.closed || w.ended {
			w.giveUp(err)
			return err
		}
	}
}

// waitForRoom lets others have the Writer for a while. It reports false when
// the wait is over for good.
func (w *Writer) waitForRoom() bool {
	w.mu.Unlock()
	defer w.mu.Lock()
	look := time.NewTimer(lookForRoom)
	defer look.Stop()
	select {
	case <-w.room.stop:
		return false
	case <-look.C:
		return true
	}
}

// giveUp notes that text of a stream is lost.
func (w *Writer) giveUp(err error) {
	w.file.lose(err)
	if w.room.gaveUp != nil && !w.room.already {
		w.room.already = true
		w.room.gaveUp(err)
	}
}
