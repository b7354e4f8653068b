package live

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
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

// event is one event of an event stream: without an id when id is 0. JSON has no
// line breaks of its own, so it is one line of data.
func event(id int64, name string, data any) []byte {
	var b bytes.Buffer
	if id != 0 {
		b.WriteString("id: ")
		b.WriteString(strconv.FormatInt(id, 10))
		b.WriteByte('\n')
	}
	b.WriteString("event: ")
	b.WriteString(name)
	b.WriteString("\ndata: ")
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // it is no HTML, and would be a third longer
	_ = encoder.Encode(data)     // of our own types, which can be encoded; it ends the line
	b.WriteByte('\n')
	return b.Bytes()
}

func logFrame(row store.LogRow) []byte { return event(row.Seq, "log", wire.LogRow(row)) }

func statusFrame(sight store.Sight) []byte { return event(0, "status", wire.Sight(sight)) }

// endFrame says that nothing follows, so that clients do not reconnect.
func endFrame(sight store.Sight) []byte {
	return event(0, "end", wire.End{Status: sight.Status, LastSeq: sight.LastSeq})
}

// goneFrame says that the stream is over because its reader may not see the
// provision any more, or it is gone: the one answer for both.
var goneFrame = event(0, "gone", wire.Gone{Reason: "provision_not_found", Message: "there is no such provision, or you have no access to it any more"})

// hintFrame says that a provision or a cluster has changed; the zero id: anything may have.
func hintFrame(id uuid.UUID) []byte {
	var changed wire.Changed
	if id != uuid.Nil {
		changed.Provision = &id
	}
	return event(0, "changed", changed)
}

// passes are who may see which provision, as far as it is known: asked once for
// all of a person's streams.
type passes struct {
	mu    sync.Mutex
	known map[passKey]*pass
}

type passKey struct{ person, provision uuid.UUID }

// pass is what a person may see of one provision.
type pass struct {
	streams int // under the lock of passes

	mu       sync.Mutex // held while it is asked
	checked  time.Time
	refused  *store.RefusedError
	failed   error // at failedAt: the database did not say
	failedAt time.Time
}

// get returns a pass, which the caller puts back.
func (p *passes) get(key passKey) *pass {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[passKey]*pass{}
	}
	if p.known[key] == nil {
		p.known[key] = &pass{}
	}
	p.known[key].streams++
	return p.known[key]
}

func (p *passes) put(key passKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[key].streams--; p.known[key].streams == 0 {
		delete(p.known, key)
	}
}

// check asks the database, at most each recheck. The error is a
// *store.RefusedError when the person may not see it, and any other when that
// cannot be found out now.
func (p *pass) check(ctx context.Context, s *store.Store, provision uuid.UUID, recheck time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused == nil && time.Since(p.checked) < recheck {
		return nil
	}
	if p.failed != nil && time.Since(p.failedAt) < askAgain {
		return p.failed // or all of a person's streams wait for a dead database in turn
	}
	err := s.MaySee(ctx, provision)
	refused, ok := errors.AsType[*store.RefusedError](err)
	if p.refused = refused; err == nil || ok {
		p.checked = time.Now()
	}
	if ok {
		return refused
	}
	if p.failed = nil; ctx.Err() == nil { // else it is this stream that is over
		p.failed, p.failedAt = err, time.Now()
	}
	return err
}
