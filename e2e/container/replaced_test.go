package container

import (
	"fmt"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// kill -9 of all that is in the container, Terraform included, while it applies
// and the database cannot be reached: the next container at the volume, which has
// another name, as Docker gives it one, delivers each line that was printed, ends
// the run and goes on.
func TestKilledContainerIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(w)
	repo := a.countingRepo()
	a.start(shared.images.tendril(oldVersion))
	was := w.agents()
	id := w.deploy(repo, "", "acme/prod", nil)
	w.awaitLine(id, "line 5.")
	if _, err := shared.docker.NetworkDisconnect(t.Context(), shared.network.ID, client.NetworkDisconnectOptions{Container: a.now.GetContainerID(), Force: true}); err != nil {
		t.Fatal(err)
	}
	stored := wantCounted(t, w.Log(t, id))
	spooled := a.count() + 20
	patience.Await(t, "lines in the spool", func() bool {
		code, _ := a.exec("sh", "-c", fmt.Sprintf(`grep -q 'line %d\.' %s/spool/*`, spooled, dataDir))
		return code == 0
	})
	if got := wantCounted(t, w.Log(t, id)); got >= spooled {
		t.Fatalf("%d lines are stored, want fewer than %d: the agent was cut off after %d", got, spooled, stored)
	}
	a.kill()

	a.host = "another"
	a.start(shared.images.tendril(oldVersion))
	if got := w.awaitEnd(id); !strings.HasPrefix(got, "FAILED/agent_restarted: ") {
		t.Errorf("provision = %s, want FAILED/agent_restarted", got)
	}
	log := w.Log(t, id)
	if got := wantCounted(t, log); got < spooled {
		t.Errorf("the log has %d lines, want at least the %d that were in the spool", got, spooled)
	}
	if lines := strings.Split(strings.TrimSpace(log), "\n"); !strings.Contains(lines[len(lines)-1], "Apply had begun") {
		t.Errorf("the last line is %q, want it to say how far it had got", lines[len(lines)-1])
	}
	if got := w.agents(); got != was {
		t.Errorf("agents = %s, want still %s", got, was)
	}
	// The workspace is free, and its state whole.
	a.letGo()
	again := w.deploy(repo, "", "acme/prod", nil)
	if got := w.awaitEnd(again); got != "SUCCESS" {
		t.Errorf("the next run in the workspace = %s", got)
	}
	wantAllCounted(t, w.Log(t, again))
}

// docker stop in the middle of an apply: it goes on to its end, and the next
// version at the same volume goes on with what is queued.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(w)
	counting, hello := a.countingRepo(), a.helloRepo()
	a.start(shared.images.tendril(oldVersion))
	id := w.deploy(counting, "", "acme/prod", nil)
	w.awaitLine(id, "line 5.")
	queued := w.deploy(hello, "hello", "acme/next", map[string]any{"name": "new", "pause_seconds": 0})
	code := a.stop()
	a.says("draining")
	// It is not hurried: Docker's own ten seconds would be over.
	a.awaitCount(a.count() + 200)
	if got := w.Status(t, id) + " " + w.Status(t, queued); got != "PROCESSING QUEUED" {
		t.Errorf("what runs and what waits = %s, want it to be so until the apply ends", got)
	}
	a.letGo()
	if got, ended := <-code; !ended || got != 0 {
		t.Errorf("exit code = %d, want 0", got)
	}
	if got := w.awaitEnd(id); got != "SUCCESS" {
		t.Errorf("provision = %s", got)
	}
	wantAllCounted(t, w.Log(t, id))
	if got := w.Status(t, queued); got != "QUEUED" {
		t.Errorf("the provision in the queue = %s: nobody should have it", got)
	}

	instance, _, _ := strings.Cut(w.agents(), " ")
	a.start(shared.images.tendril(newVersion))
	if got := w.awaitEnd(queued); got != "SUCCESS" {
		t.Errorf("the provision that was queued = %s", got)
	}
	if got, want := w.agents(), instance+" "+newVersion; got != want {
		t.Errorf("agents = %s, want %s", got, want)
	}
}

// The control plane is replaced by its next version while an agent that knows
// nothing but its address applies.
func TestTrellisIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAgent(w)
	repo := a.countingRepo()
	before := startTrellis(w, shared.images.trellis(oldVersion))
	before.wantHealthy()
	a.env["TENDRIL_QUEUE_URL"] = before.url
	a.env["TENDRIL_QUEUE_CA_FILE"] = a.env["TENDRIL_GIT_CA_FILE"] // the same certificate
	a.start(shared.images.tendril(oldVersion))
	id := w.deploy(repo, "", "acme/prod", nil)
	w.awaitLine(id, "line 5.")
	before.stop()
	a.awaitCount(a.count() + 40) // meanwhile nobody takes its lines
	after := startTrellis(w, shared.images.trellis(newVersion))
	after.wantHealthy()
	last := a.count() + 1
	w.awaitLine(id, fmt.Sprintf("line %d.", last))
	a.letGo()
	if got := w.awaitEnd(id); got != "SUCCESS" {
		t.Errorf("provision = %s", got)
	}
	wantAllCounted(t, w.Log(t, id))
	if got := w.Text(t, "SELECT count(*)::text FROM pg_stat_activity WHERE usename = $1", w.name); got != "0" {
		t.Errorf("the agent has %s connections to the database, want none", got)
	}
}
