package live

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

const (
	// sendBytes is about how much is sent at once: what a slow reader keeps in memory.
	sendBytes = 64 << 10
	// statusEvery is how often a reader is told how a running provision stands.
	statusEvery = 500 * time.Millisecond
	// askAgain is when to try again what the database did not answer.
	askAgain = time.Second
)

// Follower is one reader of one provision.
type Follower struct {
	Person    uuid.UUID
	Provision uuid.UUID
	// After is the last that the reader has: a row's seq, an event's id.
	After int64
	// Again is true when it has followed before and comes back: it is told at once
	// (204) when there will be nothing more, or it would come back for ever.
	Again bool
}

// ServeLog answers with the log as an event stream until nothing more is to
// come, with status events between its rows. The error is a *store.RefusedError
// or *store.UnreachableError, and nothing is written then.
func (h *Hub) ServeLog(w http.ResponseWriter, r *http.Request, f Follower) error {
	return h.follow(w, r, f, (*follow).log, func(s store.Sight) int64 { return s.LastSeq })
}

// ServeEvents answers with the events of a provision as an event stream.
func (h *Hub) ServeEvents(w http.ResponseWriter, r *http.Request, f Follower) error {
	return h.follow(w, r, f, (*follow).events, func(s store.Sight) int64 { return s.LastEvent })
}

// follow is a stream of one provision.
type follow struct {
	*stream
	Follower
	feed    *feed
	store   *store.Store
	pass    *pass
	told    int // version of the status that was sent
	toldAt  time.Time
	buffers [][]byte
}

func (h *Hub) follow(w http.ResponseWriter, r *http.Request, f Follower, what func(*follow) error, last func(store.Sight) int64) error {
	if err := h.enter(f.Person, 1); err != nil {
		return err
	}
	defer h.exit(f.Person, 1)
	key := passKey{f.Person, f.Provision}
	l := &follow{Follower: f, store: h.database.As(f.Person), pass: h.passes.get(key)}
	defer h.passes.put(key)
	if err := l.pass.check(r.Context(), l.store, f.Provision, h.timing.recheck); err != nil {
		return err
	}
	l.feed = h.watch(f.Provision)
	defer h.leave(l.feed)
	if f.Again {
		if v := l.feed.after(f.After, nil, 0); v.known && v.sight.Over() && f.After >= last(v.sight) {
			w.WriteHeader(http.StatusNoContent)
			return nil
		}
	}
	stream, done := h.begin(w, r)
	defer done()
	l.stream = stream
	if err := l.send(hello()); err == nil {
		_ = what(l) // the reader is gone, or will come back
	}
	return nil
}

// allowed asks again now and then whether the reader may still see it. While the
// database does not say, nothing is sent.
func (l *follow) allowed() (bool, error) {
	err := l.pass.check(l.ctx, l.store, l.Provision, l.hub.timing.recheck)
	if _, refused := errors.AsType[*store.RefusedError](err); refused {
		return false, errors.Join(l.send(goneFrame), err)
	}
	return err == nil, nil
}

// log sends what follows the cursor, for ever and ever.
func (l *follow) log() error {
	for {
		allowed, err := l.allowed()
		if err != nil {
			return err
		}
		if !allowed {
			if !l.pause(nil, time.After(askAgain)) {
				return context.Canceled
			}
			continue
		}
		v := l.feed.after(l.After, l.buffers[:0], sendBytes)
		l.buffers = v.frames
		switch {
		case !v.known:
			if !l.pause(v.changed, nil) {
				return context.Canceled
			}
			continue
		case v.gone:
			return errors.Join(l.send(goneFrame), context.Canceled)
		case v.behind:
			if err := l.catchUp(v.seq); err != nil {
				return err
			}
			continue
		}
		if over, err := l.tell(v); over || err != nil {
			return err
		}
	}
}

