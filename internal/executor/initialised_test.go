package executor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/providertest"
	"github.com/tendril-run/tendril/internal/testkit/runlog"
)

const (
	initPrints = "Initializing the backend"
	initReused = "so is what terraform init made"
	initStale  = "does not serve any more"
)

const numbered = `variable "n" { type = number }
resource "terraform_data" "it" { input = var.n }
output "n" { value = terraform_data.it.output }
`

// initTest is a workspace that has run once.
type initTest struct {
	*site
	files  map[string]string
	mirror *providertest.Mirror
	repo   string
}

// again runs with another value, and tells the output of that, which shows that
// the run did its work whether it ran init or not.
func (i *initTest) again(t *testing.T, version string) (log string) {
	t.Helper()
	i.ask(i.repo, version, "", map[string]any{"n": 2})
	got, c := i.run()
	wantEnd(t, got, provision.Success, "")
	outputs := map[string]provision.Output{}
	c.mu.Lock()
	for _, r := range c.reports {
		if r.Detail.Outputs != nil {
			outputs = r.Detail.Outputs
		}
	}
	c.mu.Unlock()
	if got := string(outputs["n"].Value); got != "2" {
		t.Errorf("output n = %s, want 2", got)
	}
	return c.text()
}

// What init made serves the next run, if that is of the same; everything else
// has init run once more, and no run fails for it.
func TestInitIsReused(t *testing.T) {
	t.Parallel()
	locked := func(i *initTest) {
		h1 := i.mirror.Unpack(i.t, providertest.Version, i.t.TempDir())
		i.files["main.tf"] = numbered + withProvider
		i.files[providers.LockFileName] = lockOf("registry.terraform.io/hashicorp/time", providertest.Version, h1)
	}
	module := func(source string) func(*initTest) {
		return func(i *initTest) {
			i.files["main.tf"] = numbered + "module \"m\" { source = \"" + source + "\" }\n"
			i.files["m/main.tf"] = `resource "terraform_data" "inner" {}`
		}
	}
	remove := func(parts ...string) func(*initTest) {
		return func(i *initTest) {
			if err := os.RemoveAll(filepath.Join(append([]string{i.job.Dirs.Work}, parts...)...)); err != nil {
				i.t.Fatal(err)
			}
		}
	}
	damage := func(content string, parts ...string) func(*initTest) {
		return func(i *initTest) {
			if err := os.WriteFile(filepath.Join(append([]string{i.job.Dirs.Work, "data"}, parts...)...), []byte(content), 0o600); err != nil {
				i.t.Fatal(err)
			}
		}
	}
	anew := []string{initPrints}
	tests := []struct {
		name    string
		arrange func(*initTest) // before the first run
		between func(*initTest)
		version string // of the second run; "": v1
		want    []string
		not     string
	}{
		{name: "the same", want: []string{initReused}, not: initPrints},
		{name: "local module", arrange: module("./m"), want: []string{initReused}, not: initPrints},
		{name: "provider of the lock file", arrange: locked, want: []string{initReused}, not: initPrints},
		{name: "providers' directory lost", arrange: locked, between: remove("providers"), want: []string{initReused, initStale, initPrints}},
		{name: "providers lost", arrange: locked, between: remove("data", "providers"), want: []string{initReused, initStale, initPrints}},
		{name: "provider without a lock file", arrange: func(i *initTest) { i.files["main.tf"] = numbered + withProvider }, want: anew, not: initReused},
		{name: "another version", version: "v2", want: anew, not: initReused},
		{name: "another backend", want: anew, not: initReused, between: func(i *initTest) {
			i.job.Settings.State = job.State{Backend: "local", Config: map[string]map[string]string{
				"local": {"path": filepath.Join(i.dirs, "{workspace_id}.tfstate")},
			}}
		}},
		{name: "another start of the agent", between: func(i *initTest) { i.job.NoteKey = []byte("another") }, want: anew, not: initReused},
		{name: "backend's record lost", between: remove("data", "terraform.tfstate"), want: anew, not: initReused},
		{name: "backend's record damaged", between: damage("{\"vers", "terraform.tfstate"), want: anew, not: initReused},
		{name: "backend's record of another engine", between: damage(`{"version":99}`, "terraform.tfstate"), want: anew, not: initReused},
		{name: "modules lost", arrange: module("./m"), between: remove("data", "modules"), want: anew, not: initReused},
		{name: "modules damaged", arrange: module("./m"), between: damage("", "modules", "modules.json"), want: anew, not: initReused},
		{name: "workspace selected", between: damage("other", "environment"), want: anew, not: initReused},
		{name: "pipe in the note's place", want: anew, not: initReused, between: func(i *initTest) {
			path := filepath.Join(i.job.Dirs.Work, "initialised")
			if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
				i.t.Fatal(err)
			}
		}},
		{name: "after a failure", want: anew, not: initReused, between: func(i *initTest) {
			i.ask(i.repo, "v1", "", map[string]any{"n": "no number"})
			got, _ := i.run()
			wantEnd(i.t, got, provision.Failed, provision.CodeVariablesInvalid)
			i.ask(i.repo, "broken", "", map[string]any{"n": 1})
			got, _ = i.run()
			wantEnd(i.t, got, provision.Failed, provision.CodePlanFailed)
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			i := &initTest{site: newSite(t), files: map[string]string{"main.tf": numbered}, mirror: providertest.NewMirror(t)}
			i.env = i.mirror.Env()
			if test.arrange != nil {
				test.arrange(i)
			}
			repo := i.template(i.files, map[string]any{"n": 1})
			i.repo = repo.URL
			i.files["more.tf"] = `output "more" { value = 1 }`
			repo.Tag("v2", repo.Commit(gittest.Text(i.files)))
			i.files["more.tf"] = `output "more" { value = file("/does/not/exist") }`
			repo.Tag("broken", repo.Commit(gittest.Text(i.files)))
			got, c := i.run()
			wantEnd(t, got, provision.Success, "")
			if !strings.Contains(c.text(), initPrints) {
				t.Fatal("the first run ran no init")
			}
			if test.between != nil {
				test.between(i)
			}
			version := test.version
			if version == "" {
				version = "v1"
			}
			log := i.again(t, version)
			for _, part := range test.want {
				if !strings.Contains(log, part) {
					t.Errorf("the second run's log lacks %q:\n%s", part, log)
				}
			}
			if test.not != "" && strings.Contains(log, test.not) {
				t.Errorf("the second run's log has %q:\n%s", test.not, log)
			}
			i.wantNothingLeft()
		})
	}
}

