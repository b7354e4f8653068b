package rpcgateway

import (
	"cmp"
	"container/list"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// A request that prefers to wait (RFC 7240) and has nothing to tell is held:
//
//	call ─ tendril.hold is set? ─ no ──▶ answer
//	  ▲          │ yes
//	  │          ▼
//	  └─ wake ─ held ─ its time is over, a newer one of its key, shutdown ──▶ answer what there is
//
// The function itself says so, by setting tendril.hold to {key, seconds, topics}: nothing
// here knows which function that is. A wake is a hint. The call is repeated, which is safe
// for every call of the contract, and says again that there is nothing, or has something.
// While it is held a call has no connection to the database, and is none of MaxCalls.

const (
	// heldSetting is what a function sets for its transaction.
	heldSetting = "tendril.hold"
	// longestWait is the longest that a client may prefer to wait: what stands between
	// gives up idle requests after a minute.
	longestWait = 50 * time.Second
	// maxTopics and maxKey bound what a held call is remembered by.
	maxTopics, maxKey = 8, 200
	// leastAgain is how soon a held call is repeated at the earliest because its function
	// says so.
	leastAgain = 100 * time.Millisecond
	// pace is how long a client that was woken for work has to take it, until the next one
	// is woken, if there is still some.
	pace = 20 * time.Millisecond
	// spread, and spreadEach for each held call, is over how long all are woken when
	// notifications may have been missed.
	spread, spreadEach = 2 * time.Second, time.Millisecond
	// away is how long clients are asked to stay away when the process stops, at most.
	away = 3
	// remembered is how many notifications are kept for calls that are just being made.
	remembered = 1024
	// deafFor is how long a session may be lost until calls are no longer held.
	deafFor = 3 * time.Second
)

// turns are the channels where one waiting call is woken for each notification, in order of
// arrival: what they tell of is for one alone. On others all are woken.
func turns() []string { return []string{"tendril_work"} }

// heldChannels are what topics may begin with.
func heldChannels() []string { return []string{"tendril_work", "tendril_agent"} }

// holdWish is what a function sets.
type holdWish struct {
	Key     string   `json:"key"`
	Seconds float64  `json:"seconds"`
	Topics  []string `json:"topics"`
}

// wishOf reads the setting; false where the call has something to tell.
func wishOf(setting []byte) (holdWish, bool) {
	var wish holdWish
	if len(setting) == 0 || json.Unmarshal(setting, &wish) != nil {
		return wish, false
	}
	return wish, wish.Key != "" && len(wish.Key) <= maxKey && len(wish.Topics) <= maxTopics
}

func (w holdWish) again() time.Duration {
	return max(leastAgain, time.Duration(min(w.Seconds, longestWait.Seconds())*float64(time.Second)))
}

// held is a call that waits. All but its channels belongs to waiting.
type held struct {
	key     string
	arrived uint64
	topics  []string
	places  []*list.Element // in the queue of each topic; nil: it is in none
	wake    chan reason     // the first of several
	over    chan struct{}   // closed when a newer call of its key has come
}

// reason is why a held call is woken.
type reason struct {
	// turn is the topic whose next in line is woken after this one.
	turn string
	// within: any time within so long.
	within time.Duration
}

// waiting are all held calls of this process.
type waiting struct {
	limit *semaphore.Weighted

	mu     sync.Mutex
	topics map[string]*list.List // of *held, the longest waiting first
	keys   map[string]*held      // the newest of each key
	count  int
	came   uint64
	// told counts notifications, of which recent has the newest.
	told   uint64
	recent [remembered]string
	pacing map[string]bool // topics whose next in line is woken in a moment
	ended  chan struct{}   // closed at shutdown
	// lostAt is since when no notification is heard; zero: they are.
	lostAt time.Time
	deaf   bool
	woken  map[string]uint64 // how often, by reason, for the metrics
}

func newWaiting(most int) *waiting {
	return &waiting{
		limit: semaphore.NewWeighted(int64(most)), topics: map[string]*list.List{}, keys: map[string]*held{},
		pacing: map[string]bool{}, ended: make(chan struct{}), lostAt: time.Now(), woken: map[string]uint64{},
	}
}

// now is a mark before a call: what is notified after it is not missed.
func (w *waiting) now() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told
}

