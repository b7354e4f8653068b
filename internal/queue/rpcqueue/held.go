package rpcqueue

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/rpcwire"
	"github.com/tendril-run/tendril/internal/retry"
)

const (
	// leastWait is the shortest time that is asked for. What gives up requests sooner than
	// that costs a further call each time, and nothing else.
	leastWait = 4 * time.Second
	// alike is how far apart two cuts may be that the same limit has made.
	alike = 1500 * time.Millisecond
	// longerAfter is when a longer wait is tried again.
	longerAfter = 10 * time.Minute
	// underWay is how long a held call has lasted that was cut, and did not fail at once.
	underWay = time.Second
	// spread is over how long agents come back whose calls were cut, perhaps all at once.
	spread = 3 * time.Second
)

// holding is how long the way to the database lets a heartbeat be held.
type holding struct {
	mu sync.Mutex
	// knows: the database's answers say whether there is work, so it can be asked to tell.
	knows    bool
	wait     time.Duration
	cutAfter time.Duration // the last held call; 0: it was not cut
	longerAt time.Time
}

// asks is how long the next heartbeat asks to be held; 0: not at all.
func (h *holding) asks() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.knows {
		return 0
	}
	if h.wait < queue.MaxHeld && !time.Now().Before(h.longerAt) {
		h.wait, h.longerAt = min(2*h.wait, queue.MaxHeld), time.Now().Add(longerAfter)
	}
	return h.wait
}

// learnt notes whether the database knows such heartbeats, and reports whether that is news.
func (h *holding) learnt(knows bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	news := knows && !h.knows
	h.knows = knows
	return news
}

// cut notes that a held call ended after so long without an answer. A server that stops does so
// at any time; what stands between does so after the same time again.
func (h *holding) cut(after time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cutAfter > 0 && (after-h.cutAfter).Abs() < alike && after < h.wait+alike {
		h.wait = max(leastWait, (min(after, h.cutAfter) * 4 / 5).Truncate(time.Second))
		h.longerAt, h.cutAfter = time.Now().Add(longerAfter), 0
		return
	}
	h.cutAfter = after
}

func (h *holding) whole() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cutAfter = 0
}

// Heartbeat implements queue.Queue. The gateway of trellis holds it if it may wait; PostgREST
// answers at once.
func (q *Queue) Heartbeat(ctx context.Context, beat queue.Beat) (queue.Pulse, error) {
	q.renew(ctx)
	wait := min(beat.Wait, q.holding.asks()).Truncate(time.Second)
	const doing = "send a heartbeat"
	function, arguments := q.beat(beat, nil)
	if wait == 0 {
		var reply pulse
		if err := q.call(ctx, doing, function, arguments, &reply); err != nil {
			return queue.Pulse{}, err
		}
		answer := rpcwire.Pulse(reply).Pulse()
		answer.Held = q.holding.learnt(reply.Work != nil) && beat.Wait > 0
		return q.seldom(answer), nil
	}
	function, arguments = q.beat(beat, &rpcwire.Awaits{Free: beat.Free, Checks: beat.Checks, Cancelled: beat.Cancelled, Lost: beat.Lost, Watched: notNull(beat.Watched)})
	body, err := json.Marshal(arguments)
	if err != nil {
		return queue.Pulse{}, fmt.Errorf("encode what is sent to %s: %w", function, err)
	}
	var reply pulse
	began := time.Now()
	header, trouble := q.hold(ctx, wait, doing, function, body, &reply)
	took := time.Since(began)
	var held bool
	switch {
	case trouble == nil:
		q.away.Store(false)
		q.holding.whole()
		held = header.Get("Preference-Applied") != "" && strings.Contains(header.Get("Preference-Applied"), preferWait)
	case ctx.Err() != nil:
		return queue.Pulse{}, trouble.Error
	case trouble.Code == "PGRST202" || trouble.Code == "42883":
		// The database is one of a time before: it was restored, or changed back.
		q.holding.learnt(false)
		return q.Heartbeat(ctx, beat)
	case !trouble.passing:
		q.away.Store(false)
		return queue.Pulse{}, trouble.Error
	default:
		if took >= underWay {
			q.holding.cut(took)
			if !retry.Sleep(ctx, rand.N(spread)) { //nolint:gosec // spreads calls
				return queue.Pulse{}, trouble.Error
			}
		}
		// Again without a wait: an outage shows, and a hiccup is met as that of any call.
		reply = pulse{}
		if err := q.send(ctx, queue.CallLimit(q.timeout, len(body)), doing, function, body, &reply); err != nil {
			return queue.Pulse{}, err
		}
		held, took = true, underWay
	}
	q.holding.learnt(reply.Work != nil)
	answer := rpcwire.Pulse(reply).Pulse()
	if answer.Work {
		q.promise()
	}
	if trouble == nil {
		answer.Again = retryAfter(header)
	}
	// What says that it holds calls, and answers at once that there is nothing, is not asked
	// again at once.
	answer.Held = (held || answer.Again > 0) && (took >= underWay || beat.News(answer))
	return q.seldom(answer), nil
}

// beat is which function a heartbeat calls with what: a runner renews its one claim.
func (q *Queue) beat(beat queue.Beat, awaits *rpcwire.Awaits) (function string, arguments any) {
	if runner := q.agent.Runner; runner != nil {
		return "renew_claim", rpcwire.RenewClaim{Hash: q.credential.Hash(), Claim: runner.Claim, Awaits: awaits}
	}
	return "agent_heartbeat", rpcwire.AgentHeartbeat{Caller: q.caller(), Claims: notNull(beat.Claims), Awaits: awaits}
}

// preferWait asks that an answer be held back, in seconds.
const preferWait = "wait="

// hold makes one exchange that may be held for so long.
func (q *Queue) hold(ctx context.Context, wait time.Duration, doing, function string, body []byte, reply reply) (http.Header, *trouble) {
	ctx, cancel := context.WithTimeout(ctx, wait+queue.CallLimit(q.timeout, len(body)))
	defer cancel()
	header := q.header.Clone()
	header.Set("Prefer", preferWait+strconv.Itoa(int(wait.Seconds())))
	// What hangs up does so again on the next connection: net/http would try that by itself, and
	// we would take the sum for the time after which we are cut.
	delete(header, idempotent)
	return q.exchange(ctx, header, doing, function, body, reply)
}
