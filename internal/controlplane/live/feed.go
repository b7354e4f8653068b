package live

import (
	"reflect"
	"sort"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

const (
	// lookGap is the least time between two looks at one provision.
	lookGap = 50 * time.Millisecond
	// lookAgain is how long after a look that was worth it the next one follows
	// unasked: the database notifies at most each 100 ms, so the newest line may
	// have come without.
	lookAgain = 150 * time.Millisecond
	// quietPoll is for what will hardly change without a notification.
	quietPoll = 2 * time.Second
	// feedBytes is how much text a feed reads at once.
	feedBytes = 256 << 10
)

// feed reads one provision for all who watch it.
type feed struct {
	hub *Hub
	id  uuid.UUID
	// viewers and leftAt are the hub's, under its lock.
	viewers int
	leftAt  time.Time

	poked chan struct{} // one is enough

	mu      sync.Mutex
	changed chan struct{} // closed, and another put in its place, when what follows has
	window  window
	known   bool // it has been looked at
	gone    bool // there is no such provision (any more)
	sight   store.Sight
	status  []byte // sight as viewers get it
	version int    // of status
}

func newFeed(h *Hub, id uuid.UUID) *feed {
	return &feed{hub: h, id: id, poked: make(chan struct{}, 1), changed: make(chan struct{})}
}

// poke says that something may have happened.
func (f *feed) poke() {
	select {
	case f.poked <- struct{}{}:
	default:
	}
}

// run reads until nobody watches any more, or the hub ends.
func (f *feed) run() {
	ctx := f.hub.ctx
	timer := time.NewTimer(0)
	defer timer.Stop()
	failed := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.poked:
		case <-timer.C:
		}
		if f.hub.forget(f) {
			return
		}
		news, err := f.look()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failed++ // a poke is answered all the same: it comes when the session does
			timer.Reset(min(time.Duration(failed)*500*time.Millisecond, 5*time.Second))
		case news:
			failed = 0
			timer.Reset(lookAgain)
		default:
			failed = 0
			timer.Reset(f.quiet())
		}
		gap := time.NewTimer(lookGap)
		select {
		case <-ctx.Done():
			gap.Stop()
			return
		case <-gap.C:
		}
	}
}

// quiet is when to look again where nothing was new.
func (f *feed) quiet() time.Duration {
	every := f.hub.pollEvery()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone || f.sight.Status.EndsRun() {
		return max(every, quietPoll)
	}
	return every
}

// look reads what is new, all of it, and reports whether there was anything.
func (f *feed) look() (news bool, err error) {
	for {
		more, err := f.lookOnce(&news)
		if err != nil || !more {
			return news, err
		}
	}
}

func (f *feed) lookOnce(news *bool) (more bool, err error) {
	ctx := f.hub.ctx
	select {
	case f.hub.readers <- struct{}{}:
		defer func() { <-f.hub.readers }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	bytes := feedBytes
	if !f.known { // only this goroutine writes it
		bytes = 0 // viewers begin with the table
	}
	sight, rows, found, err := f.hub.database.Look(ctx, f.id, f.window.last, bytes)
	if err != nil {
		return false, err
	}
	frames := make([]frame, len(rows))
	for i, row := range rows {
		frames[i] = frame{row.Seq, logFrame(row)}
	}
	limit := f.hub.window()

	f.mu.Lock()
	defer f.mu.Unlock()
	// Rows that are counted and not there were removed; fewer than were read: a
	// database of an earlier time.
	astray := len(frames) == 0 && sight.LastSeq != f.window.last
	changed := !f.known || f.gone == found || len(frames) > 0 || astray
	f.gone = !found
	switch {
	case !f.known || astray:
		f.window.restart(sight.LastSeq)
	case len(frames) > 0 && sight.LastSeq-frames[len(frames)-1].seq > lookRowsBehind:
		f.window.restart(sight.LastSeq) // faster than anybody reads
	default:
		for _, frame := range frames {
			f.window.add(frame)
		}
	}
	f.window.trim(limit) // which falls when more is watched
	f.known = true
	if found && !reflect.DeepEqual(f.sight, sight) {
		changed = true
		if before := f.sight; !sameStatus(before, sight) || f.version == 0 {
			f.status = statusFrame(sight)
			f.version++
		}
		f.sight = sight
	}
	if changed {
		*news = true
		f.hub.hints.add(f.id)
		close(f.changed)
		f.changed = make(chan struct{})
	}
	// Rows that are counted and not there must not be asked for in a circle.
	return len(frames) > 0 && f.window.last < sight.LastSeq, nil
}

// lookRowsBehind is how many rows a feed reads up before it passes them over.
const lookRowsBehind = 10_000

// sameStatus reports whether two sights differ in the log's end only.
func sameStatus(a, b store.Sight) bool {
	a.LastSeq, b.LastSeq = 0, 0
	return reflect.DeepEqual(a, b)
}

// view is what a viewer needs of a feed at one moment.
type view struct {
	frames  [][]byte
	seq     int64 // the cursor behind these frames; if behind, where the window begins
	behind  bool  // the table has what comes next
	known   bool
	gone    bool
	sight   store.Sight
	status  []byte
	version int
	changed <-chan struct{} // closed when there is more to see
}

// after returns what follows a cursor, about limit bytes of it; into is used again.
func (f *feed) after(seq int64, into [][]byte, limit int) view {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := view{known: f.known, gone: f.gone, sight: f.sight, status: f.status, version: f.version, changed: f.changed}
	var within bool
	v.frames, v.seq, within = f.window.after(seq, into, limit)
	v.behind = !within
	return v
}

// frame is a row of a log as viewers get it.
type frame struct {
	seq  int64
	data []byte
}

// window is the newest part of a log, encoded once for all.
type window struct {
	frames []frame
	bytes  int
	base   int64 // rows up to this one are not here
	last   int64 // the newest row that was read
}

// add appends the next row.
func (w *window) add(f frame) {
	w.frames = append(w.frames, f)
	w.bytes += len(f.data)
	w.last = f.seq
}

// trim lets the oldest go beyond limit bytes, never the newest.
func (w *window) trim(limit int) {
	drop := 0
	for w.bytes > limit && drop < len(w.frames)-1 {
		w.bytes -= len(w.frames[drop].data)
		w.base = w.frames[drop].seq
		w.frames[drop].data = nil // append will move the others some day; this need not wait
		drop++
	}
	w.frames = w.frames[drop:]
}

// restart forgets all: what comes next follows seq.
func (w *window) restart(seq int64) { *w = window{base: seq, last: seq} }

// after appends to into the frames that follow seq, about limit bytes at most.
// False, with where the window begins, when they do not begin right after it: the
// table has what is between.
func (w *window) after(seq int64, into [][]byte, limit int) ([][]byte, int64, bool) {
	if seq < w.base {
		return into, w.base, false
	}
	from := sort.Search(len(w.frames), func(i int) bool { return w.frames[i].seq > seq })
	for _, f := range w.frames[from:] {
		if limit <= 0 {
			break
		}
		into = append(into, f.data)
		limit -= len(f.data)
		seq = f.seq
	}
	return into, seq, true
}
