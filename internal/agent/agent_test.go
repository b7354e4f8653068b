package agent

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestARunFromQueueToResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "print 3", "apply", "hold go", "print 2", "succeed")
	w.logs(t, id, lines(3)) // while it runs
	if got := w.Status(t, id); got != "PROCESSING" {
		t.Errorf("status = %s, want PROCESSING", got)
	}
	w.release(t, "go")
	w.becomes(t, id, "SUCCESS")
	if got, want := w.Log(t, id), lines(3)+lines(2); got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	a.stops(t)
	w.wantNothingLeft(t)
}

func TestTwentyProvisionsOnThreeSlots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ids []uuid.UUID
	for i := range 20 {
		ids = append(ids, w.deploy(t, fmt.Sprintf("w%d", i%10), "print 5", "apply", "hold go", "print 5", "succeed"))
	}
	s := w.setup()
	s.Slots = 3
	a := startAgent(t, s)
	patience.Await(t, "three to run", func() bool {
		return w.Text(t, "SELECT count(*)::text FROM public.provisions WHERE status = 'PROCESSING'") == "3"
	})
	w.release(t, "go")
	for _, id := range ids {
		w.becomes(t, id, "SUCCESS")
		if got, want := w.Log(t, id), lines(5)+lines(5); got != want {
			t.Errorf("log = %q, want %q", got, want)
		}
	}
	const atOnce = `SELECT max(n)::text FROM (SELECT count(*) n FROM tendril.claims a JOIN tendril.claims b
		ON b.created_at <= a.created_at AND b.ended_at > a.created_at GROUP BY a.id) x`
	if got := w.Text(t, atOnce); got != "3" {
		t.Errorf("at most %s ran at once, want 3", got)
	}
	if got := w.Text(t, "SELECT count(*)::text FROM tendril.claims"); got != "20" {
		t.Errorf("claims = %s, want 20", got)
	}
	a.stops(t)
	w.wantNothingLeft(t)
}

func TestCancelReachesTheChildOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "apply", "touch running", "hold never")
	w.touched(t, "running")
	// Two heartbeats and more say it again.
	w.Exec(t, "SELECT public.cancel_provision($1)", id)
	w.Exec(t, "SELECT public.cancel_provision($1)", id)
	w.becomes(t, id, "CANCELLED/cancelled")
	a.stops(t)
	if got := w.stops(t); got != "cancelled" {
		t.Errorf("the child was asked to stop for %q, want once for cancelled", got)
	}
}

func TestAgentKilledAndStartedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	failing := w.deploy(t, "prod", "print 3", "apply", "touch failing", "hold never")
	// Goes on for a while after the agent has died, and finishes its work.
	finishing := w.deploy(t, "dev", "print 2", "apply", "touch finishing", "sleep go", "print 2", "succeed")
	w.touched(t, "failing")
	child := w.touched(t, "finishing")
	a.kill()

	b := startAgent(t, w.setup())
	b.says(t, "waiting for an earlier run's process to end")
	// The old child keeps one of the two slots, and its workspace; the other
	// slot is used.
	first, second := w.deploy(t, "other", "touch running", "hold first", "succeed"), w.deploy(t, "third", "succeed")
	same := w.deploy(t, "dev", "succeed")
	w.touched(t, "running")
	if !process.Alive(child) {
		t.Fatal("the old child is dead, want it to outlive its agent")
	}
	if got := w.Status(t, second); got != "QUEUED" {
		t.Errorf("a second run beside the old child = %s, want QUEUED: both slots are taken", got)
	}
	w.release(t, "first")
	w.becomes(t, first, "SUCCESS")
	w.becomes(t, second, "SUCCESS")
	if got := w.Status(t, same); got != "QUEUED" {
		t.Errorf("a run in the old child's workspace = %s, want QUEUED", got)
	}
	w.release(t, "go")
	w.becomes(t, same, "SUCCESS")

	w.becomes(t, failing, "FAILED/agent_restarted")
	got := w.Log(t, failing)
	if !strings.HasPrefix(got, lines(3)+"stopped: agent_gone\n") || !strings.Contains(got, "Apply had begun") {
		t.Errorf("log = %q, want all lines, those after the agent's death too, and at the end that apply had begun", got)
	}
	w.becomes(t, finishing, "SUCCESS")
	if got, want := w.Log(t, finishing), lines(2)+lines(2); got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	const order = `SELECT (a.created_at > b.ended_at)::text FROM tendril.claims a, tendril.claims b WHERE a.provision_id = $1 AND b.provision_id = $2`
	if w.Text(t, order, same, finishing) != "true" {
		t.Error("the new boot claimed on the workspace before the old child had ended")
	}
	b.stops(t)
	w.wantNothingLeft(t)
}

