package rpcgateway

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// woken waits until a call is woken.
func woken(t *testing.T, h *held) reason {
	t.Helper()
	select {
	case why := <-h.wake:
		return why
	case <-patience.After(time.Minute):
		t.Fatal("the call is not woken")
		return reason{}
	}
}

func asleep(t *testing.T, all ...*held) {
	t.Helper()
	for i, h := range all {
		if len(h.wake) > 0 {
			t.Errorf("call %d is woken, want it to wait", i)
		}
	}
}

// Work wakes one call after the other, first come, first served; what is for one client
// wakes that one.
func TestTurns(t *testing.T) {
	t.Parallel()
	w := newWaiting(10)
	const work, other = "tendril_work:c", "tendril_work:d"
	enter := func(key, topic string) *held {
		h := w.enter(key)
		w.queue(h, []string{topic, "tendril_agent:" + key}, w.now(), false)
		return h
	}
	first, second, third, stranger := enter("1", work), enter("2", work), enter("3", work), enter("4", other)
	w.heard("tendril_work", "c")
	why := woken(t, first)
	asleep(t, second, third, stranger)
	w.passOn(why.turn) // there was something
	w.passOn(why.turn)
	woken(t, second)
	asleep(t, third, stranger)
	w.heard("tendril_agent", "3")
	if why := woken(t, third); why.turn != "" {
		t.Errorf("what is for one client is passed on to the next of %q, want to nobody", why.turn)
	}
	asleep(t, stranger)
	// What has found nothing keeps its place.
	w.queue(second, []string{work}, w.now(), true)
	late := enter("5", work)
	w.heard("tendril_work", "c")
	woken(t, second)
	asleep(t, late)
	// Notifications between the call and its wait are not missed.
	mark := w.now()
	w.heard("tendril_work", "c")
	woken(t, late)
	w.queue(first, []string{work}, mark, true)
	woken(t, first)
	// A newer call of a key ends the older one, which waits for nothing any more.
	newer := enter("4", other)
	<-stranger.over
	w.queue(stranger, []string{other}, w.now(), true)
	w.heard("tendril_work", "d")
	woken(t, newer)
	asleep(t, stranger)
	// All are woken when something may have been missed.
	w.queue(newer, []string{other}, w.now(), true)
	w.began()
	if why := woken(t, newer); why.within < spread {
		t.Errorf("all are woken within %s, want them spread", why.within)
	}
	for _, h := range []*held{first, second, third, stranger, late, newer} {
		w.leave(h)
	}
	if w.count != 0 || len(w.keys) != 0 || len(w.topics) != 0 {
		t.Errorf("%d calls, keys %v and topics %v are left, want none", w.count, w.keys, w.topics)
	}
}

// One address holds its share of calls, further ones are answered at once; and a process that
// stops answers what it holds.
func TestHeldCallsEnd(t *testing.T) {
	t.Parallel()
	g := &Gateway{waiting: newWaiting(2)}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	share, leave := newShares(Options{MaxConns: 2, MaxCalls: 2, MaxHeld: 2}).of(netip.MustParseAddr("192.0.2.1"))
	defer leave()
	call := func(key string) waited {
		end, no := g.callOrHold(r, share, time.Hour, func(bool) (answered, *refusal) {
			return answered{rows: 1, hold: []byte(`{"key":"` + key + `","seconds":3600,"topics":["tendril_work:c"]}`)}, nil
		})
		if no != nil {
			t.Errorf("the call of %s is refused: %+v", key, no)
		}
		return end
	}
	ended := make(chan waited, 1)
	go func() { ended <- call("one") }()
	patience.Await(t, "the call to be held", func() bool {
		g.waiting.mu.Lock()
		defer g.waiting.mu.Unlock()
		return g.waiting.count == 1
	})
	if end := call("two"); end.kept {
		t.Error("a second call of the address is held, want it answered at once")
	}
	g.EndHeld()
	if end := <-ended; !end.stopping || end.held == 0 {
		t.Errorf("the held call ends with %+v, want it to say that the process stops", end)
	}
	g.EndHeld() // a second time is harmless
}

// A call that is repeated because its time has come is in its queue once, and is woken as before.
func TestHeldCallIsRepeated(t *testing.T) {
	t.Parallel()
	g := &Gateway{waiting: newWaiting(2)}
	g.waiting.began()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	share, leave := newShares(Options{MaxConns: 2, MaxCalls: 2, MaxHeld: 8}).of(netip.MustParseAddr("192.0.2.1"))
	defer leave()
	const repeats = 3
	calls := 0
	end, no := g.callOrHold(r, share, time.Hour, func(bool) (answered, *refusal) {
		switch calls++; {
		case calls <= repeats:
			return answered{hold: []byte(`{"key":"one","seconds":0,"topics":["tendril_work:c","tendril_agent:a"]}`)}, nil
		case calls == repeats+1:
			go func() { // once it is held again
				for limit := patience.Begin(time.Minute); !limit.Over(); limit.Pause() {
					g.waiting.mu.Lock()
					held := g.waiting.topics["tendril_work:c"] != nil
					g.waiting.mu.Unlock()
					if held {
						break
					}
				}
				g.waiting.heard("tendril_work", "c")
			}()
			return answered{hold: []byte(`{"key":"one","seconds":3600,"topics":["tendril_work:c"]}`)}, nil
		}
		return answered{rows: 1}, nil
	})
	if no != nil || end.answer.rows != 1 || calls != repeats+2 {
		t.Errorf("after %d calls it ends with %+v, %v, want the row of call %d", calls, end.answer, no, repeats+2)
	}
	if len(g.waiting.topics) != 0 {
		t.Errorf("topics %v are left, want none", g.waiting.topics)
	}
}

// The turn of a call that ends at the moment in which it is woken goes to the next in line.
func TestTurnOfACallThatEnds(t *testing.T) {
	t.Parallel()
	w := newWaiting(2)
	const work = "tendril_work:c"
	first, second := w.enter("1"), w.enter("2")
	for _, h := range []*held{first, second} {
		w.queue(h, []string{work}, w.now(), false)
	}
	w.heard("tendril_work", "c")
	why, _ := w.out(first, reason{})
	asleep(t, second)
	w.passOn(why.turn)
	woken(t, second)
}
