package spool

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/redact"
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

// stream is what a Writer knows of one stream; the Writer's mutex guards it.
type stream struct {
	writer   *Writer
	turn     sync.Mutex // one Write at a time
	name     provision.Stream
	masked   *redact.Stream
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
		if err := s.append(s.masked.Mask(block)); err != nil {
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
