// Package live sends changes to viewers as they happen: one connection per process
// listens, its notifications reach any number of viewers, and each new row is read
// once for all of them.
//
//	LISTEN ──▶ hub ──▶ feed of a provision: reads new rows once, encodes them once,
//	            │      keeps the newest in a window ──▶ viewers, each a cursor
//	            └────▶ hints: "that one has changed", for pages that fetch it again
//
// A viewer in the window takes what all take; one behind it (it came late, or
// its network is slow) reads the table as its own person, page by page. So what a
// viewer costs does not depend on how slow it is.
//
// Notifications are hints and may be lost or forged: a wake causes a query. The
// package must not know what viewers do with what they receive.
//
// A viewer that has not taken what was sent for 30 s is cut off and resumes from
// Last-Event-ID, and no stream lasts longer than a quarter of an hour: its reader
// comes back and is asked again who it is. Row numbers are given out under a lock
// and committed in order, so a cursor misses nothing. The hub sends itself a
// notification every 30 s; when it does not arrive (a lost session, a pooler), the
// hub polls and listens again.
package live

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/listen"
	"github.com/tendril-run/tendril/internal/retry"
)

// Defaults of Limits.
const (
	DefaultStreams   = 4000
	DefaultPerPerson = 200
	DefaultWindow    = 512 << 10
)

// windows is what all windows together may hold.
const windows = 64 << 20

// timing is how often, and for how long.
type timing struct {
	// keepAlive is how often something is sent: proxies close what is silent.
	keepAlive time.Duration
	// recheck is how long a person's access counts as checked.
	recheck time.Duration
	// write is how long a reader may take for what is sent at once. Who is slower
	// is cut off, and goes on where it was when it comes back.
	write time.Duration
	// life is how long a stream lasts. Whoever follows comes back, and is asked
	// anew who it is: a session or a token may have ended meanwhile.
	life time.Duration
}

var usual = timing{keepAlive: 15 * time.Second, recheck: 30 * time.Second, write: 30 * time.Second, life: 15 * time.Minute}

const (
	// readers and catchUps bound the reading at once, of feeds and of viewers
	// that are behind: the connections are everybody's.
	readers, catchUps = 2, 3
)

// Limits bound what streams cost. Zero: the default.
type Limits struct {
	Streams   int // of all people
	PerPerson int
	Window    int // bytes kept of each log that is watched
}

// Hub fans out what is heard. Whoever made it calls Run.
type Hub struct {
	database *store.Database
	log      *slog.Logger
	limits   Limits
	timing   timing

	ctx  context.Context // ends with Run
	stop context.CancelFunc
	// open are all feeds and streams.
	open sync.WaitGroup
	// deaf is true while nothing is heard: everybody polls then.
	deaf     atomic.Bool
	sessions atomic.Int64 // that were heard
	turned   atomic.Pointer[time.Time]
	readers  chan struct{}
	catchUps chan struct{}
	passes   passes
	begun    chan struct{} // something is watched that was not; one is enough
	hints    hints

	mu     sync.Mutex
	ended  bool
	feeds  map[uuid.UUID]*feed
	people map[uuid.UUID]int // streams of each; one of hints counts as what it names
	total  int
	// streams are those that are open, each of them one.
	streams int
}

// NewHub returns a hub that will listen on that database and reads through it.
func NewHub(d *store.Database, log *slog.Logger, limits Limits) *Hub {
	ctx, stop := context.WithCancel(context.Background())
	limits.Streams = cmp.Or(limits.Streams, DefaultStreams)
	limits.PerPerson = cmp.Or(limits.PerPerson, DefaultPerPerson)
	limits.Window = cmp.Or(limits.Window, DefaultWindow)
	h := &Hub{
		database: d, log: log, limits: limits, timing: usual, ctx: ctx, stop: stop,
		readers: make(chan struct{}, readers), catchUps: make(chan struct{}, catchUps),
		begun: make(chan struct{}, 1), feeds: map[uuid.UUID]*feed{}, people: map[uuid.UUID]int{},
	}
	h.deaf.Store(true)
	h.turn()
	return h
}

// State is how a hub stands.
type State struct {
	Viewers   int   // streams that are open
	Listening bool  // a session of the database's is heard
	Sessions  int64 // that were heard since the start
	// TurnedAt is when the loop that listens last did anything: a minute ago at most,
	// whether the database answers or not.
	TurnedAt time.Time
}

// State says how the hub stands.
func (h *Hub) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return State{Viewers: h.streams, Listening: !h.deaf.Load(), Sessions: h.sessions.Load(), TurnedAt: *h.turned.Load()}
}

func (h *Hub) turn() {
	now := time.Now() // with the monotonic clock
	h.turned.Store(&now)
}

// Run listens until the context ends, then ends all streams and waits for them.
func (h *Hub) Run(ctx context.Context) {
	ending := context.AfterFunc(ctx, h.stop)
	defer ending()
	var parts sync.WaitGroup
	parts.Go(func() { h.listen(h.ctx) })
	parts.Go(func() { h.sendHints(h.ctx) })
	parts.Go(func() { h.sayWatched(h.ctx) })
	<-h.ctx.Done()
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	parts.Wait()
	h.open.Wait()
}

