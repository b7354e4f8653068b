package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// slow is a template whose apply runs a shell command.
func slow(command string) string {
	quoted, _ := json.Marshal(command)
	return `resource "terraform_data" "a" {
  provisioner "local-exec" {
    command = ` + string(quoted) + `
  }
}
resource "terraform_data" "after" {
  depends_on = [terraform_data.a]
}
`
}

func TestCancelDuringApply(t *testing.T) { bothEngines(t, testCancelDuringApply) }

func testCancelDuringApply(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	s.template(map[string]string{"main.tf": `resource "terraform_data" "before" {}
` + slow("echo applying; exec sleep 600")}, nil)
	c := s.start()
	c.await("terraform_data.before: Creation complete")
	c.await("(local-exec): applying")
	if err := job.Write(c.control, job.Control{Stop: job.StopCancelled}); err != nil {
		t.Fatal(err)
	}
	got := c.end()
	wantEnd(t, got, provision.Cancelled, provision.CodeCancelled)
	if strings.Contains(c.text(), "is killed now") {
		t.Error("the engine was killed, want it to end by itself within the grace")
	}
	if n := strings.Count(c.text(), "Interrupt received"); n != 1 {
		t.Errorf("terraform says it was interrupted %d times, want once", n)
	}
	if strings.Contains(c.text(), "Two interrupts received") { // what it says instead of the one, the second time
		t.Error("terraform was interrupted twice")
	}
	state, err := os.ReadFile(filepath.Join(s.job.Dirs.State, "terraform.tfstate"))
	if err != nil || !strings.Contains(string(state), `"before"`) {
		t.Errorf("state = %d bytes, %v, want the resource made before the cancel in it", len(state), err)
	}
	// The lock is free and the next run finishes the work.
	s.template2(slow("true"))
	if got, _ := s.run(); got.Status != provision.Success {
		t.Errorf("the run after a cancel = %+v, want SUCCESS", got)
	}
}

// template2 asks for other files, in a repository of their own.
func (s *site) template2(main string) {
	s.t.Helper()
	repo, _ := s.git.Repo("second", gittest.Text(map[string]string{"main.tf": main}), "v1")
	s.ask(repo.URL, "v1", "", nil)
}

func TestAgentGoneLeavesNoResult(t *testing.T) { bothEngines(t, testAgentGoneLeavesNoResult) }

func testAgentGoneLeavesNoResult(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	s.template(map[string]string{"main.tf": slow("echo applying; exec sleep 600")}, nil)
	c := s.start()
	c.await("(local-exec): applying")
	if err := c.control.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.over:
	case <-patience.After(deadline):
		t.Fatal("the child goes on without its agent")
	}
	if c.result != nil {
		t.Errorf("result = %+v, want none: the agent's next start says what became of the run", c.result)
	}
	if log := c.text(); !strings.Contains(log, "The agent is gone") || strings.Count(log, "Interrupt received") != 1 || strings.Contains(log, "Two interrupts") {
		t.Error("log lacks why the run ended, or terraform was not interrupted once")
	}
}

// A run ends with its work, though its agent neither delivers nor hangs up.
func TestRunEndsWithoutItsAgent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": hello}, map[string]any{"name": "world"})
	c := s.start()
	c.await("Done.")
	select {
	case <-c.dead:
	case <-patience.After(deadline):
		t.Error("the child waits for its agent after its work is done")
	}
}

func TestStubbornProcessesAreKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.job.Settings.CancelGrace = 2 * time.Second
	pidFile := filepath.Join(t.TempDir(), "pid")
	s.template(map[string]string{"main.tf": slow("setsid sh -c 'trap \"\" INT TERM; echo $$ > " + pidFile + "; echo stubborn; while :; do sleep 1; done'")}, nil)
	c := s.start()
	c.await("(local-exec): stubborn")
	stopped := time.Now()
	if err := job.Write(c.control, job.Control{Stop: job.StopCancelled}); err != nil {
		t.Fatal(err)
	}
	got := c.end()
	wantEnd(t, got, provision.Cancelled, provision.CodeCancelled)
	if took := time.Since(stopped); took > 40*time.Second { // the grace of other tests is a minute
		t.Errorf("ended %s after the cancel, want about the grace of 2 s", took)
	}
	content, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	if alive(t, strings.TrimSpace(string(content))) {
		t.Error("the process that left its session is still there")
	}
}

func alive(t *testing.T, pid string) bool {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ") && !strings.Contains(string(stat), ") X ")
}

func TestTimeLimit(t *testing.T) {
	t.Parallel()
	// A busy machine may need a longer one to get as far as it should.
	for _, limit := range []int{8, 30, 120} {
		if s, c, got := limited(t, limit); strings.Contains(c.text(), "terraform_data.before: Creation complete") || limit == 120 {
			wantTimedOut(t, s, c, got, limit)
			return
		}
	}
}

// limited is a run that goes on until its time is over.
func limited(t *testing.T, seconds int) (*site, *child, provision.Report) {
	t.Helper()
	s := newSite(t)
	s.template(map[string]string{"main.tf": "resource \"terraform_data\" \"before\" {}\n" + slow("exec sleep 600")}, nil)
	s.amend(map[string]any{"timeout_seconds": seconds})
	got, c := s.run()
	return s, c, got
}

func wantTimedOut(t *testing.T, s *site, c *child, got provision.Report, seconds int) {
	t.Helper()
	wantEnd(t, got, provision.Failed, provision.CodeTimedOut)
	if want := fmt.Sprintf("The time limit for a run is reached (%s, by timeout_seconds in the snapshot).", time.Duration(seconds)*time.Second); !strings.Contains(c.text(), want) || !strings.Contains(got.Detail.ErrorMessage, want) {
		t.Errorf("log and message %q do not say why the run was interrupted", got.Detail.ErrorMessage)
	}
	// It ended as a cancel does: the engine wrote what it had done.
	if state, err := os.ReadFile(filepath.Join(s.job.Dirs.State, "terraform.tfstate")); err != nil || !strings.Contains(string(state), `"before"`) {
		t.Errorf("state = %d bytes, %v, want the resource made before in it", len(state), err)
	}
}

// A process that the template leaves behind does not outlive the run.
func TestBackgroundProcessEndsWithTheRun(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	s.template(map[string]string{"main.tf": slow("setsid sleep 120 >/dev/null 2>&1 & echo $! > " + pidFile)}, nil)
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
	content, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	if alive(t, strings.TrimSpace(string(content))) {
		t.Error("a background process of the template is still there after the run")
	}
}
