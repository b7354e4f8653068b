package chaos

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
)

// Each agent of a cluster is replaced in turn while all are at work, as a rolling
// upgrade does it: SIGTERM, and when it has ended another process in its data
// directory. What it runs ends well, the others take what comes meanwhile.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	agents := []*site.Agent{w.agent("one", 2, w.SharedState()), w.agent("two", 2, w.SharedState())}
	for _, a := range agents {
		a.Set("TENDRIL_DRAIN_TIMEOUT", site.Patience.String())
		a.Start().AwaitOutput("registered")
	}
	atWork := func(a *site.Agent) string {
		return w.Text(t, `SELECT count(*)::text FROM tendril.claims c JOIN public.agents a USING (instance_id) WHERE c.state = 'running' AND a.name = $1`, a.Name)
	}
	for i, old := range agents {
		for slot := range 4 {
			w.deploy(fmt.Sprintf("round-%d-%d", i, slot), endless, 20*time.Millisecond)
		}
		busy := w.runs[len(w.runs)-4:]
		for _, r := range busy {
			w.awaitPrinted(r, 5)
		}
		if err := old.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		old.AwaitOutput("nothing more is claimed")
		if got := atWork(old); got != "2" {
			t.Errorf("agent %s has %s runs when it begins to drain, want 2", old.Name, got)
		}
		counted.add("faults: agents replaced mid-apply", 1)
		for slot := range 4 {
			w.deploy(fmt.Sprintf("round-%d-%d", i, slot), 10, time.Millisecond)
		}
		w.deploy("elsewhere", 10, time.Millisecond)
		for _, r := range busy {
			w.awaitMore(r, 5)
			w.enough(r)
		}
		if code, out := old.Exit(); code != 0 {
			t.Errorf("agent %s ended with exit code %d:\n%s", old.Name, code, out)
		}
		old.Start().AwaitOutput("registered")
	}
	w.awaitAll()
	for _, a := range agents {
		a.Terminate()
		w.count(a, "SUCCESS")
	}
	if got, want := w.Text(t, "SELECT count(*)::text FROM tendril.claims"), fmt.Sprint(len(w.runs)); got != want {
		t.Errorf("%s claims for %s runs, want none to be run twice", got, want)
	}
}
