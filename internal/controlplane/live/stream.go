package live

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// stream is one answer that goes on.
type stream struct {
	hub    *Hub
	ctx    context.Context // ends with the request, the hub, or the stream's life
	w      http.ResponseWriter
	rc     *http.ResponseController
	silent *time.Timer // keep-alive

	mu    sync.Mutex
	ended bool // nothing is to wait for the reader any more
}

// enter counts a stream in, as many as it follows provisions; a
// *store.RefusedError when there are too many, or the hub has ended.
func (h *Hub) enter(person uuid.UUID, count int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended:
		return &store.RefusedError{Code: "PT503", Reason: "stopping", Message: "this control plane is being stopped", Hint: "try again in a moment"}
	case h.total+count > h.limits.Streams:
		return &store.RefusedError{Code: "PT503", Reason: "too_many_streams", Message: fmt.Sprintf("%d streams are open here, as many as there may be", h.total),
			Hint: "try again later, or poll meanwhile"}
	case h.people[person]+count > h.limits.PerPerson:
		return &store.RefusedError{Code: "PT429", Reason: "too_many_streams", Message: fmt.Sprintf("you have %d streams open, as many as one person may", h.people[person]),
			Hint: "close some, or poll meanwhile"}
	}
	h.total += count
	h.streams++
	h.people[person] += count
	h.open.Add(1)
	return nil
}

func (h *Hub) exit(person uuid.UUID, count int) {
	h.mu.Lock()
	h.total -= count
	h.streams--
	if h.people[person] -= count; h.people[person] == 0 {
		delete(h.people, person)
	}
	h.mu.Unlock()
	h.open.Done()
}

// begin sends the header of an event stream and returns it, to be closed by done.
func (h *Hub) begin(w http.ResponseWriter, r *http.Request) (s *stream, done func()) {
	ctx, cancel := context.WithTimeout(r.Context(), h.timing.life/2+rand.N(h.timing.life/2)) //nolint:gosec // jitter, not a secret
	s = &stream{hub: h, ctx: ctx, w: w, rc: http.NewResponseController(w), silent: time.NewTimer(h.timing.keepAlive)}
	// The server's own limits are for requests that end.
	_ = s.rc.SetReadDeadline(time.Time{}) // one that has none needs none taken away
	stop := context.AfterFunc(h.ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.ended {
			s.ended = true
			_ = s.rc.SetWriteDeadline(time.Now())
		}
		cancel()
	})
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache, no-store, no-transform")
	header.Set("X-Accel-Buffering", "no") // nginx
	w.WriteHeader(http.StatusOK)
	return s, func() {
		stop()
		s.mu.Lock()
		s.ended = true // the hub may be ending just now: it must not touch what was answered
		s.mu.Unlock()
		s.silent.Stop()
		cancel()
	}
}

// hello is what every stream begins with: when to come back after a break, not
// all at once.
func hello() []byte {
	return fmt.Appendf(nil, "retry: %d\n\n", 1000+rand.IntN(2000)) //nolint:gosec // jitter, not a secret
}

var alive = []byte(": keep-alive\n\n")

// send writes and flushes. An error ends the stream: the reader is gone or too
// slow, or the hub has ended.
func (s *stream) send(frames ...[]byte) error {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return context.Canceled
	}
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.hub.timing.write)) // a recorder in a test has none
	s.mu.Unlock()
	for _, frame := range frames {
		if _, err := s.w.Write(frame); err != nil {
			return err
		}
	}
	s.silent.Reset(s.hub.timing.keepAlive)
	return s.rc.Flush()
}

// pause waits until something has changed, until then, or for the next
// keep-alive, which it sends. False: the stream is over.
func (s *stream) pause(changed <-chan struct{}, then <-chan time.Time) bool {
	select {
	case <-s.ctx.Done():
		return false
	case <-changed:
	case <-then:
	case <-s.silent.C:
		return s.send(alive) == nil
	}
	return true
}
