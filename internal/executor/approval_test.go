package executor_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/providertest"
)

// httpTemplate keeps its state with a server, so that any agent can apply.
func httpTemplate(body string) map[string]string {
	return map[string]string{"main.tf": "terraform {\n  backend \"http\" {}\n}\n" + body}
}

// newSharedSite is a site whose state is with a server.
func newSharedSite(t *testing.T) (*site, *stateServer) {
	t.Helper()
	s, states := newSite(t), newStateServer(t)
	s.useState(states)
	return s, states
}

func (s *site) useState(states *stateServer) {
	s.job.Settings.State.Config = map[string]map[string]string{"http": {
		"address": states.url + "/{workspace_id}", "lock_address": states.url + "/{workspace_id}", "unlock_address": states.url + "/{workspace_id}",
	}}
}

// elsewhere is the site of another agent of the cluster: it has the assignment,
// the state's server and the bundle, and nothing else.
func (s *site) elsewhere() *site {
	s.t.Helper()
	other := newSite(s.t)
	other.job.Assignment = s.job.Assignment
	other.job.Assignment.ClaimID = uuid.New()
	other.job.Settings = s.job.Settings
	other.env, other.bundle = s.env, s.bundle
	return other
}

// awaits runs the job, which is to end with a plan that awaits approval, and
// returns its digest.
func (s *site) awaits() (digest string, c *child) {
	s.t.Helper()
	got, c := s.run()
	wantEnd(s.t, got, provision.AwaitingApproval, "")
	content, err := os.ReadFile(s.bundle)
	if err != nil {
		s.t.Fatal(err)
	}
	if digest = planbundle.Digest(content); got.Detail.PlanDigest != digest {
		s.t.Errorf("plan_digest = %q, want that of the bundle, %s", got.Detail.PlanDigest, digest)
	}
	if slices.Contains(c.stages(), provision.StageApply) {
		s.t.Errorf("stages = %v, want none of the apply", c.stages())
	}
	s.wantNothingLeft()
	return digest, c
}

