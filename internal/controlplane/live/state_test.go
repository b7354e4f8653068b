package live_test

import (
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/controlplane/live"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// How many watch, whether the hub hears, how often it had to begin, and that its
// loop turns.
func TestState(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live.Limits{})
	if s := w.hub.State(); s.Viewers != 0 {
		t.Errorf("of a hub that nobody watches %d do", s.Viewers)
	}
	patience.Await(t, "the hub hears", func() bool { s := w.hub.State(); return s.Listening && s.Sessions == 1 })
	w.open(t, "/log", "", w.viewer)
	w.open(t, "/log", "", w.viewer)
	named := w.open(t, "/live", "provision="+w.provision.String()+"&provision="+w.queue(t).String(), w.viewer)
	if s := w.hub.State(); s.Viewers != 3 {
		t.Errorf("viewers = %d, want 3: a stream is one, however many it names", s.Viewers)
	}
	before := w.hub.State().TurnedAt
	w.listeners(t, true)
	patience.Await(t, "the hub hears again", func() bool {
		s := w.hub.State()
		return s.Listening && s.Sessions == 2 && s.TurnedAt.After(before) && time.Since(s.TurnedAt) < time.Minute
	})
	_ = named.response.Body.Close()
	patience.Await(t, "one less watches", func() bool { return w.hub.State().Viewers == 2 })
}