// hears reports whether a held call would be woken.
func (w *waiting) hears() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.deaf && (w.lostAt.IsZero() || time.Since(w.lostAt) < deafFor)
}

// enter makes a call one that waits, of which there is one for each key: an older one is over,
// for its client has sent this one instead.
func (w *waiting) enter(key string) *held {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.came++
	h := &held{key: key, arrived: w.came, wake: make(chan reason, 1), over: make(chan struct{})}
	if older := w.keys[key]; older != nil {
		w.remove(older)
		close(older.over)
		w.woken["superseded"]++
	}
	w.keys[key] = h
	w.count++
	return h
}

func (w *waiting) leave(h *held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(h)
	if w.keys[h.key] == h {
		delete(w.keys, h.key)
	}
	w.count--
}

// queue has a call wait for topics, of which it has seen all notifications before the mark.
// One that has waited already keeps its place before those that came later.
func (w *waiting) queue(h *held, topics []string, mark uint64, again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys[h.key] != h {
		return // it is over
	}
	h.topics = topics
	for _, topic := range topics {
		queue := w.topics[topic]
		if queue == nil {
			queue = list.New()
			w.topics[topic] = queue
		}
		if again {
			h.places = append(h.places, queue.PushFront(h))
		} else {
			h.places = append(h.places, queue.PushBack(h))
		}
	}
	missed := w.told-mark > remembered
	for n := mark; n < w.told && !missed; n++ {
		missed = slices.Contains(topics, w.recent[n%remembered])
	}
	if missed {
		w.take(h, reason{}, "notified")
	}
}

func (w *waiting) remove(h *held) {
	for i, place := range h.places {
		queue := w.topics[h.topics[i]]
		queue.Remove(place)
		if queue.Len() == 0 {
			delete(w.topics, h.topics[i])
		}
	}
	h.places = nil
}

// out takes a call out of all queues, whatever ended its wait. What is notified from the mark
// on is not missed, and the turn that came at that moment, if any, is its turn.
func (w *waiting) out(h *held, why reason) (_ reason, mark uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(h)
	select {
	case late := <-h.wake:
		why.turn = cmp.Or(late.turn, why.turn)
	default:
	}
	return why, w.told
}

// take wakes a call, which is in no queue from then on.
func (w *waiting) take(h *held, why reason, counted string) {
	w.remove(h)
	w.woken[counted]++
	select {
	case h.wake <- why:
	default:
	}
}

// heard wakes those that wait for a notification.
func (w *waiting) heard(channel, payload string) {
	topic := channel + ":" + payload
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recent[w.told%remembered] = topic
	w.told++
	if slices.Contains(turns(), channel) {
		w.next(topic)
		return
	}
	for queue := w.topics[topic]; queue != nil && queue.Len() > 0; {
		w.take(queue.Front().Value.(*held), reason{}, "notified")
	}
}

// next wakes the first in line.
func (w *waiting) next(topic string) {
	if queue := w.topics[topic]; queue != nil {
		w.take(queue.Front().Value.(*held), reason{turn: topic}, "notified")
	}
}

// passOn wakes the next in line in a moment: there was something for the one before, and
// there may be more. The client that was told needs that moment to take it.
func (w *waiting) passOn(topic string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if topic == "" || w.pacing[topic] {
		return
	}
	w.pacing[topic] = true
	time.AfterFunc(pace, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.pacing, topic)
		w.next(topic)
	})
}

// began has all look once: what was notified while there was no session is lost.
func (w *waiting) began() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lostAt, w.deaf = time.Time{}, false
	within := spread + time.Duration(w.count)*spreadEach
	for _, h := range w.keys {
		w.take(h, reason{within: within}, "unheard")
	}
}

// lost notes that nothing is heard.
func (w *waiting) lost(deaf bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaf = w.deaf || deaf
	if w.lostAt.IsZero() {
		w.lostAt = time.Now()
	}
}