// tell sends a view and waits for the next; over when nothing more is to come.
func (l *follow) tell(v view) (over bool, err error) {
	frames := v.frames
	complete := v.seq >= v.sight.LastSeq
	over = complete && v.sight.Over()
	var later <-chan time.Time
	// The end of a run, for good or until somebody decides, comes after its last line.
	if v.version != l.told && (complete || !v.sight.Status.EndsRun()) {
		if wait := statusEvery - time.Since(l.toldAt); wait > 0 && !over {
			later = time.After(wait)
		} else {
			frames = append(frames, v.status)
			l.told, l.toldAt = v.version, time.Now()
		}
	}
	if over {
		frames = append(frames, endFrame(v.sight))
	}
	if len(frames) > 0 {
		if err := l.send(frames...); err != nil {
			return over, err
		}
		l.After = v.seq
	}
	l.buffers = frames
	clear(l.buffers) // what is kept here cannot be given back
	if over || !complete && len(frames) > 0 {
		return over, nil // there may be more at once; if there is not, the feed is still reading it
	}
	if !l.pause(v.changed, later) {
		return false, context.Canceled
	}
	return false, nil
}

// catchUp sends a page from the table, read as the reader: what is in memory of
// it does not grow with how far behind it is.
func (l *follow) catchUp(base int64) error {
	rows, read, err := read(l, func() ([]store.LogRow, error) { return l.store.LogPage(l.ctx, l.Provision, l.After, 1000, sendBytes) })
	if err != nil {
		return err
	}
	frames := l.buffers[:0]
	for _, row := range rows {
		frames = append(frames, logFrame(row))
		l.After = row.Seq
	}
	switch {
	case len(frames) > 0:
	case read: // they were removed, or access was lost, which the next check says
		l.After = base
		return nil
	default:
		if !l.pause(nil, time.After(askAgain)) {
			return context.Canceled
		}
		return nil
	}
	err = l.send(frames...)
	clear(frames)
	l.buffers = frames
	return err
}

// read waits for one of the few who may read at once. What the database does not
// answer is nothing, for now.
func read[T any](l *follow, rows func() ([]T, error)) (found []T, read bool, err error) {
	select {
	case l.hub.catchUps <- struct{}{}:
	case <-l.ctx.Done():
		return nil, false, l.ctx.Err()
	}
	defer func() { <-l.hub.catchUps }()
	found, err = rows()
	if err != nil && l.ctx.Err() != nil {
		return nil, false, err
	}
	return found, err == nil, nil
}

// eventPage is how many events are sent at once.
const eventPage = 200

// events sends what follows the cursor. Events are few beside lines, so each
// reader reads the table, as itself, when the feed has seen that there are more.
func (l *follow) events() error {
	for {
		allowed, err := l.allowed()
		if err != nil {
			return err
		}
		v := l.feed.after(0, nil, 0)
		var later <-chan time.Time
		switch {
		case !allowed:
			v.changed, later = nil, time.After(askAgain)
		case v.gone:
			return errors.Join(l.send(goneFrame), context.Canceled)
		case v.known && v.sight.LastEvent > l.After:
			sent, err := l.sendEvents()
			if err != nil {
				return err
			}
			if sent {
				continue
			}
			later = time.After(askAgain)
		case v.known && v.sight.Over():
			return l.send(endFrame(v.sight))
		}
		if !l.pause(v.changed, later) {
			return context.Canceled
		}
	}
}

func (l *follow) sendEvents() (sent bool, err error) {
	found, _, err := read(l, func() ([]store.Event, error) { return l.store.Events(l.ctx, l.Provision, l.After, eventPage) })
	if err != nil || len(found) == 0 {
		return false, err
	}
	frames := l.buffers[:0]
	for _, e := range found {
		frames = append(frames, event(e.ID, "event", wire.Event(e)))
		l.After = e.ID
	}
	err = l.send(frames...)
	clear(frames)
	l.buffers = frames
	return true, err
}
