package chaos

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// shortLease is long enough for an agent to be heard of, however busy the machine is: one
// that is not was given up by right, and the test would be wrong.
func shortLease() time.Duration { return patience.For(5 * time.Second) }

// shortLeases has an agent given up that long after it was last seen.
func (w *works) shortLeases() {
	w.T.Helper()
	w.quickly()
	w.Exec(w.T, "UPDATE tendril.settings SET lease = $1, agent_alive = '3 s'", shortLease())
}

// quickly has agents ask again and again.
func (w *works) quickly() {
	w.T.Helper()
	w.Exec(w.T, "UPDATE tendril.settings SET heartbeat = '300 ms', poll = '300 ms'")
}

// freeze stops an agent's process, and what it started where tree is set.
// Nothing of it runs until the returned function is called.
func freeze(t testing.TB, a *site.Agent, tree bool) (thaw func()) {
	t.Helper()
	pids := []int{a.Cmd.Process.Pid}
	if tree {
		below, err := process.Descendants(a.Cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range below {
			pids = append(pids, p.PID)
		}
	}
	signal := func(s syscall.Signal) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, s) // one that has ended meanwhile needs none
		}
	}
	signal(syscall.SIGSTOP)
	counted.add("faults: SIGSTOP for longer than the lease", 1)
	t.Cleanup(func() { signal(syscall.SIGCONT) })
	return func() { signal(syscall.SIGCONT) }
}

// lostMidApply has a run whose agent is silent for longer than its lease, while
// another agent is there that would run what is queued on the workspace.
func lostMidApply(t *testing.T, w *works, tree bool) (frozen, witness *site.Agent, lost, next *workRun, thaw func()) {
	t.Helper()
	w.shortLeases()
	frozen = w.agent("frozen", 1, w.SharedState()).Start()
	lost = w.deploy("a", endless, 10*time.Millisecond)
	w.awaitPrinted(lost, 5)
	witness = w.agent("witness", 2, w.SharedState()).Start()
	thaw = freeze(t, frozen, tree)
	next = w.deploy("a", 10, 10*time.Millisecond)
	if got := w.AwaitEnd(lost.id); got != "FAILED/agent_lost" {
		t.Fatalf("the run of a silent agent = %s, want FAILED/agent_lost", got)
	}
	return frozen, witness, lost, next, thaw
}

// waits fails the test if a run has been claimed. Another workspace's run,
// queued later, proves that the other agent had the time to do so.
func (w *works) waits(r *workRun) {
	w.T.Helper()
	if got := w.AwaitEnd(w.deploy("elsewhere", 5, 10*time.Millisecond).id); got != "SUCCESS" {
		w.T.Fatalf("a run on another workspace = %s, want SUCCESS", got)
	}
	if got := w.Status(w.T, r.id); got != "QUEUED" {
		w.T.Errorf("what is queued on the workspace = %s, want QUEUED as long as it is held", got)
	}
}

// Only the agent stops: its engine goes on, and the result comes late.
func TestSilentAgentSettlesLate(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	frozen, witness, lost, next, thaw := lostMidApply(t, w, false)
	w.waits(next)
	w.awaitMore(lost, 50) // nobody stopped it
	w.enough(lost)
	w.awaitFinished(lost)
	if got := w.Status(t, next.id); got != "QUEUED" {
		t.Errorf("what is queued behind a lost apply = %s, want QUEUED", got)
	}
	thaw()
	w.Await("the late settlement", "SELECT status = 'SUCCESS' FROM public.provisions WHERE id = $1", lost.id)
	if got := w.AwaitEnd(next.id); got != "SUCCESS" {
		t.Errorf("what was queued behind it = %s, want SUCCESS", got)
	}
	log := w.Log(t, lost.id)
	if !strings.Contains(log, "is lost: its lease ran out") || !strings.Contains(log, "reported after all: SUCCESS") {
		t.Error("the log does not say that the agent was lost and came back")
	}
	frozen.Terminate()
	witness.Terminate()
	w.countLeftovers(frozen)
	w.count(witness, "SUCCESS")
}

// The whole machine stops, as a laptop does that sleeps.
func TestFrozenMachineSettlesLate(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	frozen, witness, lost, next, thaw := lostMidApply(t, w, true)
	w.waits(next)
	thaw()
	w.awaitMore(lost, 5)
	w.enough(lost)
	w.Await("the late settlement", "SELECT status = 'SUCCESS' FROM public.provisions WHERE id = $1", lost.id)
	if got := w.AwaitEnd(next.id); got != "SUCCESS" {
		t.Errorf("what was queued behind it = %s, want SUCCESS", got)
	}
	frozen.Terminate()
	witness.Terminate()
	w.countLeftovers(frozen)
	w.count(witness, "SUCCESS")
}

