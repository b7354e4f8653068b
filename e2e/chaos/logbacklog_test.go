package chaos

import (
	"os"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/e2e/site"
)

// The agent stands still while its run prints a very long log to the end, and
// is killed then: the next start delivers all of it, and the result, in as
// little memory as ever.
func TestLongLogDeliveredByTheNextStart(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	f := torrent{Lines: times(30_000, 200_000), Bytes: 1000}
	a := w.torrentAgent(f)
	a.Set("TENDRIL_RUN_LOG_LIMIT", "512MiB")
	a.Start()
	id := w.DeployTemplate(w.repo, "a", map[string]any{"n": 1, "workspace": "a", "lines": 1, "pause": "0"})
	w.AwaitLine(id, "line 1 ")
	if err := a.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await(t, "the engine's last line", func() bool {
		_, err := os.Stat(printedIn(w.journal))
		return err == nil
	})
	await(t, "the run's process to end", func() bool { return len(workingIn(a.Dir)) == 0 })
	a.Kill()
	counted.add("faults: SIGKILL of an agent with a very long log to deliver", 1)
	before := w.Text(t, "SELECT count(*)::text FROM public.provision_logs WHERE provision_id = $1", id)
	a.Start()
	stop := watch(a)
	defer stop()
	if got := w.AwaitEnd(id); got != "SUCCESS" {
		t.Fatalf("provision = %s (%s), want SUCCESS: its process had ended well", got, w.Message(id))
	}
	p := stop()
	t.Logf("%.1f MB, all but %s chunks delivered by the next start: %s", float64(f.Lines*f.Bytes)/1e6, before, p)
	if p.agent > floodMemory || p.agent == 0 {
		t.Errorf("%s, want at most %d MB of the agent", p, floodMemory>>20)
	}
	// Told to end before it knows that the result is stored, it would leave the
	// spool to its next start.
	await(t, "the spool to be removed", func() bool { return len(a.Spools()) == 0 })
	a.Terminate()
	w.count(a)
	flood{w, f, id, p}.whole()
}
