package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// three makes three resources, with a secret in the state.
const three = `
variable "secret" {
  default   = "secret-in-the-state"
  sensitive = true
}
resource "terraform_data" "a" { input = var.secret }
resource "terraform_data" "b" { depends_on = [terraform_data.a] }
resource "terraform_data" "c" { depends_on = [terraform_data.b] }
`

// remote is a site whose state is kept by a server.
func remote(t *testing.T, template string) (*site, *stateServer) {
	t.Helper()
	s, server := newSite(t), newStateServer(t)
	s.job.Settings.State = job.State{Config: map[string]map[string]string{"http": {
		"address": server.url + "/{workspace_id}", "lock_address": server.url, "unlock_address": server.url, "retry_max": "0",
	}}}
	s.template(map[string]string{"main.tf": "terraform {\n  backend \"http\" {}\n}\n" + template}, nil)
	return s, server
}

// kept lists the files of kept states.
func (s *site) kept() []string {
	s.t.Helper()
	found, err := filepath.Glob(filepath.Join(s.job.Dirs.State, "errored*"))
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

func (s *site) wantKept(n int) {
	s.t.Helper()
	if got := s.kept(); len(got) != n {
		s.t.Errorf("kept states = %v, want %d", got, n)
	}
}

// unsaved lists what the reports said of kept states, one after another.
func (c *child) unsaved() []bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var said []bool
	for _, r := range c.reports {
		if r.Detail.StateUnsaved != nil {
			said = append(said, *r.Detail.StateUnsaved)
		}
	}
	return said
}

func wantSaid(t *testing.T, c *child, want ...bool) {
	t.Helper()
	if got := c.unsaved(); !slices.Equal(got, want) {
		t.Errorf("reports said StateUnsaved = %v, want %v", got, want)
	}
}

func wantMessage(t *testing.T, got provision.Report, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got.Detail.ErrorMessage, part) {
			t.Errorf("message = %q, want it to contain %q", got.Detail.ErrorMessage, part)
		}
	}
}

var created = regexp.MustCompile(`(terraform_data\.\w+): Creation complete after .* \[id=([^\]]+)\]`)

// wantCreatedIn fails the test unless all that a run's log says was created is
// in the state, and returns how many that is.
func wantCreatedIn(t *testing.T, c *child, state string) int {
	t.Helper()
	made := created.FindAllStringSubmatch(c.text(), -1)
	for _, m := range made {
		if !strings.Contains(state, m[2]) {
			t.Errorf("%s was created with id %s, which is not in the state", m[1], m[2])
		}
	}
	return len(made)
}

// The backend is back while the run still tries.
func TestStateIsStoredAfterAll(t *testing.T) { bothEngines(t, testStateIsStoredAfterAll) }

func testStateIsStoredAfterAll(t *testing.T, kind string) {
	t.Parallel()
	s, server := remote(t, three)
	s.job.Settings.Engine.Kind = kind
	server.breaks(2) // the apply's and the first try's
	got, c := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
	wantMessage(t, got, "what was done is in it")
	wantSaid(t, c, false, true, false, false)
	s.wantKept(0)
	if n := wantCreatedIn(t, c, server.stored()); n != 3 {
		t.Errorf("%d resources were created, want 3", n)
	}
	for _, want := range []string{"Try 1: " + kind + " state push failed", "The state is stored"} {
		if !strings.Contains(c.text(), want) {
			t.Errorf("log lacks %q", want)
		}
	}
	if strings.Contains(c.text(), "secret-in-the-state") {
		t.Error("log holds what is in the state")
	}
	if got, c = s.run(); got.Status != provision.Success || !strings.Contains(c.text(), "No changes") {
		t.Errorf("second run = %s, want it to find all in the state", got.Status)
	}
	s.wantNothingLeft()
}

// The backend stays away: the state is kept, held, and stored by the next run
// before it plans.
func TestStateIsKeptUntilItIsStored(t *testing.T) { bothEngines(t, testStateIsKeptUntilItIsStored) }

