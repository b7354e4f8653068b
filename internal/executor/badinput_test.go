package executor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

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
		"state operation without a command": {func(s *site) {
			s.template(map[string]string{"main.tf": ok}, nil)
			s.job.Assignment.Operation = provision.OperationState
		}, provision.CodeBadSnapshot, []string{"config_snapshot.state: missing"}},
		"unlock without a lock": {func(s *site) {
			s.template(map[string]string{"main.tf": ok}, nil)
			s.job.Assignment.Operation = provision.OperationUnlock
		}, provision.CodeBadSnapshot, []string{"config_snapshot.lock_id: missing"}},
		"apply fails": {func(s *site) { s.template(map[string]string{"main.tf": slow("echo broken >&2; exit 7")}, nil) },
			provision.CodeApplyFailed, []string{"local-exec"}},
		"plan fails": {func(s *site) {
			s.template(map[string]string{"main.tf": "output \"x\" { value = file(\"absent\") }"}, nil)
		}, provision.CodePlanFailed, []string{"main.tf"}},
		"kept state that is none": {func(s *site) {
			s.template(map[string]string{"main.tf": ok}, nil)
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
