package executor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

func refusal(f *provision.Failure) error {
	return &queue.Error{Kind: queue.Refused, Code: "PT409", Reason: string(f.Code), Message: f.Message}
}

const hello = `
variable "name" { type = string }
variable "secret" {
  type      = string
  default   = "default-s3cret"
  sensitive = true
}
resource "terraform_data" "a" {
  input = var.name
  provisioner "local-exec" {
    command     = "echo hello $NAME; echo the secret is $SECRET; env"
    environment = { NAME = var.name, SECRET = nonsensitive(var.secret) }
  }
}
output "greeting" { value = "hello ${var.name}" }
output "later" { value = terraform_data.a.output }
output "secret" {
  value     = "out-${var.secret}"
  sensitive = true
}
`

func TestApply(t *testing.T) { bothEngines(t, testApply) }

func testApply(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	repo := s.template(map[string]string{"main.tf": hello}, map[string]any{"name": "world"})
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")

	log := c.text()
	for _, want := range []string{"hello world", "Apply complete", "1 added"} {
		if !strings.Contains(log, want) {
			t.Errorf("log lacks %q", want)
		}
	}
	for _, secret := range []string{"default-s3cret", childEnv} {
		if strings.Contains(log, secret) {
			t.Errorf("log holds %q", secret)
		}
	}
	if !strings.Contains(log, "the secret is ***") {
		t.Error("log lacks the masked line: a sensitive default printed by the template")
	}
	if got, want := last(c, func(d provision.Detail) string { return d.Commit }), strings.TrimSpace(repo.Git("rev-parse", "v1^{commit}")); got != want {
		t.Errorf("commit reported = %q, want %q", got, want)
	}
	plan := last(c, func(d provision.Detail) *provision.PlanSummary { return d.Plan })
	if plan == nil || plan.Add != 1 || plan.Change+plan.Destroy+plan.Replace != 0 {
		t.Errorf("plan = %+v, want 1 to add", plan)
	}
	var outputs map[string]provision.Output
	var stages []provision.Stage
	finished := 0
	for _, r := range c.reports {
		if r.Detail.Outputs != nil {
			outputs = r.Detail.Outputs
		}
		if r.Detail.Stage != "" {
			stages = append(stages, r.Detail.Stage)
		}
		for _, e := range r.Detail.Events {
			if e.Kind == "resource_finished" && e.Address == "terraform_data.a" {
				finished++
			}
		}
	}
	if string(outputs["greeting"].Value) != `"hello world"` || string(outputs["greeting"].Type) != `"string"` {
		t.Errorf("output greeting = %+v, want the string \"hello world\"", outputs["greeting"])
	}
	if o := outputs["secret"]; !o.Sensitive || o.Value != nil {
		t.Errorf("output secret = %+v, want the marker without a value", o)
	}
	if finished != 1 {
		t.Errorf("resource_finished events = %d, want 1", finished)
	}
	want := []provision.Stage{provision.StageCheckout, provision.StageValidate, provision.StageEngine, provision.StageInit,
		provision.StagePlan, provision.StageApply, provision.StageOutputs, provision.StageDone}
	if !slices.Equal(stages, want) {
		t.Errorf("stages = %v, want %v", stages, want)
	}
	s.wantNothingLeft()
}

// wantNothingLeft fails the test when files with variables are left behind.
func (s *site) wantNothingLeft() {
	s.t.Helper()
	for _, name := range []string{"source", "secrets", "tmp"} {
		if _, err := os.Lstat(filepath.Join(s.job.Dirs.Work, name)); err == nil {
			s.t.Errorf("%s is left in the work directory", name)
		}
	}
}

func TestSecondRunFindsItsState(t *testing.T) { bothEngines(t, testSecondRunFindsItsState) }

func testSecondRunFindsItsState(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	s.template(map[string]string{"main.tf": hello}, map[string]any{"name": "world"})
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	if !strings.Contains(c.text(), "No changes") {
		t.Error("the second run changes something, want none: the state was kept")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		if r.Detail.Stage == provision.StageApply {
			t.Error("a run without changes asked to apply")
		}
		if o := r.Detail.Outputs; o != nil && (string(o["greeting"].Value) != `"hello world"` || o["secret"].Value != nil || !o["secret"].Sensitive) {
			t.Errorf("outputs of a run without changes = %+v, want the same as of the first", o)
		}
	}
}

// A saved plan does not hold ephemeral variables: apply is given them again.
func TestEphemeralVariables(t *testing.T) { bothEngines(t, testEphemeralVariables) }

func testEphemeralVariables(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	s.template(map[string]string{"main.tf": "variable \"token\" {\n  type      = string\n  ephemeral = true\n}\nresource \"terraform_data\" \"a\" {}\n"},
		map[string]any{"token": "only-for-now"})
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	if strings.Contains(c.text(), "only-for-now") {
		t.Error("log holds the value of an ephemeral variable")
	}
	s.wantNothingLeft()
}