func (s *site) changeBundle(change func(*planbundle.Bundle)) {
	s.t.Helper()
	content, err := os.ReadFile(s.bundle)
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := planbundle.Decode(content)
	if err != nil {
		s.t.Fatal(err)
	}
	change(&b)
	if content, err = b.Encode(); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(s.bundle, content, 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.job.Assignment.ApprovedPlan = planbundle.Digest(content)
}

// What was approved is applied, by an agent that has nothing of the one that
// planned; an ephemeral variable, which no plan holds, is given again.
func TestApprovedPlanIsAppliedElsewhere(t *testing.T) {
	bothEngines(t, testApprovedPlanIsAppliedElsewhere)
}

func testApprovedPlanIsAppliedElsewhere(t *testing.T, kind string) {
	t.Parallel()
	s, states := newSharedSite(t)
	s.job.Settings.Engine.Kind = kind
	seen := filepath.Join(t.TempDir(), "seen")
	s.job.Assignment.Approval = provision.ApprovalAlways
	files := httpTemplate(`
variable "token" {
  type      = string
  ephemeral = true
}
resource "terraform_data" "a" {
  input = plantimestamp()
  provisioner "local-exec" {
    command     = "printf %s \"$TOKEN\" > $SEEN"
    environment = { TOKEN = var.token, SEEN = var.seen }
  }
}
output "when" { value = terraform_data.a.input }
`)
	// OpenTofu's files are the plan's, too, where an agent prefers Terraform.
	files["seen."+map[string]string{"terraform": "tf", "tofu": "tofu"}[kind]] = `variable "seen" {}`
	s.template(files, map[string]any{"token": "eleven-char", "seen": seen})
	digest, c := s.awaits()
	if states.state != nil {
		t.Errorf("state before the approval = %s, want none", states.state)
	}
	if plan := planOf(c); plan == nil || plan.Add != 1 {
		t.Errorf("plan = %+v, want it told to who is to approve it", plan)
	}
	if !strings.Contains(c.text(), digest) {
		t.Error("the log does not say which digest is to be approved")
	}

	other := s.elsewhere()
	other.job.Assignment.ApprovedPlan = digest
	other.job.Settings.Engine.Kind = "terraform" // the plan says which it needs
	got, c := other.run()
	wantEnd(t, got, provision.Success, "")
	if slices.Contains(c.stages(), provision.StagePlan) || strings.Contains(c.text(), "Terraform will perform") {
		t.Errorf("stages = %v, want no second plan", c.stages())
	}
	when := c.outputs()["when"].Value
	if !bytes.Contains(states.state, when) || len(when) == 0 {
		t.Errorf("output = %s, want what the state has: %s", when, states.state)
	}
	if token, err := os.ReadFile(seen); err != nil || string(token) != "eleven-char" {
		t.Errorf("the provisioner saw the ephemeral variable as %q, %v, want it given again", token, err)
	}
	other.wantNothingLeft()
}

// Whose plan awaits approval, and whose does not.
func TestApprovalRules(t *testing.T) { bothEngines(t, testApprovalRules) }

func testApprovalRules(t *testing.T, kind string) {
	t.Parallel()
	template := map[string]string{"main.tf": `
variable "input" {}
resource "terraform_data" "a" {
  input            = var.input
  triggers_replace = var.input == "replaced"
}
`}
	first := newSiteOf(t, kind)
	first.template(template, map[string]any{"input": "1"})
	first.do(provision.OperationApply)
	state := first.stateFile()
	never, destructive, always := provision.ApprovalNever, provision.ApprovalDestructive, provision.ApprovalAlways
	for name, tc := range map[string]struct {
		said, own provision.Approval
		operation provision.Operation
		input     string // what is there was made with "1"
		want      provision.Status
	}{
		"never":                         {never, "", provision.OperationApply, "2", provision.Success},
		"said nothing":                  {"", "", provision.OperationApply, "2", provision.Success},
		"always":                        {always, never, provision.OperationApply, "2", provision.AwaitingApproval},
		"the agent's own":               {never, always, provision.OperationApply, "2", provision.AwaitingApproval},
		"a rule that is not known":      {"fridays", "", provision.OperationApply, "2", provision.AwaitingApproval},
		"always, nothing to do":         {always, "", provision.OperationApply, "1", provision.Success},
		"destructive, an update":        {destructive, "", provision.OperationApply, "2", provision.Success},
		"destructive, a replacement":    {destructive, "", provision.OperationApply, "replaced", provision.AwaitingApproval},
		"destructive, own, replacement": {never, destructive, provision.OperationApply, "replaced", provision.AwaitingApproval},
		"destructive, a destroy":        {destructive, "", provision.OperationDestroy, "1", provision.AwaitingApproval},
		"always, a plan only":           {always, "", provision.OperationPlan, "2", provision.Success},
		"always, a refresh":             {always, "", provision.OperationRefresh, "2", provision.Success},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSiteOf(t, kind)
			s.template(template, map[string]any{"input": tc.input})
			if err := os.WriteFile(filepath.Join(s.job.Dirs.State, "terraform.tfstate"), state, 0o600); err != nil {
				t.Fatal(err)
			}
			s.job.Assignment.Approval, s.job.Settings.Policy.Approval, s.job.Assignment.Operation = tc.said, tc.own, tc.operation
			got, _ := s.run()
			wantEnd(t, got, tc.want, "")
		})
	}
}

// The rules may become stricter while a run plans: the database says so when it
// is asked for the apply.
func TestApprovalNeededAfterAll(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": two}, nil)
	s.refuse = func(_ *child, r provision.Report) *provision.Failure {
		if r.Detail.Stage == provision.StageApply {
			return provision.Fail(provision.CodeApprovalNeeded, "this plan must be approved", nil)
		}
		return nil
	}
	got, _ := s.run()
	wantEnd(t, got, provision.AwaitingApproval, "")
	if s.stateFile() != nil {
		t.Error("something was applied without approval")
	}
}

// applyAnother has another run change what is there.
func applyAnother(t *testing.T, s *site) {
	t.Helper()
	other := s.elsewhere()
	other.job.Assignment.Approval, other.job.Assignment.ApprovedPlan = "", ""
	other.amend(map[string]any{"terraform_vars": map[string]any{"input": "3"}})
	got, _ := other.run()
	wantEnd(t, got, provision.Success, "")
}

// refused is what becomes of an approved plan after a change.
type refused struct {
	change func(t *testing.T, s *site, states *stateServer)
	code   provision.Code
	want   string
}

