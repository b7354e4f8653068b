package executor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/providers"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/providertest"
)

const initShared = "init made of this template in another workspace serves here too"

// neighbour makes the site one of another workspace of the same agent.
func (s *site) neighbour() {
	s.t.Helper()
	dir := s.t.TempDir()
	s.job.Assignment.WorkspaceID, s.job.Assignment.Workspace = uuid.New(), "acme/other"
	s.job.Dirs.Work, s.job.Dirs.Secrets, s.job.Dirs.State = filepath.Join(dir, "work"), filepath.Join(dir, "work", "secrets"), filepath.Join(dir, "state")
	for _, d := range []string{s.job.Dirs.Work, s.job.Dirs.State} {
		if err := os.Mkdir(d, 0o700); err != nil {
			s.t.Fatal(err)
		}
	}
}

// What init made of a template serves another workspace of it, which has a state of
// its own all the same; everything else runs init, and no run fails for it.
// Each case is tried with one engine, which is drawn; with TENDRIL_TEST_FAULTS=all with both.
func TestInitServesOtherWorkspaces(t *testing.T) { bothEngines(t, testInitServesOtherWorkspaces) }

func testInitServesOtherWorkspaces(t *testing.T, kind string) {
	t.Parallel()
	locked := func(i *initTest) {
		h1 := i.mirror.Unpack(i.t, providertest.Version, i.t.TempDir())
		i.files["main.tf"] = numbered + withProvider
		i.files[providers.LockFileName] = lockOf(map[string]string{"terraform": "registry.terraform.io", "tofu": "registry.opentofu.org"}[kind]+"/hashicorp/time", providertest.Version, h1)
	}
	module := func(i *initTest) {
		i.files["main.tf"] = numbered + "module \"m\" { source = \"./m\" }\n"
		i.files["m/main.tf"] = `resource "terraform_data" "inner" {}`
	}
	forge := func(i *initTest) {
		shared, err := filepath.Glob(filepath.Join(i.job.Dirs.Providers, ".inits", "*"))
		if err != nil || len(shared) != 1 {
			i.t.Fatalf("shared: %v, %v, want one file", shared, err)
		}
		text, err := os.ReadFile(shared[0])
		if err == nil {
			err = os.WriteFile(shared[0], []byte(strings.Replace(string(text), `"record":"`, `"record":"AAAA`, 1)), 0o600)
		}
		if err != nil {
			i.t.Fatal(err)
		}
	}
	tests := []struct {
		name    string
		arrange func(*initTest)
		between func(*initTest)
		version string // of the other workspace; "": v1
		want    string
		not     string
	}{
		{name: "local state", want: initShared, not: initPrints},
		{name: "managed state", arrange: func(i *initTest) { i.manage() }, between: func(i *initTest) { i.manage() }, want: initShared, not: initPrints},
		{name: "local module", arrange: module, want: initShared, not: initPrints},
		{name: "provider of the lock file", arrange: locked, want: initShared, not: initPrints},
		{name: "provider lost", arrange: locked, want: initPrints, not: initShared, between: func(i *initTest) {
			if err := os.RemoveAll(filepath.Join(i.job.Dirs.Providers, map[string]string{"terraform": "registry.terraform.io", "tofu": "registry.opentofu.org"}[kind])); err != nil {
				i.t.Fatal(err)
			}
		}},
		{name: "provider without a lock file", arrange: func(i *initTest) { i.files["main.tf"] = numbered + withProvider }, want: initPrints, not: initShared},
		{name: "another version", version: "v2", want: initPrints, not: initShared},
		{name: "another place of the state", want: initPrints, not: initShared, between: func(i *initTest) {
			i.job.Settings.State = job.State{Backend: "local", Config: map[string]map[string]string{
				"local": {"path": filepath.Join(i.dirs, "{workspace_id}.tfstate")},
			}}
		}},
		{name: "another start of the agent", between: func(i *initTest) { i.job.NoteKey = []byte("another") }, want: initPrints, not: initShared},
		{name: "forged", between: forge, want: initPrints, not: initShared},
	}
	for _, test := range tests {
		if !takes(kind, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			i := &initTest{site: newSiteOf(t, kind), files: map[string]string{"main.tf": numbered}, mirror: providertest.NewMirror(t)}
			i.env = i.mirror.Env()
			if test.arrange != nil {
				test.arrange(i)
			}
			repo := i.template(i.files, map[string]any{"n": 1})
			i.repo = repo.URL
			i.files["more.tf"] = `output "more" { value = 1 }`
			repo.Tag("v2", repo.Commit(gittest.Text(i.files)))
			got, _ := i.run()
			wantEnd(t, got, provision.Success, "")

			first := i.job.Dirs.State
			i.neighbour()
			if test.between != nil {
				test.between(i)
			}
			version := test.version
			if version == "" {
				version = "v1"
			}
			log := i.again(t, version)
			if !strings.Contains(log, test.want) || strings.Contains(log, test.not) {
				t.Errorf("the other workspace's log, want %q in it and not %q:\n%s", test.want, test.not, log)
			}
			if !strings.Contains(log, " 0 changed, 0 destroyed") || strings.Contains(log, "Refreshing state") {
				t.Errorf("the other workspace began with a state, want none:\n%s", log)
			}
			if i.managed == nil && i.job.Settings.State.Backend == "" {
				for _, dir := range []string{first, i.job.Dirs.State} {
					if info, err := os.Stat(filepath.Join(dir, "terraform.tfstate")); err != nil || info.Size() == 0 {
						t.Errorf("the state in %s: %v, %v, want one in each workspace's", dir, info, err)
					}
				}
			}
			// Its own note counts from now on: the record is as the engine would have it.
			if test.want == initShared {
				if log := i.again(t, version); strings.Contains(log, initPrints) || strings.Contains(log, initShared) {
					t.Errorf("the next run there has not its own note to go by:\n%s", log)
				}
			}
			i.wantNothingLeft()
		})
	}
}
