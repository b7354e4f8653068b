package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// After its workspace was released, an apply that goes on all the same is asked
// to stop, also when the next run has begun there.
func TestReleasedApplyIsAskedToStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.Slots = 1
	a := startAgent(t, s)
	first := w.deploy(t, "prod", "apply", "touch first", "hold never", "succeed")
	w.touched(t, "first")
	next := w.deploy(t, "prod", "apply", "touch second", "hold go", "succeed")
	w.lose(t, first)
	s.Name, s.DataDir = "two", filepath.Join(t.TempDir(), "data")
	b := startAgent(t, s)
	b.says(t, "registered")
	w.Exec(t, "SELECT public.release_workspace(id, 'test') FROM public.workspaces")
	w.touched(t, "second")
	a.says(t, "reason=cancelled")
	patience.Await(t, "the released run to stop", func() bool {
		stops, err := os.ReadFile(filepath.Join(w.meet, "stops"))
		return err == nil && strings.Contains(string(stops), "cancelled")
	})
	w.release(t, "go")
	w.becomes(t, next, "SUCCESS")
	// It hears of the release at once: it may settle before the next begins.
	if got := w.Status(t, first); got != "FAILED/agent_lost" && got != "CANCELLED/cancelled" {
		t.Errorf("the released run = %s, want it cancelled, or lost where another has begun since", got)
	}
	a.stops(t)
	b.stops(t)
	w.wantNothingLeft(t)
}

// A run that still holds its workspace settles however late it is.
func TestHeldRunSettlesAfterMoreThanADay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "apply", "touch running", "hold go", "print 2", "succeed")
	w.touched(t, "running")
	w.lose(t, id)
	w.Exec(t, "UPDATE tendril.claims SET ended_at = now() - interval '25 hours'")
	w.release(t, "go")
	w.becomes(t, id, "SUCCESS")
	if held := w.Text(t, "SELECT coalesce(held_by_claim::text, '') FROM public.workspaces"); held != "" {
		t.Errorf("held_by_claim = %s, want the workspace free", held)
	}
	a.stops(t)
	w.wantNothingLeft(t)
}
