package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/process"
)

// keepBusy queues runs until each of the workspaces has some to do.
func (w *works) keepBusy(workspaces int) {
	w.T.Helper()
	for i := range workspaces {
		name := fmt.Sprintf("w%d", i)
		waiting := w.Text(w.T, `SELECT count(*)::text FROM public.provisions p JOIN public.workspaces w ON w.id = p.workspace_id
			WHERE w.name = $1 AND p.status IN ('QUEUED', 'PROCESSING')`, name)
		if len(waiting) == 1 && waiting < "3" {
			w.deploy(name, 5+rand.N(40), 5*time.Millisecond)
		}
	}
}

// running notes what runs now as hit by a kill, and answers their stages.
func (w *works) running(at time.Time) (stages []string) {
	w.T.Helper()
	text := w.Text(w.T, "SELECT coalesce(string_agg(provision_id || '=' || coalesce(stage, 'checkout'), ' '), '') FROM tendril.claims WHERE state = 'running'")
	for _, entry := range strings.Fields(text) {
		id, stage, _ := strings.Cut(entry, "=")
		for _, r := range w.runs {
			if r.id.String() == id && r.killed.IsZero() {
				r.killed = at
			}
		}
		stages = append(stages, stage)
	}
	return stages
}

// aMoment waits until a run is in a stage chosen at random, and a little longer.
// A stage too short to be met is not waited for beyond a few seconds.
func (w *works) aMoment() {
	w.T.Helper()
	stages := []string{"checkout", "init", "plan", "apply", "apply", "outputs"}
	stage := stages[rand.N(len(stages))]
	for limit := time.Now().Add(3 * time.Second); time.Now().Before(limit); {
		if w.Text(w.T, "SELECT EXISTS (SELECT FROM tendril.claims WHERE state = 'running' AND coalesce(stage, 'checkout') = $1)::text", stage) == "true" {
			break
		}
		<-time.After(2 * time.Millisecond) // between two looks
	}
	<-time.After(rand.N(200 * time.Millisecond))
}

// The agent is killed at random moments, and started again each time.
func TestAgentKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.alone("victim", 3).Start()
	kills := fewer(5, 15, 200)
	for range kills {
		w.keepBusy(4)
		w.aMoment()
		at := time.Now()
		a.Kill()
		for _, stage := range w.running(at) {
			counted.add("runs hit by a SIGKILL of the agent in stage "+stage, 1)
		}
		counted.add("faults: SIGKILL of the agent", 1)
		a.Start()
	}
	w.awaitAll()
	a.Terminate()
	w.count(a, "SUCCESS", "FAILED/agent_restarted")
}

// The process of one run is killed at random moments; the others go on.
func TestExecKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.alone("parent", 3).Start()
	kills := fewer(4, 10, 60)
	for killed := 0; killed < kills; {
		w.keepBusy(4)
		w.aMoment()
		children, err := process.Descendants(a.Cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		for _, child := range children {
			if child.Parent != a.Cmd.Process.Pid {
				continue
			}
			// Which run it is does not show from outside: all that runs may
			// have been hit.
			w.running(at)
			if err := syscall.Kill(child.PID, syscall.SIGKILL); err == nil {
				killed++
				counted.add("faults: SIGKILL of exec", 1)
			}
			break
		}
	}
	w.awaitAll()
	a.Terminate()
	w.count(a, "SUCCESS", "FAILED/exec_died")
}

// SIGTERM in the middle of an apply: what ends within the drain time ends well,
// what does not is interrupted and says why.
func TestAgentTerminatedMidApply(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	a := w.alone("drained", 2)
	a.Set("TENDRIL_DRAIN_TIMEOUT", "10s")
	for range times(1, 10) {
		a.Start()
		long := w.deploy("long", endless, 20*time.Millisecond)
		w.awaitPrinted(long, 5)
		short := w.deploy("short", endless, 10*time.Millisecond)
		w.awaitPrinted(short, 5)
		if err := a.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		a.AwaitOutput("nothing more is claimed")
		w.enough(short)
		a.Exit()
		counted.add("faults: SIGTERM of the agent mid-apply", 1)
		long.killed = time.Now() // interrupted, so its script may not have come to its end
		if got := w.Status(t, long.id); got != "FAILED/agent_drained" {
			t.Errorf("what outlasts the drain time = %s, want FAILED/agent_drained", got)
		}
		if got := w.Status(t, short.id); got != "SUCCESS" {
			t.Errorf("what ends within the drain time = %s, want SUCCESS", got)
		}
	}
	w.count(a, "SUCCESS", "FAILED/agent_drained")
}
