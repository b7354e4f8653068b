package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// oldChild is a restarted agent beside a child of the boot before that has lost
// its claim and still lives, and the next run of the workspace, which is claimed
// and waits.
func oldChild(t *testing.T) (w *world, b *agentUnderTest, child int, next uuid.UUID) {
	t.Helper()
	w = newWorld(t)
	a := startAgent(t, w.setup())
	old := w.deploy(t, "prod", "touch old", "sleep go")
	child = w.touched(t, "old")
	a.kill()
	w.lose(t, old) // the agent was down for longer than the lease
	b = startAgent(t, w.setup())
	b.says(t, "waiting for an earlier run's process to end")
	next = w.deploy(t, "prod", "touch new", "succeed")
	patience.Await(t, "the next to be claimed", func() bool { return w.Status(t, next) == "PROCESSING" })
	return w, b, child, next
}

// An agent that is told to end beside an old child does not let the next run of
// the workspace in: the old one may be at work there.
func TestDrainBesideAnOldChild(t *testing.T) {
	t.Parallel()
	w, b, child, next := oldChild(t)
	b.stops(t)
	if !process.Alive(child) {
		t.Fatal("the old child is dead, want it to outlive the agent")
	}
	if got := w.Status(t, next); got != "FAILED/agent_drained" {
		t.Errorf("the run that waited = %s, want FAILED/agent_drained", got)
	}
	if _, err := os.Stat(filepath.Join(w.meet, "new")); !os.IsNotExist(err) {
		t.Errorf("Stat(new) = %v, want the run that waited never started", err)
	}
	w.release(t, "go")
	c := startAgent(t, w.setup())
	w.becomes(t, w.deploy(t, "prod", "succeed"), "SUCCESS")
	c.stops(t)
	w.wantNothingLeft(t)
}

// A run that waits for an old child can be cancelled, and gives its slot back.
func TestCancelOfAWaitingRun(t *testing.T) {
	t.Parallel()
	w, b, child, next := oldChild(t)
	third := w.deploy(t, "dev", "succeed")
	w.Exec(t, "SELECT public.cancel_provision($1)", next)
	w.becomes(t, next, "CANCELLED/cancelled")
	w.becomes(t, third, "SUCCESS")
	if !process.Alive(child) {
		t.Error("the old child is dead, want it to go on")
	}
	w.release(t, "go")
	w.becomes(t, w.deploy(t, "prod", "succeed"), "SUCCESS")
	b.stops(t)
	w.wantNothingLeft(t)
}

// The lock of an old child is put out of place: what it ran is ended all the
// same, and its provision does not hang.
func TestLockOfAnOldChildGoesOdd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "apply", "touch running", "sleep go", "print 1")
	w.touched(t, "running")
	a.kill()
	b := startAgent(t, w.setup())
	b.says(t, "waiting for an earlier run's process to end")
	lock := filepath.Join(w.data, "spool", w.Text(t, "SELECT id::text FROM tendril.claims")+lockSuffix)
	if err := os.Rename(lock, lock+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(lock, 0o700); err != nil {
		t.Fatal(err)
	}
	w.becomes(t, id, "FAILED/agent_restarted")
	w.release(t, "go")
	w.becomes(t, w.deploy(t, "prod", "succeed"), "SUCCESS")
	b.stops(t)
}

// The same directory by another name is the same agent: what a killed run left
// running is found by it.
func TestDataDirectoryByAnotherName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.MkdirAll(w.data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(w.data, link); err != nil {
		t.Fatal(err)
	}
	s := w.setup()
	s.DataDir = link
	a := startAgent(t, s)
	id := w.deploy(t, "prod", "orphan grandchild", "touch running", "apply", "sleep never")
	child, grandchild := w.touched(t, "running"), w.touched(t, "grandchild")
	a.kill()
	if err := unix.Kill(child, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b := startAgent(t, w.setup())
	w.becomes(t, id, "FAILED/agent_restarted")
	if process.Alive(grandchild) {
		t.Errorf("the engine %d of the killed run lives", grandchild)
		_ = unix.Kill(grandchild, unix.SIGKILL)
	}
	b.stops(t)
}

// A state that a killed run left behind keeps other agents away, whether its
// agent lived on or was killed as well.
func TestStateOfAKilledRunKeepsOthersAway(t *testing.T) {
	t.Parallel()
	for name, agentToo := range map[string]bool{"the child killed": false, "the agent killed too": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.setup()
			s.Slots = 1
			a := startAgent(t, s)
			id := w.deploy(t, "prod", "apply", "touch running", "sleep never")
			child := w.touched(t, "running")
			source := filepath.Join(w.data, "work", w.Text(t, "SELECT id::text FROM public.workspaces"), job.SourceName)
			if err := os.MkdirAll(source, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(source, job.UnsavedState), []byte(`{"version": 4, "serial": 3, "lineage": "x"}`), 0o600); err != nil {
				t.Fatal(err)
			}
			end := "FAILED/exec_died"
			if agentToo {
				a.kill()
				end = "FAILED/agent_restarted"
			}
			if err := unix.Kill(child, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if agentToo {
				a = startAgent(t, s)
			}
			w.becomes(t, id, end)
			a.stops(t) // so that only the other could run what comes next
			next := w.deploy(t, "prod", "succeed")
			s.Name, s.DataDir = "two", filepath.Join(t.TempDir(), "data")
			b := startAgent(t, s)
			w.becomes(t, w.deploy(t, "elsewhere", "succeed"), "SUCCESS")
			if got := w.Status(t, next); got != "QUEUED" {
				t.Errorf("the next run on another agent = %s, want QUEUED: the first keeps a state", got)
			}
			b.stops(t)
		})
	}
}