func TestKilledChild(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, says string
		steps      []string
	}{
		{"before apply", "Apply had not begun", []string{"print 2", "orphan grandchild", "die"}},
		{"during apply", "Apply had begun", []string{"print 2", "apply", "orphan grandchild", "die"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a := startAgent(t, w.setup())
			id := w.deploy(t, "prod", c.steps...)
			w.becomes(t, id, "FAILED/exec_died")
			if grandchild := w.touched(t, "grandchild"); process.Alive(grandchild) {
				t.Errorf("process %d, which the child left in a session of its own, is alive", grandchild)
			}
			got := w.Log(t, id)
			if !strings.HasPrefix(got, lines(2)+"The process that carried this run out was ended by signal 9 (killed)") || !strings.Contains(got, c.says) {
				t.Errorf("log = %q, want its lines, then how it died and %q", got, c.says)
			}
			a.stops(t)
			w.wantNothingLeft(t)
		})
	}
}

func TestSiblingSurvivesASweep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.Beside = true
	a := startAgent(t, s)
	sibling := w.deploy(t, "sibling", "orphan grandchild", "touch ready", "hold go", "succeed")
	w.touched(t, "ready")
	w.becomes(t, w.deploy(t, "prod", "die"), "FAILED/exec_died")
	if grandchild := w.touched(t, "grandchild"); !process.Alive(grandchild) {
		t.Error("the sibling's own child is dead, want it left alone")
	}
	w.release(t, "go")
	w.becomes(t, sibling, "SUCCESS")
	a.stops(t)
}

func TestPanicStaysInTheAgentsLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "print 1", "panic")
	w.becomes(t, id, "FAILED/exec_died")
	message := w.Text(t, "SELECT error_message FROM public.provisions WHERE id = $1", id)
	if !strings.Contains(message, "ended with exit status 2") || strings.Contains(message+w.Log(t, id), "0xdeadbeef") {
		t.Errorf("message = %q, want how it ended and nothing of the panic", message)
	}
	a.says(t, "0xdeadbeef")
	a.stops(t)
}

func TestExitWithoutResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	w.becomes(t, w.deploy(t, "prod", "print 1", "exit 0"), "FAILED/exec_died")
	a.stops(t)
}

func TestFlood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	const n = 50_000 // of 100 bytes
	id := w.deploy(t, "prod", "flood "+strconv.Itoa(n), "babble 1000000", "succeed")
	w.becomes(t, id, "SUCCESS")
	if got := len(w.Log(t, id)); got != 100*n {
		t.Errorf("log has %d bytes, want %d", got, 100*n)
	}
	a.says(t, "the last words")
	if got := 10 * strings.Count(a.log.String(), strings.Repeat("b", 10)); got > 20_000 {
		t.Errorf("the agent's log took %d bytes of a child's own output, want the end of it only", got)
	}
	a.stops(t)
}

// The result counts when the child has ended, and not before: what runs may go
// on until then.
func TestWorkspaceIsFreeWhenItsChildHasEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	first := w.deploy(t, "prod", "succeed", "touch lingering", "sleep go")
	w.touched(t, "lingering")
	second := w.deploy(t, "prod", "succeed")
	other := w.deploy(t, "other", "succeed")
	w.becomes(t, other, "SUCCESS") // there is a free slot
	for id, want := range map[uuid.UUID]string{first: "PROCESSING", second: "QUEUED"} {
		if got := w.Status(t, id); got != want {
			t.Errorf("provision while the first one's child lingers = %s, want %s", got, want)
		}
	}
	w.release(t, "go")
	w.becomes(t, first, "SUCCESS")
	w.becomes(t, second, "SUCCESS")
	a.stops(t)
}

func TestChildThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.NoChild = true
	a := startAgent(t, s)
	id := w.deploy(t, "prod", "succeed")
	w.becomes(t, id, "FAILED/internal")
	a.says(t, "/nowhere/tendril")
	a.stops(t)
	w.wantNothingLeft(t)
}