func testStateIsKeptUntilItIsStored(t *testing.T, kind string) {
	t.Parallel()
	s, server := remote(t, three)
	s.job.Settings.Engine.Kind = kind
	s.tries = 1
	server.breaks(-1)
	got, first := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	wantMessage(t, got, "Failed to upload state", "errored.tfstate", "("+kind+" state push)", "trellis release", "The run itself: "+kind+" apply failed")
	wantSaid(t, first, false, true, true)
	s.wantKept(1)
	s.wantNothingLeft()

	// And again: it is neither lost nor overwritten.
	kept, err := os.ReadFile(s.kept()[0])
	if err != nil {
		t.Fatal(err)
	}
	got, c := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	wantSaid(t, c, true, true, true)
	if again, err := os.ReadFile(s.kept()[0]); err != nil || string(again) != string(kept) {
		t.Errorf("the kept state has changed: %v", err)
	}
	if strings.Contains(c.text(), "will be created") {
		t.Error("the run made a plan before the state was stored")
	}

	server.breaks(0)
	s.tries = 0
	got, c = s.run()
	wantEnd(t, got, provision.Success, "")
	wantSaid(t, c, true, true, false)
	s.wantKept(0)
	if !strings.Contains(c.text(), "No changes") {
		t.Error("the run after the state was stored makes something once more")
	}
	if n := wantCreatedIn(t, first, server.stored()); n != 3 {
		t.Errorf("%d resources were created, want 3", n)
	}
}

// A person has pushed the state by hand and removed the file.
func TestHoldEndsByHand(t *testing.T) {
	t.Parallel()
	s, server := remote(t, three)
	s.patience = 3 * time.Second // a few tries, or one that is cut short
	server.breaks(-1)
	got, _ := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	s.patience = 0
	state, err := os.ReadFile(s.kept()[0])
	if err != nil {
		t.Fatal(err)
	}
	server.replace(string(state))
	server.breaks(0)
	// And room that a killed run had reserved.
	if err := os.Rename(s.kept()[0], filepath.Join(s.job.Dirs.State, ".ballast")); err != nil {
		t.Fatal(err)
	}
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	wantSaid(t, c, false)
	if left := must(os.ReadDir(s.job.Dirs.State)); len(left) > 0 {
		t.Errorf("%s is left in the state's directory", left[0].Name())
	}
}

// What somebody else has stored meanwhile is never overwritten.
func TestConflictingStateStays(t *testing.T) {
	t.Parallel()
	s, server := remote(t, three)
	const theirs = `{"version":4,"terraform_version":"1.11.4","serial":90,"lineage":"theirs","outputs":{"x":{"value":"1","type":"string"}},"resources":[]}`
	const ours = `{"version":4,"terraform_version":"1.11.4","serial":1,"lineage":"ours","outputs":{"x":{"value":"2","type":"string"}},"resources":[]}`
	server.replace(theirs)
	if err := os.WriteFile(filepath.Join(s.job.Dirs.State, "errored.tfstate"), []byte(ours), 0o600); err != nil {
		t.Fatal(err)
	}
	got, c := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	wantMessage(t, got, "lineage", "pushing the kept one by hand is refused as well", "terraform state pull",
		"the http backend (address "+server.url+"/"+s.job.Assignment.WorkspaceID.String()+")", "Removing the file ends the hold")
	wantSaid(t, c, true, true, true)
	if strings.Contains(c.text(), "Try 2") {
		t.Error("a conflict was tried again, want once")
	}
	if server.stored() == theirs && len(s.kept()) == 1 {
		return
	}
	t.Errorf("stored %s, kept %v; want both states where they were", server.stored(), s.kept())
}

func TestHeldLockIsNamed(t *testing.T) {
	t.Parallel()
	s, server := remote(t, three)
	s.tries = 1
	server.breaks(-1)
	got, _ := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	server.breaks(0)
	server.holdLock("somebody-4711")
	got, _ = s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	wantMessage(t, got, "lock id somebody-4711")
	s.wantKept(1)
}

