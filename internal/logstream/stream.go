package logstream

import (
	"os"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// maxBlock is how much of one write is worked on at a time, in bytes; it
// bounds the Writer's buffers.
const maxBlock = 64 << 10

// What is gathered waits no longer than gatherFor, and is no more than
// maxGather bytes.
const (
	gatherFor = time.Millisecond
	maxGather = provision.ChunkTarget
)

// Gather lets text that follows other text of its stream within a millisecond
// wait that long for more, and writes what has come as one record. A process
// that floods its output is handed over line by line: to write each to the file
// takes several times as long as all else that is done with it. A line that
// comes by itself is in the file when Write returns, as without Gather. What is
// gathered stands before all that is said after its Write returned, by whomever:
// a SYSTEM line, an update or text of another stream waits while it waits for
// room. Call it before anything is written.
func (w *Writer) Gather() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gather = true
}

// stream is what a Writer knows of one stream; the Writer's mutex guards it.
type stream struct {
	writer   *Writer
	turn     sync.Mutex // one Write at a time
	name     provision.Stream
	cleaner  cleaner
	masker   masker
	gathered []byte    // as it was printed
	last     time.Time // when something was
}

// Write takes bytes as a process printed them. It fails only when the spool
// cannot be written, or the Writer is closed or has written the final report.
func (s *stream) Write(p []byte) (int, error) {
	w := s.writer
	s.turn.Lock() // also while it waits for room, in which others may speak
	defer s.turn.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.bell()
	if w.gatherer != s {
		_ = w.settle() // another stream's; kept in w.file.err
	}
	if w.closed || w.ended {
		return 0, os.ErrClosed
	}
	if w.gather && s.collect(p) {
		return len(p), nil
	}
	if err := w.settle(); err != nil {
		return 0, err
	}
	return s.write(p)
}

func (s *stream) write(p []byte) (done int, err error) {
	for done < len(p) {
		block := p[done:min(len(p), done+maxBlock)]
		if err := s.append(s.masker.mask(s.cleaner.clean(block))); err != nil {
			return done, err
		}
		done += len(block)
	}
	return len(p), nil
}

// collect gathers p and reports whether it did; no other stream has gathered
// any. Once text was lost nothing is gathered: who writes is to hear of it.
func (s *stream) collect(p []byte) bool {
	w, now := s.writer, time.Now()
	quick := now.Sub(s.last) < gatherFor
	s.last = now
	if !quick || len(s.gathered)+len(p) > maxGather || w.room.already {
		return false
	}
	if w.gatherer == nil {
		w.gatherer = s
		w.look(now.Add(gatherFor))
	}
	s.gathered = append(s.gathered, p...)
	return true
}

// settle writes what is gathered, so that it stands before what the caller has
// to say: when it returns, nothing is. The caller has the mutex; others may have
// had it while what is gathered waited for room, but whoever writes or speaks
// waits here then, no longer than that.
func (w *Writer) settle() error {
	for w.settling {
		w.settled.Wait()
	}
	s := w.gatherer
	if s == nil {
		return nil
	}
	w.gatherer, w.settling = nil, true
	defer func() { // also after a panic: the final report is still to come
		w.settling = false
		w.settled.Broadcast()
	}()
	p := s.gathered
	s.gathered = p[:0] // nobody gathers meanwhile
	_, err := s.write(p)
	return err
}