// end answers all with what they have, and holds nothing from then on.
func (w *waiting) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isOver() {
		close(w.ended)
	}
}

// isOver reports whether all calls are to end.
func (w *waiting) isOver() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// Held is how held calls stand.
type Held struct {
	// Calls are held now, at most Limit.
	Calls, Limit int
	// Woken counts repeats by reason: notified, unheard (notifications may have been missed)
	// and superseded (by a newer call of the same client, and answered without a repeat).
	Woken map[string]uint64
	// Listening: a session hears notifications. Without one no call is held.
	Listening bool
}

// Held says how held calls stand.
func (g *Gateway) Held() Held {
	listening := g.waiting.hears()
	w := g.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	woken := map[string]uint64{"notified": 0, "unheard": 0, "superseded": 0}
	for why, n := range w.woken {
		woken[why] = n
	}
	return Held{Calls: w.count, Limit: g.options.MaxHeld, Woken: woken, Listening: listening}
}

// EndHeld answers all held calls with what they have, and holds none from then on. Their
// clients stay away for some seconds, each for another time.
func (g *Gateway) EndHeld() { g.waiting.end() }

// waited is how a call that was to be held ended.
type waited struct {
	answer answered
	// kept: it was held, or had something to tell at once, and so will the next one.
	kept bool
	// stopping: the process ends.
	stopping bool
	// held is how long of it nothing was done.
	held time.Duration
}

// callOrHold calls, and holds the call while it has nothing to tell, for as long as the
// client prefers. A repeat is more patient than the first call, for its client is known.
func (g *Gateway) callOrHold(r *http.Request, share *share, prefers time.Duration, call func(repeat bool) (answered, *refusal)) (end waited, no *refusal) {
	mark := g.waiting.now()
	if end.answer, no = call(false); no != nil || prefers == 0 || !g.waiting.hears() {
		return end, no
	}
	wish, nothing := wishOf(end.answer.hold)
	if end.kept = true; !nothing {
		return end, nil
	}
	if !share.held.TryAcquire(1) {
		return waited{answer: end.answer}, nil
	}
	defer share.held.Release(1)
	if !g.waiting.limit.TryAcquire(1) {
		return waited{answer: end.answer}, nil
	}
	defer g.waiting.limit.Release(1)
	over := time.NewTimer(min(prefers, longestWait))
	defer over.Stop()
	h := g.waiting.enter(wish.Key)
	defer g.waiting.leave(h)
	for again := false; ; again = true {
		began := time.Now()
		g.waiting.queue(h, wish.Topics, mark, again)
		why, woken := g.await(r, h, over, wish.again())
		why, mark = g.waiting.out(h, why)
		end.held += time.Since(began)
		if !woken {
			g.waiting.passOn(why.turn)
			end.stopping = g.waiting.isOver()
			return end, nil
		}
		answer, no := call(true)
		if no != nil {
			g.waiting.passOn(why.turn)
			return end, no
		}
		end.answer = answer
		if wish, nothing = wishOf(answer.hold); !nothing {
			g.waiting.passOn(why.turn)
			return end, nil
		}
	}
}

// await waits until a call is to be repeated; false: it is to be answered with what it has.
func (g *Gateway) await(r *http.Request, h *held, over *time.Timer, again time.Duration) (why reason, woken bool) {
	repeat := time.NewTimer(again)
	defer repeat.Stop()
	for {
		select {
		case why = <-h.wake:
			if why.within == 0 {
				return why, true
			}
			repeat.Reset(rand.N(why.within)) //nolint:gosec // spreads calls
		case <-repeat.C:
			return why, true
		case <-over.C:
			return why, false
		case <-h.over:
			return why, false
		case <-g.waiting.ended:
			return why, false
		case <-r.Context().Done():
			return why, false
		}
	}
}

// stayAway asks the client of a held call to come back at a time of its own.
func stayAway(header http.Header) {
	header.Set("Retry-After", strconv.Itoa(1+rand.IntN(away))) //nolint:gosec // spreads calls
	header.Set("Connection", "close")
}
