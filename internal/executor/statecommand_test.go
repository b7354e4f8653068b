package executor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// command asks for a command on the state; given is what the agent hands down.
func (s *site) command(c provision.StateCommand, given []byte) (provision.Report, *child) {
	s.t.Helper()
	s.job.Assignment.Operation = provision.OperationState
	s.amend(map[string]any{"state": c})
	s.bundle = filepath.Join(s.t.TempDir(), "given")
	if err := os.WriteFile(s.bundle, given, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return s.run()
}

func addressesOf(c *child) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var addresses []string
	for _, report := range c.reports {
		for _, r := range report.Detail.Resources {
			addresses = append(addresses, r.Address)
		}
	}
	return strings.Join(addresses, " ")
}

func TestStateCommands(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.manage()
	s.template(map[string]string{"main.tf": `
resource "terraform_data" "one" { input = "1" }
resource "terraform_data" "two" { input = "2" }
output "token" {
  value     = "hunter2-token"
  sensitive = true
}`}, nil)
	result, c := s.run()
	wantEnd(t, result, provision.Success, "")
	s.store(c)
	before, old := m.state, []byte(nil)

	for _, step := range []struct {
		command provision.StateCommand
		given   []byte
		want    string
	}{
		{provision.StateCommand{Command: "list"}, nil, "terraform_data.one terraform_data.two"},
		{provision.StateCommand{Command: "mv", Args: []string{"terraform_data.one", "terraform_data.first"}}, nil, "terraform_data.first terraform_data.two"},
		{provision.StateCommand{Command: "rm", Args: []string{"terraform_data.first"}}, nil, "terraform_data.two"},
		{provision.StateCommand{Command: "import", Args: []string{"terraform_data.one", "an-id"}}, nil, "terraform_data.one terraform_data.two"},
		{provision.StateCommand{Command: "rm", Args: []string{"terraform_data.one", "terraform_data.two"}}, nil, ""},
		{provision.StateCommand{Command: "rollback", Version: 1}, before, "terraform_data.one terraform_data.two"},
	} {
		result, c := s.command(step.command, step.given)
		wantEnd(t, result, provision.Success, "")
		writes := s.store(c)
		if got := addressesOf(c); got != step.want || (writes == 0) != (step.command.Command == "list") {
			t.Errorf("%s: reported %q after %d writes, want %q", step.command.Command, got, writes, step.want)
		}
		if asked := slices.Contains(c.stages(), provision.StageApply); asked != (step.command.Command != "list") {
			t.Errorf("%s: asked for the workspace = %t", step.command.Command, asked)
		}
		if step.command.Command == "mv" {
			old = m.state
		}
		if strings.Contains(c.text(), "hunter2") {
			t.Errorf("%s: log = %q, want no secret", step.command.Command, c.text())
		}
	}

	// An older one does not follow from what is stored.
	result, c = s.command(provision.StateCommand{Command: "push", Upload: "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}, old)
	wantEnd(t, result, provision.Failed, provision.CodeStateFailed)
	if s.store(c) != 0 {
		t.Error("a state that was refused is stored")
	}
	for given, says := range map[string]string{"": "nothing to store", "{}": "no Terraform state"} {
		result, _ := s.command(provision.StateCommand{Command: "push", Upload: "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}, []byte(given))
		wantEnd(t, result, provision.Failed, provision.CodeStateFailed)
		if !strings.Contains(result.Detail.ErrorMessage, says) {
			t.Errorf("push of %q: %s, want %q", given, result.Detail.ErrorMessage, says)
		}
	}
}

// What is pulled is for who asked, and nobody else.
func TestStateIsPulledSealed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.manage()
	s.template(map[string]string{"main.tf": `output "token" { value = "hunter2-token" }`}, nil)
	result, _ := s.command(provision.StateCommand{Command: "pull"}, nil)
	wantEnd(t, result, provision.Failed, provision.CodeStateFailed) // for whom?
	own, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	// What the snapshot says is a row: only the agent says to whom may be sealed.
	s.amend(map[string]any{"requester_key": own.Public()})
	s.job.RequesterRefused = "policy.requester_keys does not name the key"
	result, _ = s.command(provision.StateCommand{Command: "pull"}, nil)
	wantEnd(t, result, provision.Failed, provision.CodeOperationRefused)
	s.job.Requester, s.job.RequesterRefused = own.Public(), ""
	result, _ = s.command(provision.StateCommand{Command: "pull"}, nil)
	wantEnd(t, result, provision.Failed, provision.CodeStateFailed) // there is none yet

	s.amend(map[string]any{"state": nil})
	s.job.Assignment.Operation = provision.OperationApply
	result, c := s.run()
	wantEnd(t, result, provision.Success, "")
	s.store(c)
	result, _ = s.command(provision.StateCommand{Command: "pull"}, nil)
	wantEnd(t, result, provision.Success, "")
	sealed, err := os.ReadFile(s.bundle)
	if err != nil {
		t.Fatal(err)
	}
	if result.Detail.ResultDigest == "" || result.Detail.ResultDigest != planbundle.Digest(sealed) {
		t.Errorf("result_digest = %q, want that of what was left", result.Detail.ResultDigest)
	}
	if state, err := own.Open(sealed, 1<<20); err != nil || !strings.Contains(string(state), "hunter2-token") || !strings.Contains(string(m.state), "hunter2-token") {
		t.Errorf("left is %s, %v, want the state", state, err)
	}
}

// The template's own backend, which the agent's policy has replaced, has a state.
func TestStateIsAdopted(t *testing.T) {
	t.Parallel()
	states := newStateServer(t)
	s := newSite(t)
	s.template(map[string]string{"main.tf": `
terraform {
  backend "http" {}
}
resource "terraform_data" "one" { input = "1" }`}, nil)
	s.useState(states)
	result, _ := s.run()
	wantEnd(t, result, provision.Success, "")

	adopt := provision.StateCommand{Command: "adopt"}
	result, _ = s.command(adopt, nil)
	wantEnd(t, result, provision.Failed, provision.CodeStateFailed) // it is not managed here
	m := s.manage()
	s.job.Settings.State.Backend = job.Managed
	s.amend(map[string]any{"state": nil})
	s.job.Assignment.Operation, s.job.Assignment.HasResources = provision.OperationApply, true
	result, c := s.run()
	wantEnd(t, result, provision.Failed, provision.CodeStateInvalid) // it would be made twice
	if s.store(c) != 0 || !strings.Contains(result.Detail.ErrorMessage, "trellis state adopt") {
		t.Errorf("an apply with an empty state: %s, want it to say what to do", result.Detail.ErrorMessage)
	}
	result, c = s.command(adopt, nil)
	wantEnd(t, result, provision.Success, "")
	if s.store(c) != 1 || !strings.Contains(string(m.state), `"lineage"`) || addressesOf(c) != "terraform_data.one" {
		t.Errorf("adopted %s, want %s", m.state, states.stored())
	}
	result, _ = s.command(adopt, nil)
	wantEnd(t, result, provision.Failed, provision.CodeStateFailed) // twice
	s.amend(map[string]any{"state": nil})
	s.job.Assignment.Operation = provision.OperationApply
	result, c = s.run()
	wantEnd(t, result, provision.Success, "")
	if !strings.Contains(c.text(), "No changes") {
		t.Errorf("log = %q, want a plan that knows what exists", c.text())
	}
}

// A change to the state waits for approval wherever an apply does, and what was
// approved is what is done: that command, with that content, over that state.
func TestStateChangeAwaitsApproval(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.manage()
	s.template(map[string]string{"main.tf": `
resource "terraform_data" "one" { input = "1" }
resource "terraform_data" "two" { input = "2" }`}, nil)
	result, c := s.run()
	wantEnd(t, result, provision.Success, "")
	s.store(c)
	before := m.state
	s.job.Settings.Policy.Approval = provision.ApprovalDestructive
	rm := provision.StateCommand{Command: "rm", Args: []string{"terraform_data.two"}}
	result, c = s.command(rm, nil)
	if wantEnd(t, result, provision.AwaitingApproval, ""); s.store(c) != 0 {
		t.Fatal("the state was changed before anybody has approved it")
	}
	rmBundle, err := os.ReadFile(s.bundle)
	if err != nil {
		t.Fatal(err)
	}
	apply := func(c provision.StateCommand, bundle, given []byte) (provision.Report, *child) {
		s.job.Assignment.ApprovedPlan, s.job.Approved = planbundle.Digest(bundle), int64(len(bundle))
		defer func() { s.job.Assignment.ApprovedPlan, s.job.Approved = "", 0 }()
		return s.command(c, append(slices.Clone(bundle), given...))
	}
	result, c = apply(rm, rmBundle, nil)
	if wantEnd(t, result, provision.Success, ""); s.store(c) == 0 || addressesOf(c) != "terraform_data.one" {
		t.Fatalf("after the approved rm the state records %q, want one", addressesOf(c))
	}
	result, c = apply(rm, rmBundle, nil)
	if wantEnd(t, result, provision.Failed, provision.CodePlanStale); s.store(c) != 0 {
		t.Error("what was approved was done twice")
	}

	back := provision.StateCommand{Command: "rollback", Version: 1}
	result, _ = s.command(back, before)
	wantEnd(t, result, provision.AwaitingApproval, "")
	bundle, err := os.ReadFile(s.bundle)
	if err != nil {
		t.Fatal(err)
	}
	result, c = apply(back, bundle, []byte(strings.Replace(string(before), "terraform_data", "other_data", 1)))
	if wantEnd(t, result, provision.Failed, provision.CodePlanStale); s.store(c) != 0 {
		t.Error("another content than the approved one was stored")
	}
	result, c = apply(back, bundle, before)
	if wantEnd(t, result, provision.Success, ""); s.store(c) == 0 || addressesOf(c) != "terraform_data.one terraform_data.two" {
		t.Errorf("after the approved rollback the state records %q, want both", addressesOf(c))
	}
}

func TestUnlock(t *testing.T) {
	t.Parallel()
	states := newStateServer(t)
	s := newSite(t)
	s.template(map[string]string{"main.tf": `
terraform {
  backend "http" {}
}
resource "terraform_data" "one" { input = "1" }`}, nil)
	s.useState(states)
	states.holdLock("the-lock")
	result, _ := s.run()
	wantEnd(t, result, provision.Failed, provision.CodeStateLocked)

	s.job.Assignment.Operation = provision.OperationUnlock
	s.amend(map[string]any{"lock_id": "the-lock"})
	result, c := s.run()
	wantEnd(t, result, provision.Success, "")
	if !strings.Contains(c.text(), "the-lock on the state is released") {
		t.Errorf("log = %q, want it to say which lock is gone", c.text())
	}
	s.job.Assignment.Operation = provision.OperationApply
	s.amend(map[string]any{"lock_id": nil})
	result, _ = s.run()
	wantEnd(t, result, provision.Success, "")
}
