package executor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/managedstate"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// managed is the agent's part of a managed state.
type managed struct {
	dir   string
	key   seal.Identities
	state []byte   // as it is in the database
	slots []string // the two files, or what is in their place
}

// manage gives the site's runs a managed state.
func (s *site) manage() *managed {
	s.t.Helper()
	key, err := seal.Generate()
	if err != nil {
		s.t.Fatal(err)
	}
	m := &managed{dir: s.t.TempDir(), key: key}
	m.slots = []string{filepath.Join(m.dir, "a"), filepath.Join(m.dir, "b")}
	s.managed, s.job.ClusterKey, s.job.ManagedState = m, key.Public(), &job.ManagedState{}
	s.job.Settings.State.Default = job.Managed
	return m
}

// stateFiles are what a run gets for its state.
func (s *site) stateFiles() [3]*os.File {
	s.t.Helper()
	m := s.managed
	if m == nil {
		m = &managed{dir: s.t.TempDir()}
		m.slots = []string{filepath.Join(m.dir, "a"), filepath.Join(m.dir, "b")}
	}
	in := filepath.Join(m.dir, "in")
	if err := os.WriteFile(in, m.state, 0o600); err != nil {
		s.t.Fatal(err)
	}
	var files [3]*os.File
	for i, path := range append([]string{in}, m.slots...) {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			s.t.Fatal(err)
		}
		files[i] = file
	}
	return files
}

// store does with what a run has written what its agent would, and returns how
// often it wrote.
func (s *site) store(c *child) (writes int) {
	s.t.Helper()
	var newest *provision.StateWrite
	for _, r := range c.reports {
		if w := r.Detail.StateWrite; w != nil {
			if want := s.job.ManagedState.Version + int64(writes) + 1; w.Number != want || w.Slot != writes%2 {
				s.t.Errorf("state_write = version %d in slot %d, want %d in %d", w.Number, w.Slot, want, writes%2)
			}
			newest = w
			writes++
		}
	}
	if newest == nil {
		return 0
	}
	sealed, err := os.ReadFile(s.managed.slots[newest.Slot])
	if err != nil {
		s.t.Fatal(err)
	}
	if s.managed.state, err = s.managed.key.Open(sealed, managedstate.MaxState); err != nil {
		s.t.Fatalf("the state that was written last: %v", err)
	}
	s.job.ManagedState.Version = newest.Number
	return writes
}

// resources lists the keys of a state's instances.
func (m *managed) resources(t *testing.T) string {
	t.Helper()
	var s struct {
		Resources []struct {
			Instances []struct {
				Key string `json:"index_key"`
			}
		}
	}
	if err := json.Unmarshal(m.state, &s); err != nil {
		t.Fatalf("state %q: %v", m.state, err)
	}
	var keys []string
	for _, r := range s.Resources {
		for _, i := range r.Instances {
			keys = append(keys, i.Key)
		}
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

var eachTemplate = map[string]string{"main.tf": `
variable "names" { type = set(string) }
resource "terraform_data" "each" {
  for_each = var.names
  input    = each.key
}`}

func names(names ...string) map[string]any { return map[string]any{"names": names} }

func TestManagedStateLife(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.manage()
	repo := s.template(eachTemplate, names("a", "b", "c"))
	steps := []struct {
		names     []string
		operation provision.Operation
		want      string
		silent    bool // nothing is written
	}{
		{[]string{"a", "b", "c"}, provision.OperationApply, "a b c", false},
		{[]string{"a", "b", "c"}, provision.OperationApply, "a b c", true},
		{[]string{"a", "d"}, provision.OperationApply, "a d", false},
		{[]string{"x"}, provision.OperationPlan, "a d", true},
		{[]string{"a", "d"}, provision.OperationDestroy, "", false},
	}
	for _, step := range steps {
		s.ask(repo.URL, "v1", "", names(step.names...))
		s.job.Assignment.Operation = step.operation
		result, c := s.run()
		wantEnd(t, result, provision.Success, "")
		writes := s.store(c)
		if got := m.resources(t); got != step.want || (writes == 0) != step.silent {
			t.Errorf("%s of %v: state has %q after %d writes, want %q", step.operation, step.names, got, writes, step.want)
		}
	}
	if found, err := filepath.Glob(filepath.Join(s.job.Dirs.State, "*.tfstate")); err != nil || len(found) > 0 {
		t.Errorf("files = %v, %v, want no state on the disk", found, err)
	}
}

// A state that was a file becomes the first managed one, once; it is there
// before anything is planned with it.
func TestLocalStateIsTakenOver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	repo := s.template(eachTemplate, names("a", "b"))
	result, _ := s.run()
	wantEnd(t, result, provision.Success, "")
	file := filepath.Join(s.job.Dirs.State, "terraform.tfstate")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	m := s.manage()
	s.job.Assignment.Operation = provision.OperationPlan
	result, c := s.run()
	wantEnd(t, result, provision.Success, "")
	if !strings.Contains(c.text(), "It is taken over") || !strings.Contains(c.text(), "No changes") {
		t.Errorf("log = %q, want a state that is taken over and fits", c.text())
	}
	if s.store(c) != 1 || string(m.state) != string(before) {
		t.Errorf("version 1 = %s, want what the file has", m.state)
	}

	// From now on the file counts for nothing.
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.ask(repo.URL, "v1", "", names("a"))
	s.job.Assignment.Operation = provision.OperationApply
	result, c = s.run()
	wantEnd(t, result, provision.Success, "")
	if s.store(c) == 0 || m.resources(t) != "a" {
		t.Errorf("state has %q, want a", m.resources(t))
	}

	// One that is cut short is not taken for an empty one.
	s.manage()
	result, _ = s.run()
	wantEnd(t, result, provision.Failed, provision.CodeStateInvalid)
}

// The agent's word beats the template's, and a template's own backend the default.
func TestManagedStateAndDeclaredBackends(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.manage()
	s.template(map[string]string{"main.tf": eachTemplate["main.tf"] + `
terraform {
  backend "s3" {}
}`}, names("a"))
	result, _ := s.run()
	wantEnd(t, result, provision.Failed, provision.CodeInitFailed) // for want of a bucket
	s.job.Settings.State.Backend = job.Managed
	result, c := s.run()
	wantEnd(t, result, provision.Success, "")
	if s.store(c) == 0 || m.resources(t) != "a" {
		t.Errorf("state = %s, want a in it", m.state)
	}
}

// Where the disk does not take a state the engine is told, and what it leaves is
// kept and pushed as with any other backend.
func TestManagedStateOnAFullDisk(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.manage()
	s.tries = 1
	good := m.slots
	m.slots = []string{"/dev/full", "/dev/full"}
	repo := s.template(eachTemplate, names("a", "b"))
	result, c := s.run()
	wantEnd(t, result, provision.Failed, provision.CodeStateUnsaved)
	if !strings.Contains(c.text(), "could not be written to this agent's disk") {
		t.Errorf("log = %q, want it to say that the disk did not take the state", c.text())
	}
	if unsaved := last(c, func(d provision.Detail) bool { return d.StateUnsaved != nil && *d.StateUnsaved }); !unsaved {
		t.Error("no report says that a state is kept")
	}
	m.slots, s.tries = good, 0
	s.ask(repo.URL, "v1", "", names("a", "b", "c"))
	result, c = s.run()
	wantEnd(t, result, provision.Success, "")
	if s.store(c) < 2 || m.resources(t) != "a b c" {
		t.Errorf("state has %q, want what both runs made", m.resources(t))
	}
	if n := strings.Count(c.text(), "Creation complete"); n != 1 {
		t.Errorf("log = %q, want one creation: the others were made before (%d)", c.text(), n)
	}
}

// A plan that was made with one run's server is applied with another's: see
// package managedstate. Here: what init recorded serves the next run.
func TestManagedStateIsNotInitialisedAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.manage()
	repo := s.template(eachTemplate, names("a"))
	for n := range 3 {
		s.ask(repo.URL, "v1", "", names("a", fmt.Sprint(n)))
		result, c := s.run()
		wantEnd(t, result, provision.Success, "")
		s.store(c)
		if again := strings.Contains(c.text(), "are those of the last run"); again != (n > 0) {
			t.Errorf("run %d: init of the one before served = %t", n, again)
		}
	}
}