// An approved plan that no longer fits what it is for.
func TestApprovedPlanIsRefused(t *testing.T) {
	t.Parallel()
	wantRefused(t, "terraform", map[string]refused{
		"the state has moved on": {func(t *testing.T, s *site, _ *stateServer) {
			applyAnother(t, s)
		}, provision.CodePlanStale, "the state has moved on"},
		"another state": {func(_ *testing.T, _ *site, states *stateServer) {
			states.state = bytes.Replace(states.state, []byte(`"lineage": "`), []byte(`"lineage": "x`), 1)
		}, provision.CodePlanStale, "replaced by another one"},
		"the snapshot was changed": {func(_ *testing.T, s *site, _ *stateServer) {
			s.amend(map[string]any{"terraform_vars": map[string]any{"input": "3"}})
		}, provision.CodePlanInvalid, "changed since"},
		"another provision's": {func(_ *testing.T, s *site, _ *stateServer) {
			s.job.Assignment.ProvisionID = uuid.New()
		}, provision.CodePlanInvalid, "another provision"},
		"another commit's": {func(_ *testing.T, s *site, _ *stateServer) {
			s.changeBundle(func(b *planbundle.Bundle) { b.Commit = strings.Repeat("b", 40) })
		}, provision.CodePlanInvalid, strings.Repeat("b", 40)},
		"another engine's": {func(_ *testing.T, s *site, _ *stateServer) {
			s.changeBundle(func(b *planbundle.Bundle) { b.EngineVersion = "1.0.99" })
		}, provision.CodeEngineMissing, "1.0.99"},
		"another place for the state": {func(t *testing.T, s *site, _ *stateServer) {
			s.useState(newStateServer(t))
		}, provision.CodePlanInvalid, "is to be in"},
		"not the one that was approved": {func(_ *testing.T, s *site, _ *stateServer) {
			digest := s.job.Assignment.ApprovedPlan
			s.changeBundle(func(b *planbundle.Bundle) { b.Lock = []byte("# another\n") })
			s.job.Assignment.ApprovedPlan = digest
		}, provision.CodePlanInvalid, "another one"},
		"no bundle": {func(t *testing.T, s *site, _ *stateServer) {
			if err := os.WriteFile(s.bundle, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			s.job.Assignment.ApprovedPlan = planbundle.Digest(nil)
		}, provision.CodePlanInvalid, "begins otherwise"},
	})
}

func TestApprovedPlanOfOpenTofuIsRefused(t *testing.T) {
	t.Parallel()
	wantRefused(t, "tofu", map[string]refused{
		"the state has moved on": {func(t *testing.T, s *site, _ *stateServer) {
			applyAnother(t, s)
		}, provision.CodePlanStale, "the state has moved on"},
	})
}

// wantRefused has one plan approved, and after each of the changes refused.
func wantRefused(t *testing.T, kind string, cases map[string]refused) {
	t.Helper()
	approved, states := newSharedSite(t)
	approved.job.Settings.Engine.Kind = kind
	approved.template(httpTemplate(two), nil)
	approved.do(provision.OperationApply)
	approved.job.Assignment.Approval = provision.ApprovalAlways
	approved.amend(map[string]any{"terraform_vars": map[string]any{"input": "2"}})
	approved.job.Assignment.ApprovedPlan, _ = approved.awaits()
	bundle, state := read(t, approved.bundle), states.stored()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { // one after the other: they change the same state
			s := *approved
			s.t, s.bundle = t, filepath.Join(t.TempDir(), "bundle")
			if err := os.WriteFile(s.bundle, []byte(bundle), 0o600); err != nil {
				t.Fatal(err)
			}
			states.replace(state)
			tc.change(t, &s, states)
			before := string(states.state)
			got, c := s.run()
			wantEnd(t, got, provision.Failed, tc.code)
			if !strings.Contains(got.Detail.ErrorMessage, tc.want) {
				t.Errorf("message = %q, want %q in it", got.Detail.ErrorMessage, tc.want)
			}
			if after := string(states.state); after != before {
				t.Errorf("state = %s\nwant it as it was: %s", after, before)
			}
			if tc.code != provision.CodePlanStale && slices.Contains(c.stages(), provision.StageApply) {
				t.Errorf("stages = %v, want no apply", c.stages())
			}
		})
	}
}

// A template without a lock file takes the newest providers, and a plan can be
// applied with those that made it only: its lock file goes with it, and is not
// taken for the template's afterwards.
func TestApprovedPlanBringsItsLockFile(t *testing.T) {
	bothEngines(t, testApprovedPlanBringsItsLockFile)
}

func testApprovedPlanBringsItsLockFile(t *testing.T, kind string) {
	t.Parallel()
	s, _ := newSharedSite(t)
	s.job.Settings.Engine.Kind = kind
	s.env = providertest.NewMirror(t).Env()
	s.job.Assignment.Approval = provision.ApprovalAlways
	s.template(httpTemplate(withProvider), nil)
	digest, _ := s.awaits()
	other := s.elsewhere()
	other.job.Assignment.ApprovedPlan = digest
	got, c := other.run()
	wantEnd(t, got, provision.Success, "")
	if !strings.Contains(c.text(), "from the dependency lock file") {
		t.Error("init did not use the plan's lock file")
	}
	if _, err := os.Stat(filepath.Join(other.job.Dirs.Work, "initialised")); err == nil {
		t.Error("the next run would begin with what an init made of the plan's lock file, want an init of the template")
	}
}
