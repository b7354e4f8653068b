package executor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/gittest"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/providers/providertest"
	"github.com/tendril-run/tendril/internal/provision"
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
		{name: "provider without a lock file", arrange: func(i *initTest) { i.files["main.tf"] = numbered + withProvider },
			want: []string{initPrints}, not: initReused},
		{name: "another version", version: "v2", want: []string{initPrints}, not: initReused},
		{name: "another backend", want: []string{initPrints}, not: initReused, between: func(i *initTest) {
			i.job.Settings.State = job.State{Backend: "local", Config: map[string]map[string]string{
				"local": {"path": filepath.Join(i.dirs, "{workspace_id}.tfstate")},
			}}
		}},
		{name: "backend data lost", between: remove("data", "terraform.tfstate"), want: []string{initReused, initStale, initPrints}},
		{name: "modules lost", arrange: module("./m"), between: remove("data", "modules"), want: []string{initReused, initStale, initPrints}},
		{name: "providers lost", arrange: locked, between: remove("data", "providers"), want: []string{initReused, initStale, initPrints}},
		{name: "old", want: []string{initPrints}, not: initReused, between: func(i *initTest) {
			long := time.Now().Add(-8 * 24 * time.Hour)
			if err := os.Chtimes(filepath.Join(i.job.Dirs.Work, "initialised"), long, long); err != nil {
				i.t.Fatal(err)
			}
		}},
		{name: "after a failure", want: []string{initPrints}, not: initReused, between: func(i *initTest) {
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