// A plan that awaits approval holds nothing of the server that it was made with:
// another agent applies it, with its own. Once the state has moved on, none does.
func TestApprovedPlanOfAManagedState(t *testing.T) {
	bothEngines(t, func(t *testing.T, kind string) {
		t.Parallel()
		s := newSite(t)
		m := s.manage()
		s.job.Settings.Engine.Kind = kind
		repo := s.template(eachTemplate, names("a"))
		result, c := s.run()
		wantEnd(t, result, provision.Success, "")
		s.store(c)

		s.job.Assignment.Approval = provision.ApprovalAlways
		s.ask(repo.URL, "v1", "", names("a", "b"))
		digest, _ := s.awaits()
		other := s.elsewhere()
		other.managed, other.job.ManagedState, other.job.ClusterKey = m, s.job.ManagedState, s.job.ClusterKey
		other.job.Assignment.ApprovedPlan = digest
		result, c = other.run()
		wantEnd(t, result, provision.Success, "")
		if other.store(c) == 0 || m.resources(t) != "a b" {
			t.Errorf("state has %q, want a b", m.resources(t))
		}
		result, c = other.run()
		wantEnd(t, result, provision.Failed, provision.CodePlanStale)
		if other.store(c) != 0 {
			t.Error("a plan of an older state has changed the state")
		}
	})
}

// A template's command that tries to write the managed state, or to release its
// lock, is refused, and the log says so once, however often it tries.
func TestTemplateIsRefusedTheManagedState(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.manage()
	s.template(map[string]string{"main.tf": `
resource "terraform_data" "each" {
  for_each = toset(["a"])
  provisioner "local-exec" {
    command = <<-EOT
      for n in 1 2 3; do
        curl -s -u "$TF_HTTP_USERNAME:$TF_HTTP_PASSWORD" -X UNLOCK "$TF_HTTP_ADDRESS"
        curl -s -u "$TF_HTTP_USERNAME:$TF_HTTP_PASSWORD" -d '{"version": 4, "serial": 999}' "$TF_HTTP_ADDRESS"
      done
    EOT
  }
}`}, nil)
	result, c := s.run()
	wantEnd(t, result, provision.Success, "")
	if s.store(c) == 0 || m.resources(t) != "a" {
		t.Errorf("state = %s, want what the engine wrote", m.state)
	}
	for _, what := range []string{"unlock the state without the id of its lock", "write the state without the id of its lock"} {
		if n := strings.Count(c.text(), "Refused: a process that this run's template has started tried to "+what); n != 1 {
			t.Errorf("the log says %d times that a process tried to %s, want once:\n%s", n, what, c.text())
		}
	}
}
