package chaos

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/process"
)

// stubborn is a template that does not let itself be ended: its provisioner
// ignores what asks it to, and has started a process in a session of its own
// that does so as well and holds the engine's output open.
const stubborn = `
resource "terraform_data" "a" {
  provisioner "local-exec" {
    command = "exec sh ${path.module}/stubborn.sh"
  }
}
`

const stubbornScript = `
trap '' INT TERM HUP
setsid sh -c 'trap "" INT TERM HUP; echo $$ > "$TEST_JOURNAL/orphan.tmp"; mv "$TEST_JOURNAL/orphan.tmp" "$TEST_JOURNAL/orphan"; while :; do sleep 0.1; done' &
while [ ! -e "$TEST_JOURNAL/orphan" ]; do sleep 0.05; done
echo "will not end"
while :; do sleep 0.1; done
`

// endingIn is how much longer than the grace all may take to be gone: less than the
// grace that other agents of these tests have.
const endingIn = 15 * time.Second

// stubbornRun starts a run of it and answers the pid of the orphan.
func stubbornRun(t *testing.T, grace time.Duration) (*works, *site.Agent, uuid.UUID, int) {
	t.Helper()
	w := newWorks(site.New(t))
	repo := w.Template("stubborn", map[string]string{"main.tf": stubborn, "stubborn.sh": stubbornScript})
	a := w.alone("one", 1)
	a.Set("TENDRIL_RUN_CANCEL_GRACE", grace.String())
	a.Start()
	id := w.DeployTemplate(repo, "a", nil)
	w.AwaitLine(id, "(local-exec): will not end")
	text, err := os.ReadFile(filepath.Join(w.journal, "orphan"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || !process.Alive(pid) {
		t.Fatalf("the orphan is %q, %v, want a process that lives", text, err)
	}
	return w, a, id, pid
}

// gone waits until nothing of a run lives, and answers how long that took.
func gone(t *testing.T, a *site.Agent, orphan int, since time.Time) time.Duration {
	t.Helper()
	await(t, "the run's processes to end", func() bool { return !process.Alive(orphan) && len(workingIn(a.Dir)) == 0 })
	return time.Since(since)
}

// Cancelled: Terraform kills its provisioner, the child what that had started.
// (An engine that ignores the interrupt is tested with package executor.)
func TestChildEndsWhatIgnoresIt(t *testing.T) {
	t.Parallel()
	const grace = 3 * time.Second
	w, a, id, orphan := stubbornRun(t, grace)
	asked := time.Now()
	w.Exec(t, "SELECT public.cancel_provision($1)", id)
	took := gone(t, a, orphan, asked)
	t.Logf("all gone %s after the cancel, grace %s", took, grace)
	if took > grace+endingIn {
		t.Errorf("all gone after %s, want at most the grace of %s and %s more", took, grace, endingIn)
	}
	if got := w.AwaitEnd(id); got != "CANCELLED/cancelled" {
		t.Errorf("provision = %s, want CANCELLED/cancelled", got)
	}
	counted.add("faults: what ignores its end, cancelled", 1)
	a.Terminate()
	w.count(a)
}

// The child is killed in the middle: the agent ends what is left.
func TestAgentEndsWhatADeadChildLeft(t *testing.T) {
	t.Parallel()
	w, a, id, orphan := stubbornRun(t, 30*time.Second)
	children, err := process.Descendants(a.Cmd.Process.Pid)
	if err != nil || len(children) == 0 {
		t.Fatalf("children = %v, %v", children, err)
	}
	killed := time.Now()
	if err := syscall.Kill(children[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	took := gone(t, a, orphan, killed)
	t.Logf("all gone %s after the child was killed", took)
	if took > endingIn {
		t.Errorf("all gone %s after the child, want at most %s", took, endingIn)
	}
	if got := w.AwaitEnd(id); got != "FAILED/exec_died" {
		t.Errorf("provision = %s, want FAILED/exec_died", got)
	}
	counted.add("faults: what ignores its end, child killed", 1)
	a.Terminate()
	w.count(a)
}

// Agent and child are killed at once: the next start ends what is left before
// it claims anything.
func TestRestartEndsWhatTheDeadLeft(t *testing.T) {
	t.Parallel()
	w, a, id, orphan := stubbornRun(t, 30*time.Second)
	children, err := process.Descendants(a.Cmd.Process.Pid)
	if err != nil || len(children) == 0 {
		t.Fatalf("children = %v, %v", children, err)
	}
	child := children[0].PID
	if err := errors.Join(
		syscall.Kill(child, syscall.SIGSTOP), // else it may end the run before it is killed
		syscall.Kill(a.Cmd.Process.Pid, syscall.SIGKILL), syscall.Kill(child, syscall.SIGKILL),
	); err != nil {
		t.Fatal(err)
	}
	<-a.Done
	if !process.Alive(orphan) {
		t.Fatal("the orphan has ended by itself; this test wants it alive")
	}
	next := w.deploy("b", 5, 10*time.Millisecond)
	began := time.Now()
	a.Start()
	t.Logf("all gone %s after the start", gone(t, a, orphan, began))
	if got := w.AwaitEnd(id); got != "FAILED/agent_restarted" {
		t.Errorf("provision = %s, want FAILED/agent_restarted", got)
	}
	if got := w.AwaitEnd(next.id); got != "SUCCESS" {
		t.Errorf("the next run = %s, want SUCCESS", got)
	}
	counted.add("faults: what ignores its end, agent and child killed", 1)
	a.Terminate()
	w.count(a, "SUCCESS")
}