func TestLinesComeWhileTerraformRuns(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	gate := filepath.Join(t.TempDir(), "gate")
	s.template(map[string]string{"main.tf": slow("echo first; until test -e " + gate + "; do sleep 0.05; done; echo second")}, nil)
	c := s.start()
	c.await("(local-exec): first")
	opened := time.Now().Truncate(time.Millisecond) // as lines have it
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, c.end(), provision.Success, "")
	at := func(text string) time.Time {
		for _, l := range c.lines {
			if strings.Contains(l.Text, text) {
				return l.EmittedAt
			}
		}
		t.Fatalf("no line with %q", text)
		return time.Time{}
	}
	if first, second := at("(local-exec): first"), at("(local-exec): second"); first.After(opened) || second.Before(opened) {
		t.Errorf("what was printed before %s came at %s, and what after it at %s, want them as they are printed", opened, first, second)
	}
}

func TestDatabaseRefusesTheApply(t *testing.T) { bothEngines(t, testDatabaseRefusesTheApply) }

func testDatabaseRefusesTheApply(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	marker := filepath.Join(t.TempDir(), "applied")
	s.template(map[string]string{"main.tf": slow("touch " + marker)}, nil)
	s.refuse = func(_ *child, r provision.Report) *provision.Failure {
		if r.Detail.Stage == provision.StageApply {
			return provision.Fail(provision.CodeCancelled, "the provision is to be cancelled", nil)
		}
		return nil
	}
	got, _ := s.run()
	wantEnd(t, got, provision.Cancelled, provision.CodeCancelled)
	if _, err := os.Lstat(marker); err == nil {
		t.Error("the apply ran without the database's consent")
	}
}

// A state that a killed run could not store is found before the work directory
// is cleared, and stored before anything else is done.
func TestErroredStateIsRescued(t *testing.T) { bothEngines(t, testErroredStateIsRescued) }

func testErroredStateIsRescued(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	s.template(map[string]string{"main.tf": hello}, map[string]any{"name": "world"})
	left := filepath.Join(s.job.Dirs.Work, "source", "modules", "x")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	const state = `{"version":4,"terraform_version":"1.11.4","serial":7,"lineage":"l","outputs":{"left":{"value":"by a killed run","type":"string"}},"resources":[]}`
	if err := os.WriteFile(filepath.Join(left, "errored.tfstate"), []byte(state), 0o600); err != nil {
		t.Fatal(err)
	}
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	wantSaid(t, c, true, true, false)
	backup, err := os.ReadFile(filepath.Join(s.job.Dirs.State, "terraform.tfstate.backup"))
	if err != nil || !strings.Contains(string(backup), "by a killed run") {
		t.Errorf("the state before this run's = %q, %v, want the one that was left", backup, err)
	}
	s.wantKept(0)
}

// No descriptor of the child's reaches the template.
func TestTemplateInheritsNoDescriptor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": slow("for fd in 3 4 5 6 7 8; do if [ -e /proc/$PPID/fd/$fd ]; then readlink /proc/$PPID/fd/$fd; fi; done; ls -l /proc/$$/fd")}, nil)
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	if strings.Contains(c.text(), "/spool") || strings.Contains(c.text(), "/lock") || strings.Contains(c.text(), "/tail") {
		t.Error("a process of the template has the spool, its tail or the lock open")
	}
}

// A template may ship a file of that name; it is no state of ours.
func TestShippedErroredStateIsIgnored(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": slow("exit 1"), "errored.tfstate": `{"version": 4}`, "modules/x/errored.tfstate": `{"version": 4}`}, nil)
	for range 2 {
		got, _ := s.run()
		wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
	}
}

// What the template left running could put back what the clean-up removes.
func TestBackgroundProcessCannotKeepSecrets(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	vars := filepath.Join(s.job.Dirs.Secrets, "variables.tfvars.json")
	kept := filepath.Join(s.job.Dirs.Work, "source", "kept")
	s.template(map[string]string{"main.tf": slow("cp " + vars + " $HOME/copy; setsid sh -c 'while :; do mkdir -p " + filepath.Dir(kept) + " && cp $HOME/copy " + kept + "; done' >/dev/null 2>&1 &")}, nil)
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
	s.wantNothingLeft()
}

// Directories without the right to write, as module caches make them.
func TestReadOnlyDirectoriesAreRemoved(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": slow("mkdir -p cache/mod && touch cache/mod/x && chmod -R a-w cache")}, nil)
	for range 2 {
		got, _ := s.run()
		wantEnd(t, got, provision.Success, "")
		s.wantNothingLeft()
	}
}

func TestLargeOutputsAreOmitted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"large.txt": strings.Repeat("x", 1<<20), "main.tf": `output "large" { value = file("large.txt") }
output "small" { value = "kept" }
`}, nil)
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	var outputs map[string]provision.Output
	for _, r := range c.reports {
		if r.Detail.Outputs != nil {
			outputs = r.Detail.Outputs
		}
	}
	if o := outputs["large"]; !o.Omitted || o.Value != nil || string(outputs["small"].Value) != `"kept"` {
		t.Errorf("outputs = large %d bytes (omitted %t), small %s; want only the large one omitted", len(o.Value), o.Omitted, outputs["small"].Value)
	}
	if !strings.Contains(c.text(), "The output large is too large to be recorded") {
		t.Error("the log does not say that an output was omitted")
	}
}