// Lost before apply had begun: the workspace is given to the next at once, and
// the silent agent applies nothing when it is back.
func TestAgentLostBeforeApply(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	w.shortLeases()
	frozen := w.agent("frozen", 1, w.SharedState()).Start()
	asked, answer := w.holdGit("worker")
	lost := w.deploy("a", 20, 10*time.Millisecond)
	asked()
	frozen.AwaitOutput("started") // or the answer to the claim may not have come
	thaw := freeze(t, frozen, false)
	answer()
	if got := w.Text(t, "SELECT (apply_begun_at IS NULL)::text FROM tendril.claims"); got != "true" {
		t.Fatal("the agent was stopped after apply had begun; this test wants it before")
	}
	witness := w.agent("witness", 2, w.SharedState()).Start()
	next := w.deploy("a", 10, 10*time.Millisecond)
	if got := w.AwaitEnd(next.id); got != "SUCCESS" {
		t.Errorf("the next run on the workspace = %s, want SUCCESS", got)
	}
	if got := w.Status(t, lost.id); got != "FAILED/agent_lost" {
		t.Errorf("the run of the silent agent = %s, want FAILED/agent_lost", got)
	}
	thaw()
	frozen.AwaitOutput("lost") // by a heartbeat, or by the answer to what it reports
	frozen.Terminate()
	witness.Terminate()
	if printed := w.printed(lost); len(printed) > 0 {
		t.Errorf("the lost run printed %d lines: it was applied", len(printed))
	}
	w.countLeftovers(frozen)
	w.count(witness, "SUCCESS", "FAILED/agent_lost")
}

// A cancel reaches a run that was given up and still holds its workspace.
func TestCancelReachesAHeldRun(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	w.shortLeases()
	frozen := w.agent("frozen", 1, w.SharedState()).Start()
	lost := w.deploy("a", endless, 10*time.Millisecond)
	w.awaitPrinted(lost, 5)
	witness := w.agent("witness", 2, w.SharedState()).Start()
	thaw := freeze(t, frozen, false)
	next := w.deploy("a", 10, 10*time.Millisecond)
	if got := w.AwaitEnd(lost.id); got != "FAILED/agent_lost" {
		t.Fatalf("the run of a silent agent = %s, want FAILED/agent_lost", got)
	}
	if got := w.Text(t, "SELECT public.cancel_provision($1)", lost.id); got != "FAILED" {
		t.Errorf("cancel_provision = %s, want FAILED: it was given up, and the request is noted", got)
	}
	w.waits(next)
	thaw()
	lost.killed = time.Now()
	w.Await("the late settlement", "SELECT status = 'CANCELLED' FROM public.provisions WHERE id = $1", lost.id)
	if got := w.AwaitEnd(next.id); got != "SUCCESS" {
		t.Errorf("what was queued behind it = %s, want SUCCESS", got)
	}
	frozen.Terminate()
	witness.Terminate()
	w.countLeftovers(frozen)
	w.count(witness, "SUCCESS", "CANCELLED/cancelled")
}

// killTree is what a power cut does to an agent and all it has started.
func (w *works) killTree(a *site.Agent) {
	w.T.Helper()
	thaw := freeze(w.T, a, true) // so that nobody reacts to another's death
	below, err := process.Descendants(a.Cmd.Process.Pid)
	if err != nil {
		w.T.Fatal(err)
	}
	w.running(time.Now())
	for _, p := range below {
		_ = syscall.Kill(p.PID, syscall.SIGKILL) // one that has ended meanwhile needs none
	}
	a.Kill()
	thaw()
	counted.add("faults: everything killed at once", 1)
}

// Everything on the machine dies during an apply, and comes back later than
// the lease: the hold ends with the sweep.
func TestPowerCutEndsTheHoldAtRestart(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	w.shortLeases()
	dead := w.agent("dead", 1, w.SharedState()).Start()
	lost := w.deploy("a", endless, 10*time.Millisecond)
	w.awaitPrinted(lost, 5)
	w.killTree(dead)
	witness := w.agent("witness", 2, w.SharedState()).Start()
	next := w.deploy("a", 10, 10*time.Millisecond)
	if got := w.AwaitEnd(lost.id); got != "FAILED/agent_lost" {
		t.Errorf("the run of a dead machine = %s, want FAILED/agent_lost", got)
	}
	w.waits(next)
	dead.Start()
	if got := w.AwaitEnd(next.id); got != "SUCCESS" {
		t.Errorf("what was queued behind it = %s, want SUCCESS once the machine is back", got)
	}
	dead.Terminate()
	witness.Terminate()
	w.countLeftovers(dead)
	w.count(witness, "SUCCESS", "FAILED/agent_lost")
}
