package executor_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/gittest"
	"github.com/tendril-run/tendril/internal/job"
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
	s.template(map[string]string{"main.tf": slow("echo first; sleep 2; echo second")}, nil)
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	at := func(text string) time.Time {
		for _, l := range c.lines {
			if strings.Contains(l.Text, text) {
				return l.EmittedAt
			}
		}
		t.Fatalf("no line with %q", text)
		return time.Time{}
	}
	if gap := at("(local-exec): second").Sub(at("(local-exec): first")); gap < 1500*time.Millisecond {
		t.Errorf("lines printed 2 s apart came %s apart, want them as they are printed", gap)
	}
}

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
` + slow("echo applying; exec sleep 30")}, nil)
	c := s.start()
	c.await("(local-exec): applying")
	stopped := time.Now()
	if err := job.Write(c.control, job.Control{Stop: job.StopCancelled}); err != nil {
		t.Fatal(err)
	}
	got := c.end()
	wantEnd(t, got, provision.Cancelled, provision.CodeCancelled)
	if took := time.Since(stopped); took > 15*time.Second {
		t.Errorf("the cancel took %s", took)
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
	s.template(map[string]string{"main.tf": slow("echo applying; exec sleep 30")}, nil)
	c := s.start()
	c.await("(local-exec): applying")
	if err := c.control.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.over:
	case <-time.After(30 * time.Second):
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
	case <-time.After(20 * time.Second):
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
	if took := time.Since(stopped); took > 2*time.Second+4*time.Second {
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
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestTimeLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": "resource \"terraform_data\" \"before\" {}\n" + slow("exec sleep 60")}, nil)
	s.job.Assignment.Snapshot = append([]byte(`{"timeout_seconds":8,`), s.job.Assignment.Snapshot[1:]...)
	got, c := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeTimedOut)
	if want := "The time limit for a run is reached (8s, by timeout_seconds in the snapshot)."; !strings.Contains(c.text(), want) || !strings.Contains(got.Detail.ErrorMessage, want) {
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

func TestDatabaseRefusesTheApply(t *testing.T) { bothEngines(t, testDatabaseRefusesTheApply) }

func testDatabaseRefusesTheApply(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	marker := filepath.Join(t.TempDir(), "applied")
	s.template(map[string]string{"main.tf": slow("touch " + marker)}, nil)
	c := s.start()
	c.mu.Lock()
	c.refuse = func(r provision.Report) *provision.Failure {
		if r.Detail.Stage == provision.StageApply {
			return provision.Fail(provision.CodeCancelled, "the provision is to be cancelled", nil)
		}
		return nil
	}
	c.mu.Unlock()
	got := c.end()
	wantEnd(t, got, provision.Cancelled, provision.CodeCancelled)
	if _, err := os.Lstat(marker); err == nil {
		t.Error("the apply ran without the database's consent")
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	const ok = "variable \"n\" {\n  type    = number\n  default = 1\n}\n"
	for name, test := range map[string]struct {
		prepare func(s *site)
		code    provision.Code
		says    []string
	}{
		"unknown variable": {func(s *site) { s.template(map[string]string{"main.tf": ok}, map[string]any{"node_groups": 1}) },
			provision.CodeVariablesInvalid, []string{"terraform_vars.node_groups"}},
		"missing variable": {func(s *site) { s.template(map[string]string{"main.tf": hello}, nil) },
			provision.CodeVariablesInvalid, []string{"terraform_vars.name: missing"}},
		"ill-typed variable": {func(s *site) { s.template(map[string]string{"main.tf": ok}, map[string]any{"n": "two"}) },
			provision.CodeVariablesInvalid, []string{"terraform_vars.n"}},
		"repository not allowed": {func(s *site) {
			s.template(map[string]string{"main.tf": ok}, nil)
			s.job.Settings.Policy.Repos = []string{"https://elsewhere.example/*"}
		}, provision.CodeRepoRefused, []string{"[policy] repos"}},
		"file repository": {func(s *site) {
			repo := gittest.NewRepo(s.t)
			repo.Tag("v1", repo.Commit(gittest.Text(map[string]string{"main.tf": ok})))
			s.ask(repo.FileURL(), "v1", "", nil)
		}, provision.CodeRepoRefused, []string{"allow_file"}},
		"ext repository": {func(s *site) { s.ask("ext::sh -c id", "v1", "", nil) }, provision.CodeBadSnapshot, []string{"repo"}},
		"option as version": {func(s *site) {
			s.template(map[string]string{"main.tf": ok}, nil)
			s.ask(s.git.URL+"/envtempl.git", "--upload-pack=id", "", nil)
		}, provision.CodeBadSnapshot, []string{"version"}},
		"no such tag": {func(s *site) {
			s.template(map[string]string{"main.tf": ok}, nil)
			s.ask(s.git.URL+"/envtempl.git", "v2", "", nil)
		}, provision.CodeVersionNotFound, []string{"v2"}},
		"moved tag": {func(s *site) {
			s.template(map[string]string{"main.tf": ok}, nil)
			s.job.Assignment.PinnedCommit = strings.Repeat("a", 40)
		}, provision.CodeTagMoved, []string{"v1", strings.Repeat("a", 7)}},
		"path climbs out by ..": {func(s *site) {
			s.template(map[string]string{"main.tf": ok}, nil)
			s.ask(s.git.URL+"/envtempl.git", "v1", "a/../../b", nil)
		}, provision.CodeBadSnapshot, []string{"path"}},
		"path climbs out by symlink": {func(s *site) {
			repo, _ := s.git.Repo("links", gittest.Files{"main.tf": gittest.File(ok), "out": gittest.Symlink("/etc")}, "v1")
			s.ask(repo.URL, "v1", "out", nil)
		}, provision.CodePathRefused, []string{"out"}},
		"does not parse": {func(s *site) { s.template(map[string]string{"main.tf": "resource {"}, nil) },
			provision.CodeTemplateInvalid, []string{"main.tf"}},
		"operation not granted": {func(s *site) {
			s.template(map[string]string{"main.tf": ok}, nil)
			s.job.Assignment.Operation = provision.OperationDestroy
			s.job.Settings.Policy.Operations = []provision.Operation{provision.OperationApply}
		}, provision.CodeOperationRefused, []string{"[policy] operations"}},
		"apply fails": {func(s *site) { s.template(map[string]string{"main.tf": slow("echo broken >&2; exit 7")}, nil) },
			provision.CodeApplyFailed, []string{"local-exec"}},
		"plan fails": {func(s *site) {
			s.template(map[string]string{"main.tf": "output \"x\" { value = file(\"absent\") }"}, nil)
		}, provision.CodePlanFailed, []string{"main.tf"}},
		"kept state that is none": {func(s *site) {
			s.template(map[string]string{"main.tf": ok}, nil)
			s.patience = time.Second
			if err := os.WriteFile(filepath.Join(s.job.Dirs.State, "errored.tfstate"), []byte("{}"), 0o600); err != nil {
				s.t.Fatal(err)
			}
		}, provision.CodeStateUnsaved, []string{"errored.tfstate", "a person must decide"}},
		"errored.tfstate is a link": {func(s *site) {
			repo, _ := s.git.Repo("links", gittest.Files{"main.tf": gittest.File(ok), "errored.tfstate": gittest.Symlink("main.tf")}, "v1")
			s.ask(repo.URL, "v1", "", nil)
		}, provision.CodeTemplateInvalid, []string{"errored.tfstate"}},
		"backend without key": {func(s *site) {
			s.template(map[string]string{"main.tf": "terraform {\n  backend \"http\" {\n    address = \"https://x.example\"\n  }\n}"}, nil)
		}, provision.CodeTemplateInvalid, []string{"{workspace_id}", "[state.config.http]"}},
		"cloud block": {func(s *site) {
			s.template(map[string]string{"main.tf": "terraform {\n  cloud {\n    organization = \"x\"\n  }\n}"}, nil)
		}, provision.CodeTemplateInvalid, []string{"cloud"}},
		"engine version not here": {func(s *site) {
			s.template(map[string]string{"main.tf": ok}, nil)
			s.job.Settings.Engine.Version = "1.0.99"
		}, provision.CodeEngineMissing, []string{"1.0.99"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			test.prepare(s)
			got, c := s.run()
			wantEnd(t, got, provision.Failed, test.code)
			for _, want := range test.says {
				if !strings.Contains(got.Detail.ErrorMessage, want) {
					t.Errorf("message = %q, want it to contain %q", got.Detail.ErrorMessage, want)
				}
			}
			if !strings.Contains(c.text(), "Failed ("+string(test.code)+")") {
				t.Error("the log does not end with why the run failed")
			}
			s.wantNothingLeft()
		})
	}
}

// The state of a policy's backend is keyed by workspace and shared by agents.
func TestPolicyBackend(t *testing.T) { bothEngines(t, testPolicyBackend) }

func testPolicyBackend(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	shared := t.TempDir()
	s.job.Settings.State = job.State{Backend: "local", Config: map[string]map[string]string{
		"local": {"path": filepath.Join(shared, "{workspace_id}", "terraform.tfstate")},
	}}
	s.template(map[string]string{"main.tf": hello}, map[string]any{"name": "world"})
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	if _, err := os.Stat(filepath.Join(shared, s.job.Assignment.WorkspaceID.String(), "terraform.tfstate")); err != nil {
		t.Errorf("state: %v, want it where the policy says", err)
	}
	if last(c, func(d provision.Detail) bool { return d.LocalState }) {
		t.Error("the run claims local state, want a shared one: any agent may run it")
	}
}

// The engine takes -backend-config=FILE for a value when there is another equals
// sign in it.
func TestDataDirectoryWithAnEqualsSign(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.job.Dirs.Work = filepath.Join(s.dirs, "owner=acme", "work")
	s.job.Dirs.Secrets = filepath.Join(s.job.Dirs.Work, "secrets")
	if err := os.MkdirAll(s.job.Dirs.Work, 0o700); err != nil {
		t.Fatal(err)
	}
	s.job.Settings.State = job.State{Backend: "local", Config: map[string]map[string]string{
		"local": {"path": filepath.Join(t.TempDir(), "{workspace_id}.tfstate")},
	}}
	s.template(map[string]string{"main.tf": hello}, map[string]any{"name": "world"})
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
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
