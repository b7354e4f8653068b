package terraform

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/durable"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// plant puts a fake engine at a path and tells what version it says it is.
func plant(t *testing.T, path, version string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(self, path); err != nil { // another file system
		binary, err := os.ReadFile(self)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, binary, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), "fake-version"), []byte(version), 0o644); err != nil {
		t.Fatal(err)
	}
}

// questions is how often the engines in a directory were asked.
func questions(dir string) int {
	content, _ := os.ReadFile(filepath.Join(dir, "asked"))
	return strings.Count(string(content), "\n")
}

func TestLocateOrder(t *testing.T) {
	root := t.TempDir()
	at := func(parts ...string) string { return filepath.Join(append([]string{root}, parts...)...) }
	plant(t, at("dir", "terraform_1.5.0"), "1.5.0")
	plant(t, at("nested", "terraform", "1.6.0", "terraform"), "1.6.0")
	plant(t, at("nested", "terraform", "1.10.0", "terraform"), "1.10.0")
	plant(t, at("plain", "terraform"), "1.7.0")
	plant(t, at("tofus", "tofu", "1.10.0", "tofu"), "1.10.0")
	plant(t, at("tofus", "tofu", "1.12.6", "tofu"), "1.12.6")
	plant(t, at("bin", "terraform"), "1.8.0")
	plant(t, at("bin", "tofu"), "1.8.0")
	plant(t, at("installed", "terraform", "1.9.0", "terraform"), "1.9.0")
	if err := os.MkdirAll(at("links"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(at("plain", "terraform"), at("links", "terraform")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(at("shims"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("shims", "terraform"), []byte("#!/bin/sh\nexec real-terraform\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", at("shims")+":relative:"+at("bin"))

	admits := func(constraints ...string) (want Want) {
		for _, text := range constraints {
			want.Constraints = append(want.Constraints, Constraint{Text: text, At: "main.tf:2"})
		}
		return want
	}
	tests := []struct {
		name string
		cfg  job.Engine
		want Want
		path string
	}{
		{"the newest that the template admits, not the first", job.Engine{Dir: at("plain")}, admits(">= 1.5"), at("installed", "terraform", "1.9.0", "terraform")},
		{"an OpenTofu that heeds a .tf file's version", job.Engine{Dir: at("tofus")}, Want{Kind: "tofu", Constraints: []Constraint{{Text: "< 1.11", Legacy: true}, {Text: "< 1.12"}}}, at("tofus", "tofu", "1.10.0", "tofu")},
		{"an OpenTofu that does not", job.Engine{Dir: at("tofus")}, Want{Kind: "tofu", Constraints: []Constraint{{Text: "< 1.11", Legacy: true}}}, at("tofus", "tofu", "1.12.6", "tofu")},
		{"all constraints hold", job.Engine{Dir: at("nested")}, admits(">= 1.5", "< 1.9, != 1.8.0"), at("nested", "terraform", "1.6.0", "terraform")},
		{"the agent's version if the template admits it", job.Engine{Dir: at("nested"), Version: "1.6.0"}, admits("~> 1.6"), at("nested", "terraform", "1.6.0", "terraform")},
		{"the template's, if it does not admit the agent's", job.Engine{Dir: at("nested"), Version: "1.6.0"}, admits(">= 1.7"), at("nested", "terraform", "1.10.0", "terraform")},
		{"the snapshot's version of several admitted", job.Engine{Dir: at("nested")}, Want{Version: "1.6.0", Constraints: admits(">= 1.5").Constraints}, at("nested", "terraform", "1.6.0", "terraform")},
		{"the agent's directory first, KIND_VERSION", job.Engine{Dir: at("dir")}, Want{Version: "1.5.0"}, at("dir", "terraform_1.5.0")},
		{"KIND/VERSION/KIND", job.Engine{Dir: at("nested")}, Want{Version: "v1.6.0"}, at("nested", "terraform", "1.6.0", "terraform")},
		{"newest of the agent's directory", job.Engine{Dir: at("nested")}, Want{}, at("nested", "terraform", "1.10.0", "terraform")},
		{"KIND", job.Engine{Dir: at("plain")}, Want{}, at("plain", "terraform")},
		{"a link is resolved", job.Engine{Dir: at("links")}, Want{}, at("plain", "terraform")},
		{"PATH, past a shim", job.Engine{}, Want{}, at("bin", "terraform")},
		{"PATH when the directory has another version", job.Engine{Dir: at("plain")}, Want{Version: "1.8.0"}, at("bin", "terraform")},
		{"installed before", job.Engine{Dir: at("plain")}, Want{Version: "1.9.0"}, at("installed", "terraform", "1.9.0", "terraform")},
		{"the agent's choice of version", job.Engine{Dir: at("nested"), Version: "1.6.0"}, Want{}, at("nested", "terraform", "1.6.0", "terraform")},
		{"the agent's choice of kind", job.Engine{Kind: "tofu"}, Want{}, at("bin", "tofu")},
		{"past what the policy finds too old", job.Engine{Dir: at("plain"), OldestTerraform: "1.9.0"}, Want{}, at("installed", "terraform", "1.9.0", "terraform")},
		{"what is as old as the policy allows", job.Engine{Dir: at("nested"), OldestTerraform: "1.6.0"}, Want{Version: "1.6.0"}, at("nested", "terraform", "1.6.0", "terraform")},
		{"the policy on the other kind", job.Engine{Dir: at("nested"), OldestTofu: "9.0.0"}, Want{Version: "1.6.0"}, at("nested", "terraform", "1.6.0", "terraform")},
		{"the agent's version is not another kind's", job.Engine{Version: "1.6.0"}, Want{Kind: "tofu"}, at("bin", "tofu")},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			engine, err := Locate(t.Context(), test.cfg, test.want, at("installed"), nil)
			if err != nil || engine.Path != test.path {
				t.Errorf("Locate(%+v, %+v) = %+v, %v, want %s", test.cfg, test.want, engine, err, test.path)
			}
		})
	}
}

func TestLocateWithoutAnEngine(t *testing.T) {
	root := t.TempDir()
	bin := filepath.Join(root, "bin")
	plant(t, filepath.Join(bin, "terraform"), "1.8.0")
	if err := os.WriteFile(filepath.Join(root, "terraform"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", root+":"+bin)
	tests := []struct {
		name     string
		cfg      job.Engine
		want     Want
		code     provision.Code
		contains []string
	}{
		{"another version", job.Engine{}, Want{Version: "1.9.0"}, provision.CodeEngineMissing, []string{
			"terraform 1.9.0 is not on this agent: install it", "let the agent download it",
			filepath.Join(root, "terraform") + " is a script", filepath.Join(bin, "terraform") + " is version 1.8.0"}},
		{"a snapshot's that the policy finds too old", job.Engine{OldestTerraform: "1.8.1"}, Want{Version: "1.8.0"}, provision.CodePolicyRefused, []string{
			"the snapshot asks for terraform 1.8.0", "the agent's policy allows 1.8.1 or newer (policy.oldest_terraform)"}},
		{"a pre-release of what is too old", job.Engine{OldestTerraform: "1.8.0"}, Want{Version: "1.7.0-rc1"}, provision.CodePolicyRefused, []string{
			"the snapshot asks for terraform 1.7.0-rc1", "policy.oldest_terraform"}},
		{"the agent's that the policy finds too old", job.Engine{Version: "1.8.0", OldestTerraform: "1.8.1"}, Want{}, provision.CodePolicyRefused, []string{
			"engine.version of the agent's configuration is 1.8.0", "policy.oldest_terraform"}},
		{"only what the policy finds too old", job.Engine{OldestTerraform: "1.8.1"}, Want{Constraints: []Constraint{{Text: "< 2.0", At: "mod/main.tf:1"}}}, provision.CodeEngineMissing, []string{
			filepath.Join(bin, "terraform") + " is version 1.8.0, and the agent's policy allows 1.8.1 or newer (policy.oldest_terraform)"}},
		{"none that the template admits", job.Engine{Version: "1.7.0"}, Want{Constraints: []Constraint{{Text: ">= 1.9", At: "versions.tf:2"}, {Text: "< 2.0", At: "mod/main.tf:1"}}}, provision.CodeEngineMissing, []string{
			`terraform >= 1.9,< 2.0 is not on this agent`, `The template wants required_version ">= 1.9" (versions.tf:2), "< 2.0" (mod/main.tf:1)`,
			filepath.Join(bin, "terraform") + " is version 1.8.0", "engine.version of the agent's configuration is 1.7.0"}},
		{"a snapshot that contradicts its template", job.Engine{Install: true}, Want{Version: "1.5.0", Constraints: []Constraint{{Text: ">= 1.9", At: "versions.tf:2"}}}, provision.CodeBadSnapshot, []string{
			"the snapshot asks for terraform 1.5.0", `the template for required_version ">= 1.9" (versions.tf:2)`}},
		{"a constraint that is none", job.Engine{}, Want{Constraints: []Constraint{{Text: "newest", At: "versions.tf:2"}}}, provision.CodeTemplateInvalid, []string{
			"versions.tf:2: required_version", `"newest" is no constraint`}},
		{"tofu cannot be installed", job.Engine{Install: true}, Want{Kind: "tofu", Version: "1.9.0"}, provision.CodeEngineMissing, []string{
			"tofu 1.9.0 is not on this agent", "Tendril downloads Terraform only"}},
		{"no such kind", job.Engine{}, Want{Kind: "../terraform"}, provision.CodeBadSnapshot, []string{`"../terraform" is neither`}},
		{"a path as version", job.Engine{Install: true}, Want{Version: "../../etc"}, provision.CodeBadSnapshot, []string{`"../../etc" is not a version`}},
		{"a constraint as version", job.Engine{}, Want{Version: "~> 1.5"}, provision.CodeBadSnapshot, []string{"is not a version like 1.11.4"}},
		{"a path within a version", job.Engine{}, Want{Version: "1.2.3-a/../b"}, provision.CodeBadSnapshot, []string{"is not a version"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Locate(t.Context(), test.cfg, test.want, filepath.Join(root, "installed"), nil)
			wantContains(t, "message", wantCode(t, err, test.code).Message, test.contains...)
		})
	}
}

func TestVersionIsRemembered(t *testing.T) {
	t.Parallel()
	dir, cache := t.TempDir(), filepath.Join(t.TempDir(), "not", "yet")
	path := filepath.Join(dir, "terraform")
	plant(t, path, "1.8.0")
	locate := func() string {
		t.Helper()
		engine, err := Locate(t.Context(), job.Engine{Dir: dir}, Want{}, cache, nil)
		if err != nil {
			t.Fatal(err)
		}
		return engine.Version
	}
	for range 3 {
		if got := locate(); got != "1.8.0" {
			t.Errorf("version = %s, want 1.8.0", got)
		}
	}
	if got := questions(dir); got != 1 {
		t.Errorf("asked %d times, want once", got)
	}

	// A torn cache is ignored and replaced.
	if err := os.WriteFile(filepath.Join(cache, "versions.json"), []byte(`{"/x":{"si`), 0o644); err != nil {
		t.Fatal(err)
	}
	locate()
	locate()
	if got := questions(dir); got != 2 {
		t.Errorf("asked %d times after the cache was torn, want twice in all", got)
	}

	// Another binary in its place is asked again. A link would be the test
	// binary itself, whose time is not ours to change.
	binary, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, time.Unix(1_000_000_000, 0)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "fake-version"), []byte("1.9.0"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := locate(); got != "1.9.0" {
		t.Errorf("version of the new binary = %s, want 1.9.0", got)
	}
	if left, err := filepath.Glob(filepath.Join(cache, durable.TempPrefix+"*")); err != nil || left != nil {
		t.Errorf("temporary files = %v, %v, want none", left, err)
	}
}

func TestVersionCacheIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := newVersionCache(dir)
	known := map[string]knownVersion{"/gone": {Version: "1"}}
	for i := range maxKnownVersions + 10 {
		path := filepath.Join(dir, fmt.Sprint("f", i))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		known[path] = knownVersion{Version: "1"}
	}
	c.save(known)
	got := c.load()
	if _, gone := got["/gone"]; gone || len(got) != maxKnownVersions {
		t.Errorf("%d versions are kept, that of a missing file %v, want %d and false", len(got), gone, maxKnownVersions)
	}
}
