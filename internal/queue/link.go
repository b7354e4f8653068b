package queue

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/tendril-run/tendril/internal/postgrest"
	"github.com/tendril-run/tendril/internal/provision"
)

// Link shares an agent's line to the database between its bulk calls: log lines,
// states, plans and results. A Queue has one for all its runs.
//
// Heartbeats, claims and reports never wait for a turn. Bulk calls do:
//
//	AppendLog, PutBlob ─ turn: blobs first, then whoever has waited longest ─ one call ─ learn
//
// How much is in flight follows what the link has shown. It begins with firstSize,
// doubles while full calls return quickly, is halved when a call is slow or times
// out, and never falls below one chunk. Until the link has shown that it takes whole
// batches quickly, one full call uses all of it, so there is one at a time.
type Link struct {
	together int // the most bulk calls in flight

	mu      sync.Mutex
	size    int // the most bytes in flight, and so in one call
	most    int // what size may grow to: what a proxy takes, where one has refused more
	calls   int // in flight
	bytes   int // in flight
	waiting [2][]*turn
	// cautious counts the full calls that must succeed before size grows again.
	cautious int
	// delay is how long a call takes that carries next to nothing: the link's
	// latency, which is no reason to send less. 0 until there was such a call.
	delay time.Duration
}

const (
	// firstSize is what is sent at once over a link that has shown nothing yet:
	// quick enough at 16 KB/s, and three calls away from a whole batch.
	firstSize = 64 << 10
	// leastSize is one chunk that ends with its line.
	leastSize = 12 << 10
	// wholeCalls is how many whole batches may be in flight on a fast link.
	wholeCalls = 3
	// next to nothing: a call of so few bytes measures the latency alone.
	tinyCall = 4 << 10
	// caution is how many full calls must succeed after a failure before more is
	// sent at once, so that a limit is not tried again with every other call.
	caution = 8
	// perChunk is about what a chunk takes in a call beside its text.
	perChunk = 80
)

// A full call that took at most quick is followed by a larger one, and one that
// took slow times as long by a smaller one. All that wait for a turn share
// roundTime, so that each has one within half a minute.
const (
	roundTime  = 4 * time.Second
	quickest   = 500 * time.Millisecond
	quickAlone = time.Second
	slow       = 4
)

// NewLink returns a Link for a transport that can have so many bulk calls in flight
// and still send a heartbeat.
func NewLink(together int) *Link {
	return &Link{together: together, size: firstSize, most: provision.MaxBatch}
}

// CallLimit is how long a call may take that carries so many bytes which cannot be
// parted, where limit is for a small one: what it takes at 4 KB/s is added.
func CallLimit(limit time.Duration, bytes int) time.Duration {
	return limit + limit*time.Duration(bytes)/(64<<10)
}

// urgency is the order in which turns are given.
type urgency int

const (
	blobs urgency = iota
	lines
)

// turn is a bulk call that waits to be made, or is in flight.
type turn struct {
	want, least int // bytes
	granted     int // 0 while it waits
	full        bool
	ready       chan struct{}
	began       time.Time
}

// AppendLog waits for a turn and calls send with as many of the chunks as the link
// takes, one at least. It returns what send does: the number that the database
// expects next. What is left over is for another call, so that others have their
// turn and what is stored counts at once.
func (l *Link) AppendLog(ctx context.Context, chunks []provision.LogChunk, send func([]provision.LogChunk) (int64, error)) (int64, error) {
	if len(chunks) == 0 {
		return send(nil) // a question
	}
	for {
		t, err := l.take(ctx, lines, sizeOf(chunks), sizeOf(chunks[:1]))
		if err != nil {
			return 0, err
		}
		part := fitting(chunks, t.granted)
		next, err := send(part)
		l.done(ctx, t, err)
		if err == nil || len(part) == 1 || !tooLarge(err) && !hungUp(err) {
			return next, err
		}
	}
}