// Of several kept states, which only killed runs can leave, none is overwritten
// by another, and the newest of a lineage is what is stored.
func TestNewestKeptStateIsStored(t *testing.T) {
	t.Parallel()
	s, server := remote(t, "output \"x\" { value = \"4\" }\n")
	state := func(serial int) []byte {
		return fmt.Appendf(nil, `{"version":4,"terraform_version":"1.11.4","serial":%d,"lineage":"l","outputs":{"x":{"value":"%d","type":"string"}},"resources":[]}`, serial, serial)
	}
	left := filepath.Join(s.job.Dirs.Work, "source", "modules", "x")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, serial := range map[string]int{
		filepath.Join(s.job.Dirs.State, "errored.tfstate"):   2,
		filepath.Join(s.job.Dirs.State, "errored-3.tfstate"): 3, // the second is gone
		filepath.Join(left, "errored.tfstate"):               4, // of a killed run
	} {
		if err := os.WriteFile(path, state(serial), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server.breaks(-1)
	s.tries = 1
	got, _ := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	s.wantKept(3)
	server.breaks(0)
	s.tries = 0
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	s.wantKept(0)
	log := c.text()
	if n := strings.Count(log, "Storing the state that is kept in"); n != 1 || !strings.Contains(log, "errored-4.tfstate") || !strings.Contains(log, "No changes") {
		t.Errorf("the log tells of %d states being stored, want that of the killed run alone and no changes after it", n)
	}
}

// Whoever is killed while it tries has told of the state before.
func TestKilledChildHasToldOfItsState(t *testing.T) {
	t.Parallel()
	s, server := remote(t, three)
	server.breaks(-1)
	c := s.start()
	c.await("Try 1: ")
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-c.over
	if c.result != nil {
		t.Errorf("result = %+v, want none: the child was killed", c.result)
	}
	wantSaid(t, c, false, true)
	s.wantKept(1)
	server.breaks(0)
	server.holdLock("") // the killed push may have held it
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
	wantCreatedIn(t, c, server.stored())
}

// Being stopped, the run does not go on trying.
func TestStoppedRunTriesOnce(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(c *child) error{
		"cancelled":     func(c *child) error { return job.Write(c.control, job.Control{Stop: job.StopCancelled}) },
		"agent is gone": func(c *child) error { return c.control.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, server := remote(t, three+`
resource "terraform_data" "wait" {
  depends_on = [terraform_data.c]
  provisioner "local-exec" {
    command = "echo waiting; exec sleep 600"
  }
}
`)
			server.breaks(-1)
			c := s.start()
			c.await("(local-exec): waiting")
			if err := stop(c); err != nil {
				t.Fatal(err)
			}
			select {
			case <-c.over:
			case <-patience.After(deadline):
				t.Fatal("the run does not end")
			}
			if n := strings.Count(c.text(), "Try "); n != 1 {
				t.Errorf("the log tells of %d tries, want 1", n)
			}
			s.wantKept(1)
			if name == "agent is gone" {
				if c.result != nil {
					t.Errorf("result = %+v, want none", c.result)
				}
				if said := c.unsaved(); len(said) == 0 || !said[len(said)-1] {
					t.Errorf("reports said StateUnsaved = %v, want true at last", said)
				}
				return
			}
			wantEnd(t, *c.result, provision.Failed, provision.CodeStateUnsaved)
			wantMessage(t, *c.result, "Cancel requested.")
			if u := c.result.Detail.StateUnsaved; u == nil || !*u {
				t.Errorf("result says StateUnsaved = %v, want true", u)
			}
		})
	}
}

// Half a local state is no reason to do without it: only a whole state that is
// kept may take its place.
func TestHalfAStateStays(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": three}, nil)
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
	half := s.localState()[:200]
	path := filepath.Join(s.job.Dirs.State, "terraform.tfstate")
	for file, content := range map[string]string{path: half, filepath.Join(s.job.Dirs.State, "errored.tfstate"): half[:100]} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, c := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	wantMessage(t, got, "errored.tfstate on this agent is no whole state")
	if s.localState() != half {
		t.Error("the state file has changed, want it left alone")
	}
	wantSaid(t, c, true, true)
}

// A push does not heed the interrupt: one that hangs is killed.
func TestPushThatHangsEnds(t *testing.T) {
	t.Parallel()
	s, server := remote(t, "output \"x\" { value = \"1\" }\n")
	grace := s.job.Settings.CancelGrace
	s.patience, s.job.Settings.CancelGrace = time.Second, time.Second
	const state = `{"version":4,"terraform_version":"1.11.4","serial":1,"lineage":"l","outputs":{"x":{"value":"1","type":"string"}},"resources":[]}`
	if err := os.WriteFile(filepath.Join(s.job.Dirs.State, "errored.tfstate"), []byte(state), 0o600); err != nil {
		t.Fatal(err)
	}
	server.hang(true)
	got, _ := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	wantMessage(t, got, "the backend did not answer within 1s")
	s.wantKept(1)
	s.patience, s.job.Settings.CancelGrace = 0, grace
	server.hang(false)
	server.holdLock("") // the killed push left it
	got, _ = s.run()
	wantEnd(t, got, provision.Success, "")
	s.wantKept(0)
}