// heard is called with each notification, by the session that listens.
func (h *Hub) heard(channel, payload string) {
	id, err := uuid.Parse(payload)
	if err != nil {
		return // forged
	}
	if channel == provisionChannel {
		h.mu.Lock()
		f := h.feeds[id]
		h.mu.Unlock()
		if f != nil {
			f.poke()
		}
	}
	h.hints.add(id)
}

// missed is called when notifications may have been lost.
func (h *Hub) missed() {
	h.mu.Lock()
	for _, f := range h.feeds {
		f.poke()
	}
	h.mu.Unlock()
	h.hints.addAll()
}

// watch returns the feed of a provision, which the caller leaves again.
func (h *Hub) watch(id uuid.UUID) *feed {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.feeds[id]
	if f == nil {
		f = newFeed(h, id)
		h.feeds[id] = f
		h.open.Go(f.run)
	}
	f.viewers++
	if f.viewers == 1 {
		select {
		case h.begun <- struct{}{}:
		default:
		}
	}
	return f
}

const (
	// watchedAgain is how often the database hears what is watched: it forgets that after a
	// minute.
	watchedAgain = 20 * time.Second
	// watchedGap is the least time between two times that it hears so.
	watchedGap = 200 * time.Millisecond
)

// sayWatched has agents deliver sooner what people watch. A database that is away does not hear
// it, and then there is nothing to be delivered.
func (h *Hub) sayWatched(ctx context.Context) {
	again := time.NewTicker(watchedAgain)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.begun:
		case <-again.C:
		}
		if watched := h.watched(); len(watched) > 0 {
			_ = h.database.Watch(ctx, watched) // a hint
		}
		if !retry.Sleep(ctx, watchedGap) {
			return
		}
	}
}

// watched are the provisions that have viewers.
func (h *Hub) watched() (all []uuid.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, f := range h.feeds {
		if f.viewers > 0 {
			all = append(all, id)
		}
	}
	return all
}

func (h *Hub) leave(f *feed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.viewers--; f.viewers == 0 {
		f.leftAt = time.Now()
	}
}

// linger is how long a feed outlives its last viewer, who may only have lost the
// network.
const linger = 15 * time.Second

// forget removes a feed that nobody has watched for a while, and reports whether.
func (h *Hub) forget(f *feed) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f.viewers > 0 || time.Since(f.leftAt) < linger {
		return false
	}
	delete(h.feeds, f.id)
	return true
}

// pollEvery is how often what is watched is looked at although nothing was
// heard. While notifications come, it is only for what they do not tell of (a
// percentage), and costs no more however much is watched.
func (h *Hub) pollEvery() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	const pollsPerSecond = 40
	return max(time.Second, time.Duration(len(h.feeds))*time.Second/pollsPerSecond)
}

// window is how much of a log is kept in memory.
func (h *Hub) window() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return min(h.limits.Window, windows/max(1, len(h.feeds)))
}

const (
	// provisionChannel carries ids of provisions, workChannel of clusters where
	// something was queued.
	provisionChannel = "tendril_provision"
	workChannel      = "tendril_work"
)

const (
	// probeEvery is the longest silence before the hub sends itself a notification: that it
	// comes shows that the session lives, and that no pooler stands between which hands
	// it to somebody else. It has half of probeLimit to come.
	probeEvery = 30 * time.Second
	probeLimit = 6 * time.Second
	// connectLimit bounds connecting, whatever a URL of several hosts allows each.
	connectLimit = 30 * time.Second
	// deafPoll is how often everything watched is looked at while nothing is heard.
	deafPoll = 2 * time.Second
)

// listen keeps one session that LISTENs, and polls while there is none. Its errors are
// not told: requests meet the same ones.
func (h *Hub) listen(ctx context.Context) {
	h.turn()
	listen.Listener{
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, connectLimit)
			defer cancel()
			return h.database.Session(ctx, "trellis live")
		},
		Channels: []string{provisionChannel, workChannel}, Limit: probeLimit, Silence: probeEvery,
		Send: h.database.Notify, ProbeSilence: true,
		Began: func() {
			h.turn()
			h.sessions.Add(1)
			h.missed() // while nobody listened
			h.deaf.Store(false)
		},
		Heard: func(channel, payload string) {
			h.turn()
			h.heard(channel, payload)
		},
		Quiet: h.turn,
		Lost:  func(error) { h.deaf.Store(true) },
		Wait:  func(ctx context.Context, wait time.Duration) { h.pollUntil(ctx, time.Now().Add(wait)) },
	}.Run(ctx)
}

// pollUntil has everything looked at each deafPoll until then.
func (h *Hub) pollUntil(ctx context.Context, then time.Time) {
	for ctx.Err() == nil {
		left := time.Until(then)
		if left <= 0 {
			return
		}
		h.turn()
		timer := time.NewTimer(min(left, deafPoll))
		select {
		case <-ctx.Done():
		case <-timer.C:
			h.missed()
		}
		timer.Stop()
	}
}