// PutBlob calls put with each part of a blob in turn, in base64: first 1. Each waits
// for a turn.
func (l *Link) PutBlob(ctx context.Context, kind string, data []byte, put func(part, parts int, text string) error) error {
	size := l.partSize(kind, len(data))
	parts := max(1, (len(data)+size-1)/size)
	for part := 1; part <= parts; part++ {
		n := min(size, len(data))
		text := base64.StdEncoding.EncodeToString(data[:n])
		t, err := l.take(ctx, blobs, len(text), len(text))
		if err != nil {
			return err
		}
		err = put(part, parts, text)
		l.done(ctx, t, err)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// partSize is how large the parts of a blob are: as the link has shown, and so that
// the database takes their number.
func (l *Link) partSize(kind string, bytes int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := mostParts(kind)
	return min(max(l.size/4*3, (bytes+most-1)/most), BlobPart)
}

// take waits until a call may be made.
func (l *Link) take(ctx context.Context, u urgency, want, least int) (*turn, error) {
	t := &turn{want: want, least: least, ready: make(chan struct{})}
	l.mu.Lock()
	l.waiting[u] = append(l.waiting[u], t)
	l.admit()
	l.mu.Unlock()
	select {
	case <-t.ready:
		return t, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.granted > 0 {
		l.land(t)
	} else {
		l.waiting[u] = slices.DeleteFunc(l.waiting[u], func(other *turn) bool { return other == t })
	}
	l.admit()
	return nil, ctx.Err()
}

// admit gives turns to those that fit in.
func (l *Link) admit() {
	for u := range l.waiting {
		for len(l.waiting[u]) > 0 {
			t := l.waiting[u][0]
			granted := max(t.least, min(t.want, l.size))
			if !l.fits(granted) {
				return // nobody overtakes it
			}
			l.waiting[u][0] = nil
			l.waiting[u] = l.waiting[u][1:]
			t.granted, t.full, t.began = granted, granted >= l.size, time.Now()
			l.calls++
			l.bytes += granted
			close(t.ready)
		}
	}
}

func (l *Link) fits(granted int) bool {
	room := l.size
	if l.size >= provision.MaxBatch {
		room = wholeCalls * provision.MaxBatch
	}
	return l.calls == 0 || l.calls < l.together && l.bytes+granted <= room
}

func (l *Link) land(t *turn) {
	l.calls--
	l.bytes -= t.granted
}

// done ends a turn, learns from what became of the call, and lets the next ones go.
func (l *Link) done(ctx context.Context, t *turn, err error) {
	took := time.Since(t.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.land(t)
	switch {
	case err == nil:
		l.succeeded(t, took)
	case ctx.Err() != nil: // given up by the caller
	case tooLarge(err):
		l.most = max(leastSize, t.granted/2)
		l.size = min(l.size, l.most)
	case strained(err, took):
		l.shrink()
	}
	l.admit()
}

func (l *Link) succeeded(t *turn, took time.Duration) {
	if t.granted <= tinyCall && (l.delay == 0 || took < l.delay) {
		l.delay = took
	}
	others := len(l.waiting[blobs]) + len(l.waiting[lines])
	quick := min(max(roundTime/time.Duration(1+others), quickest), quickAlone)
	switch cost := took - l.delay; {
	case cost > slow*quick:
		l.shrink()
	case !t.full || cost > quick:
	case l.cautious > 0:
		l.cautious--
	default:
		l.size = min(2*l.size, l.most)
	}
}

// shrink halves what may be in flight.
func (l *Link) shrink() {
	l.size = max(l.size/2, min(leastSize, l.most))
	l.cautious = caution
	l.delay += l.delay / 4 // it may have changed with the path
}

// strained reports whether a call failed because it carried too much, or may have:
// it took its time and was not answered, or the database ran out of time for it.
func strained(err error, took time.Duration) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Kind != Unavailable {
		return false
	}
	return e.Code == "57014" || e.Code == "PT408" || hungUp(err) ||
		e.Code == "" && (took >= slow*quickest || errors.Is(err, context.DeadlineExceeded))
}

// tooLarge reports whether something refused a call for its size, other than the
// database itself.
func tooLarge(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Reason == postgrest.BodyTooLarge
}

// hungUp reports whether the other side broke the connection, which is also how
// one ends that says no to a large body without reading it: the answer is lost
// then as often as not. Less may pass, and if it was something else, nothing is
// lost by sending less.
func hungUp(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// sizeOf is about how large chunks are in a call, before their texts are escaped.
func sizeOf(chunks []provision.LogChunk) (size int) {
	for _, c := range chunks {
		size += len(c.Text) + perChunk
	}
	return size
}

// fitting returns as many of the chunks as have that size, one at least.
func fitting(chunks []provision.LogChunk, size int) []provision.LogChunk {
	n := 1
	for left := size - sizeOf(chunks[:1]); n < len(chunks); n++ {
		if left -= sizeOf(chunks[n : n+1]); left < 0 {
			break
		}
	}
	return chunks[:n]
}
