package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/queue"
)

// onHost has an agent run on what it takes for another machine.
func onHost(t *testing.T, a *site.Agent, host string) *site.Agent {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("another host name needs root")
	}
	a.Wrap = []string{"unshare", "--uts", "sh", "-c", `hostname "$0" && exec "$@"`, host}
	return a
}

// copyOf configures an agent whose data directory is a copy of another's.
func (w *works) copyOf(original *site.Agent, name string) *site.Agent {
	w.T.Helper()
	a := w.agent(name, 2, w.SharedState())
	// What is removed while it is copied is not in the copy.
	if out, err := exec.CommandContext(w.T.Context(), "cp", "-a", original.Dir, a.Dir).CombinedOutput(); err != nil && !strings.Contains(string(out), "No such file") {
		w.T.Fatalf("copying a data directory: %v: %s", err, out)
	}
	return a
}

// refused fails the test unless an agent ends by itself, saying so in a
// sentence that has all the parts.
func refused(t *testing.T, a *site.Agent, parts ...string) {
	t.Helper()
	code, out := a.Exit()
	if code != 1 {
		t.Errorf("agent %s ended with %d, want 1", a.Name, code)
	}
	for _, part := range parts {
		if !strings.Contains(out, part) {
			t.Errorf("agent %s said %q, want %q in it", a.Name, out, part)
		}
	}
	if strings.Contains(out, "goroutine") {
		t.Errorf("agent %s ended with a stack trace:\n%s", a.Name, out)
	}
}

// While runs go on, others want to be the agent that has them: on its data
// directory, by its name, with a copy of its directory on another machine and
// on the same one. Each is refused by a sentence that names the first, which is
// not disturbed.
func TestOthersWithTheSameIdentity(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	first := onHost(t, w.agent("first", 2, w.SharedState()), "machine-1").Start()
	for round := range times(1, 10) {
		a, b := w.deploy("a", endless, 20*time.Millisecond), w.deploy("b", endless, 20*time.Millisecond)
		w.awaitPrinted(a, 5)
		w.awaitPrinted(b, 5)

		twice := onHost(t, w.agent(fmt.Sprintf("twice-%d", round), 2, w.SharedState()), "machine-1")
		twice.Set("TENDRIL_DATA_DIR", first.Dir)
		namesake := onHost(t, w.agent("namesake", 2, w.SharedState()), "machine-2")
		namesake.Set("TENDRIL_NAME", "first")
		there := onHost(t, w.copyOf(first, fmt.Sprintf("copied-there-%d", round)), "machine-2")
		here := onHost(t, w.copyOf(first, fmt.Sprintf("copied-here-%d", round)), "machine-1")
		for _, other := range []*site.Agent{twice, namesake, there, here} {
			other.Start()
		}
		refused(t, twice, first.Dir, fmt.Sprintf("process %d", first.Cmd.Process.Pid), "in use", "a data directory and a name of its own")
		counted.add("faults: two agents on one data directory", 1)
		refused(t, namesake, `"first"`, "machine-1", "another name")
		counted.add("faults: two agents of one name", 1)
		for _, clone := range []*site.Agent{there, here} {
			refused(t, clone, "data directory", "machine-1:"+first.Dir, "do not copy it")
			counted.add("faults: copied data directory, the first alive", 1)
		}

		for _, r := range []*workRun{a, b} {
			if got := w.Status(t, r.id); got != "PROCESSING" {
				t.Errorf("run %d of the first = %s, want it to go on", r.n, got)
			}
			w.awaitMore(r, 5)
			w.enough(r)
		}
		for _, r := range []*workRun{a, b} {
			if got := w.AwaitEnd(r.id); got != "SUCCESS" {
				t.Errorf("run %d of the first = %s (%s), want SUCCESS", r.n, got, w.Message(r.id))
			}
		}
	}
	first.Terminate()
	w.nobodyLost()
	w.count(first, "SUCCESS")
}

// The first is dead, with all that it had started, in the middle of an apply.
// A copy of its directory cannot know that: it leaves the run to the lease and
// the workspace held, until the first is back.
func TestCopiedDataDirectoryOfTheDead(t *testing.T) {
	t.Parallel()
	hosts := []string{"machine-1"} // the first's own, which is harder to tell
	if full() {
		hosts = append(hosts, "machine-2")
	}
	for _, host := range hosts {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			w := newWorks(site.New(t))
			w.shortLeases()
			first := onHost(t, w.agent("first", 2, w.SharedState()), "machine-1").Start()
			lost := w.deploy("a", endless, 10*time.Millisecond)
			w.awaitPrinted(lost, 5)
			w.killTree(first)
			w.Await("the first to count as dead", "SELECT last_heartbeat_at < clock_timestamp() - interval '3 s' FROM public.agents WHERE name = 'first'")

			clone := onHost(t, w.copyOf(first, "clone"), host).Start()
			clone.AwaitOutput("registered")
			w.Exec(t, "UPDATE tendril.settings SET agent_alive = '1 minute'")
			counted.add("faults: copied data directory, the first dead", 1)
			next := w.deploy("a", 10, 10*time.Millisecond)
			if got := w.AwaitEnd(lost.id); got != "FAILED/agent_lost" {
				t.Errorf("the run of the dead = %s, want FAILED/agent_lost", got)
			}
			w.waits(next)

			// The copy is in its place as long as it lives.
			first.Start()
			refused(t, first, "data directory", host+":"+clone.Dir)
			clone.Terminate()
			w.Exec(t, "UPDATE tendril.settings SET agent_alive = '3 s'")
			w.Await("the clone to count as dead", "SELECT max(last_heartbeat_at) < clock_timestamp() - interval '3 s' FROM public.agents")
			first.Start()
			if got := w.AwaitEnd(next.id); got != "SUCCESS" {
				t.Errorf("what was queued behind it = %s, want SUCCESS once the first is back", got)
			}
			first.Terminate()
			w.countLeftovers(clone)
			w.count(first, "SUCCESS", "FAILED/agent_lost")
		})
	}
}

// The database is a version ahead of the agent, as after each upgrade of the
// control plane.
func TestOlderAgent(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	w.Exec(t, fmt.Sprintf("CREATE OR REPLACE FUNCTION tendril.contract_version() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT %d'", queue.Contract+1))
	if got := w.Text(t, "SELECT tendril.contract_version()::text"); got != fmt.Sprint(queue.Contract+1) {
		t.Fatalf("the database speaks contract %s", got)
	}
	a := w.agent("older", 2, w.SharedState()).Start()
	killed := w.deploy("a", endless, 10*time.Millisecond)
	w.awaitPrinted(killed, 5)
	a.Kill()
	killed.killed = time.Now()
	a.Start() // sweeps, and delivers what was left
	cancelled := w.deploy("b", endless, 10*time.Millisecond)
	w.awaitPrinted(cancelled, 5)
	cancelled.killed = time.Now()
	w.Exec(t, "SELECT public.cancel_provision($1)", cancelled.id)
	for range 3 {
		w.deploy("c", 10, time.Millisecond)
	}
	w.awaitAll()
	counted.add("faults: agent one contract version older", 1)
	a.Terminate()
	w.count(a, "SUCCESS", "FAILED/agent_restarted", "CANCELLED/cancelled")
	if got := w.Text(t, "SELECT contract::text FROM public.agents"); got != fmt.Sprint(queue.Contract) {
		t.Errorf("the agent registered contract %s, want %d", got, queue.Contract)
	}
}
