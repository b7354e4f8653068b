package executor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/providertest"
)

// two are resources of which one is asked for by name.
const two = `
variable "input" { default = "1" }
resource "terraform_data" "a" { input = var.input }
resource "terraform_data" "b" { input = var.input }
output "a" { value = terraform_data.a.output }
`

// do runs an operation that is to succeed.
func (s *site) do(operation provision.Operation) *child {
	s.t.Helper()
	s.job.Assignment.Operation = operation
	got, c := s.run()
	wantEnd(s.t, got, provision.Success, "")
	return c
}

// stateFile is the workspace's local state; nil without one.
func (s *site) stateFile() []byte {
	s.t.Helper()
	content, err := os.ReadFile(filepath.Join(s.job.Dirs.State, "terraform.tfstate"))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	return content
}

func planOf(c *child) *provision.PlanSummary {
	return last(c, func(d provision.Detail) *provision.PlanSummary { return d.Plan })
}

func (c *child) stages() (stages []provision.Stage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		if r.Detail.Stage != "" {
			stages = append(stages, r.Detail.Stage)
		}
	}
	return stages
}

func (c *child) outputs() (outputs map[string]provision.Output) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		if r.Detail.Outputs != nil {
			outputs = r.Detail.Outputs
		}
	}
	return outputs
}

func TestPlanChangesNothing(t *testing.T) { bothEngines(t, testPlanChangesNothing) }

func testPlanChangesNothing(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	s.template(map[string]string{"main.tf": two}, nil)
	c := s.do(provision.OperationPlan)
	if plan := planOf(c); plan == nil || plan.Add != 2 {
		t.Errorf("plan = %+v, want 2 to add", plan)
	}
	if got := c.stages(); slices.Contains(got, provision.StageApply) || slices.Contains(got, provision.StageOutputs) {
		t.Errorf("stages of a plan = %v, want neither apply nor outputs", got)
	}
	if got := c.outputs(); got != nil {
		t.Errorf("outputs of a plan = %v, want them untouched", got)
	}
	if state := s.stateFile(); state != nil {
		t.Errorf("state after a plan = %s, want none", state)
	}
	// What its init made serves the next run, as after an apply.
	if c := s.do(provision.OperationPlan); !strings.Contains(c.text(), "those of the last run") {
		t.Error("the second plan runs init again, want what the first one's made")
	}
}

func TestDestroy(t *testing.T) { bothEngines(t, testDestroy) }

func testDestroy(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	s.template(map[string]string{"main.tf": two}, nil)
	if c := s.do(provision.OperationDestroy); !strings.Contains(c.text(), "there is nothing to destroy") {
		t.Error("a destroy without a state does not say that there is nothing to destroy")
	}
	s.do(provision.OperationApply)
	c := s.do(provision.OperationDestroy)
	if plan := planOf(c); plan == nil || plan.Destroy != 2 || plan.Add+plan.Change+plan.Replace != 0 {
		t.Errorf("plan of the destroy = %+v, want 2 to destroy", plan)
	}
	if state := string(s.stateFile()); strings.Contains(state, "terraform_data") {
		t.Errorf("state after the destroy = %s, want it empty", state)
	}
	c = s.do(provision.OperationDestroy)
	if plan := planOf(c); plan == nil || !plan.Empty() || !strings.Contains(c.text(), "there is nothing to destroy") {
		t.Errorf("plan of a destroy of an empty state = %+v, want an empty one that says so", plan)
	}
}

// A resource that is gone when it is looked at: what is a time in the past has
// expired.
const expired = `
terraform {
  required_providers {
    time = { source = "hashicorp/time" }
  }
}
resource "time_rotating" "gone" {
  rfc3339       = "2020-01-01T00:00:00Z"
  rotation_days = 1
}
resource "terraform_data" "stays" {}
`

// A refresh tells of what has changed outside, and leaves it to a person.
func TestRefreshRecordsDrift(t *testing.T) { bothEngines(t, testRefreshRecordsDrift) }

func testRefreshRecordsDrift(t *testing.T, kind string) {
	t.Parallel()
	s := newSiteOf(t, kind)
	s.env = providertest.NewMirror(t).Env()
	s.template(map[string]string{"main.tf": expired}, nil)
	if found := driftOf(s.do(provision.OperationRefresh)); found == nil || len(found) != 0 {
		t.Errorf("drift of nothing = %#v, want an empty list", found)
	}
	s.do(provision.OperationApply)
	before := s.stateFile()
	c := s.do(provision.OperationRefresh)
	want := []provision.PlannedChange{{Address: "time_rotating.gone", Action: "delete"}}
	if found := driftOf(c); len(found) != 1 || found[0].Address != want[0].Address || found[0].Action != want[0].Action {
		t.Errorf("drift = %+v, want %+v", found, want)
	}
	if !strings.Contains(c.text(), "1 resource has changed outside") {
		t.Error("the log does not say that a resource has changed")
	}
	if got := s.stateFile(); string(got) != string(before) {
		t.Errorf("state after a refresh = %s\nwant it as it was: %s", got, before)
	}
	if got := c.stages(); slices.Contains(got, provision.StageApply) || c.outputs() != nil || planOf(c) != nil {
		t.Errorf("a refresh reported stages %v, outputs %v, plan %v; want no apply and none of those", got, c.outputs(), planOf(c))
	}
}

func driftOf(c *child) (drift []provision.PlannedChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		if r.Detail.Drift != nil {
			drift = r.Detail.Drift
		}
	}
	return drift
}
