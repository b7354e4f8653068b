package rpcqueue

import (
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/queue"
)

// What cuts requests after the same time twice shortens the wait; a server that is stopped at
// any time does not.
func TestWaitIsShortened(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cuts []time.Duration // 0: one that was whole
		want time.Duration
	}{
		"never":          {nil, queue.MaxHeld},
		"once":           {[]time.Duration{15 * time.Second}, queue.MaxHeld},
		"twice":          {[]time.Duration{15 * time.Second, 15200 * time.Millisecond}, 12 * time.Second},
		"at any time":    {[]time.Duration{15 * time.Second, 3 * time.Second, 9 * time.Second}, queue.MaxHeld},
		"whole between":  {[]time.Duration{15 * time.Second, 0, 15 * time.Second}, queue.MaxHeld},
		"after a moment": {[]time.Duration{time.Second, time.Second, time.Second, time.Second}, leastWait},
	} {
		h := holding{wait: queue.MaxHeld, knows: true}
		for _, after := range c.cuts {
			if after == 0 {
				h.whole()
			} else {
				h.cut(after)
			}
		}
		if got := h.asks(); got != c.want {
			t.Errorf("%s: the wait is %s, want %s", name, got, c.want)
		}
	}
	h := holding{wait: 5 * time.Second, knows: true, longerAt: time.Now().Add(-time.Second)}
	if got := h.asks(); got != 10*time.Second {
		t.Errorf("the wait after a while is %s, want it longer again", got)
	}
}