// A module from elsewhere may have changed, so it is fetched by every run.
func TestModulesAreFetchedAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.job.Settings.Policy.Modules = []string{"**"}
	module := t.TempDir()
	write := func(n string) {
		if err := os.WriteFile(filepath.Join(module, "main.tf"), []byte("output \"n\" { value = "+n+" }"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1")
	s.template(map[string]string{"main.tf": "module \"m\" { source = \"" + module + "\" }\noutput \"n\" { value = module.m.n }"}, nil)
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
	write("2")
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	if !strings.Contains(c.text(), initPrints) || !strings.Contains(c.text(), "n: 2") && !strings.Contains(c.text(), "n = 2") {
		t.Error("the second run has the module as it was, want it fetched anew")
	}
}

// A template's commands inherit TF_DATA_DIR. What a terraform that they run
// leaves there is not what the next run works with.
func TestTemplateRunsTerraformItself(t *testing.T) { bothEngines(t, testTemplateRunsTerraformItself) }

func testTemplateRunsTerraformItself(t *testing.T, kind string) {
	t.Parallel()
	for name, command := range map[string]string{
		"another backend":   "cd nested && terraform init -input=false -reconfigure -backend-config=path=%s && terraform apply -auto-approve -input=false",
		"another workspace": "terraform workspace new other",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSiteOf(t, kind)
			s.job.Settings.State = job.State{Backend: "local", Config: map[string]map[string]string{
				"local": {"path": filepath.Join(s.dirs, "outer-{workspace_id}.tfstate")},
			}}
			if strings.Contains(command, "%s") {
				command = fmt.Sprintf(command, filepath.Join(s.dirs, "nested.tfstate"))
			}
			repo := s.template(map[string]string{"main.tf": fmt.Sprintf(`variable "n" { type = number }
resource "terraform_data" "outer" {
  input = var.n
  provisioner "local-exec" { command = %q }
}
`, command), "nested/main.tf": `terraform {
  backend "local" {}
}
resource "terraform_data" "nested" {}
`}, map[string]any{"n": 1})
			got, _ := s.run()
			wantEnd(t, got, provision.Success, "")
			s.ask(repo.URL, "v1", "", map[string]any{"n": 2})
			got, c := s.run()
			wantEnd(t, got, provision.Success, "")
			if log := c.text(); strings.Contains(log, "terraform_data.nested") || !strings.Contains(log, "0 added, 1 changed, 0 destroyed") {
				t.Errorf("the second run worked with another state:\n%s", log)
			}
		})
	}
}

// What a commit writes where the next run looks does not outlive it.
func TestCommitLeavesNoModule(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	repo := s.template(map[string]string{
		"main.tf": "module \"m\" { source = \"./m\" }\noutput \"who\" { value = module.m.who }\n", "m/main.tf": `output "who" { value = "good" }`,
	}, nil)
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
	note, err := os.ReadFile(filepath.Join(s.job.Dirs.Work, "initialised"))
	if err != nil {
		t.Fatal(err)
	}
	bad, _ := s.git.Repo("bad", gittest.Text(map[string]string{"main.tf": fmt.Sprintf(`resource "terraform_data" "e" {
  provisioner "local-exec" {
    command = <<-E
      w=%s; mkdir -p $w/data/bad $w/data/modules; echo 'output "who" { value = "bad" }' > $w/data/bad/main.tf
      echo '{"Modules":[{"Key":"","Source":"","Dir":"."},{"Key":"m","Source":"./m","Dir":"'$w'/data/bad"}]}' > $w/data/modules/modules.json
      printf %%s '%s' > $w/initialised; exit 1
    E
  }
}`, s.job.Dirs.Work, note)}), "v1")
	s.ask(bad.URL, "v1", "", nil)
	got, _ = s.run()
	wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
	s.ask(repo.URL, "v1", "", nil)
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	if log := c.text(); !strings.Contains(log, `who = "good"`) || strings.Contains(log, `"bad"`) || strings.Contains(log, initReused) {
		t.Errorf("the run after a bad commit was not of its own making:\n%s", log)
	}
}

// A template may speak of init itself: its error is told once.
func TestOwnErrorSpeaksOfInit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	repo := s.template(map[string]string{"main.tf": `variable "n" { type = number }
resource "terraform_data" "x" {
  input = var.n
  lifecycle {
    precondition {
      condition     = var.n < 2
      error_message = "Required plugins are not installed: run terraform init in bootstrap/ first."
    }
  }
}`}, map[string]any{"n": 1})
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
	s.ask(repo.URL, "v1", "", map[string]any{"n": 2})
	got, c := s.run()
	wantEnd(t, got, provision.Failed, provision.CodePlanFailed)
	if n := strings.Count(runlog.Plain(c.text()), "Error: Resource precondition failed"); n != 1 || !strings.Contains(c.text(), initReused) {
		t.Errorf("the log has the error %d times, want 1 after init was reused:\n%s", n, c.text())
	}
}
