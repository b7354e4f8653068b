package executor_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

const manualTemplate = `
title = "Colocated server"
provisioner "manual" {
  instructions = "INSTRUCTIONS.md"
  expires      = "48h"
  machine {
    for_each = var.names
    name     = "m-${each.key}"
    cores    = 2
    memory   = var.memory
  }
  output "rack" { description = "Where it stands" }
  output "units" { type = number }
  output "ilo_password" { sensitive = true }
}
`

const manualInstructions = "# Mount ${length(var.names)} servers\n\nLabel it `${var.cloud}`.\n"

// hands is a site whose template a person carries out.
func newHands(t *testing.T) *cloud {
	t.Helper()
	s := newSite(t)
	c := &cloud{site: s, m: s.manage(), dir: "shelf"}
	s.job.Settings.Policy.PlainSensitive = true
	c.repo, _ = s.git.Repo("machines", gittest.Text(map[string]string{
		"variables.tf": scriptVariables, "tendril.hcl": manualTemplate, "INSTRUCTIONS.md": manualInstructions,
	}), "v1")
	return c
}

// asks runs an operation, which is to end by asking a person, and returns what is asked.
func (c *cloud) asks(operation provision.Operation, memory int, names ...string) *provision.InputRequest {
	c.t.Helper()
	c.job.Assignment.Input, c.job.Assignment.ApprovedPlan, c.job.SealedInput = nil, "", nil
	got, run := c.apply(operation, memory, names...)
	wantEnd(c.t, got, provision.AwaitingInput, "")
	content, err := os.ReadFile(c.bundle)
	if err != nil {
		c.t.Fatal(err)
	}
	if got.Detail.PlanDigest != planbundle.Digest(content) || got.Detail.Input == nil || slices.Contains(run.stages(), provision.StageApply) {
		c.t.Fatalf("the run ended with %+v after stages %v\n%s", got.Detail, run.stages(), run.text())
	}
	c.job.Assignment.ApprovedPlan = got.Detail.PlanDigest
	return got.Detail.Input
}

// answers runs once more, with what a person has said.
func (c *cloud) answers(input provision.Input, sealed map[string]string) (provision.Report, *child) {
	c.t.Helper()
	c.job.Assignment.Input, c.job.SealedInput = &input, map[string]json.RawMessage{}
	for name, value := range sealed {
		c.job.SealedInput[name] = json.RawMessage(value)
	}
	c.job.Assignment.ClaimID = uuid.New()
	got, run := c.run()
	c.store(run)
	return got, run
}

// reported is all that a run has told, as the database gets it.
func reported(t *testing.T, c *child) string {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	text, err := json.Marshal(c.reports)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var shelf = map[string]json.RawMessage{"rack": json.RawMessage(`"B12"`), "units": json.RawMessage(`2`)}

// A life of machines that a person makes: asked for, made, left alone, changed, destroyed.
func TestMachinesMadeByHand(t *testing.T) {
	t.Parallel()
	c := newHands(t)
	asked := c.asks(provision.OperationApply, 2048, "a", "b")
	if asked.Instructions != "# Mount 2 servers\n\nLabel it `shelf`.\n" || asked.ExpiresSeconds != 48*3600 || len(asked.Outputs) != 3 || !asked.Outputs[2].Sensitive {
		t.Errorf("asked = %+v", asked)
	}
	if len(asked.Machines) != 2 || asked.Machines[0].Name != "m-a" || asked.Machines[0].Action != "create" || asked.Machines[0].Memory != 2048 {
		t.Errorf("the machines asked for are %+v", asked.Machines)
	}
	if n := len(c.recorded().Machines); n != 0 {
		t.Errorf("%d machines are recorded before anybody has said so", n)
	}
	got, run := c.answers(provision.Input{Done: true, Outputs: shelf, Machines: map[string]provision.InputFacts{
		"m-a": {Address: "192.0.2.7", SSHPort: 2222}, "m-b": {ExternalID: "asset-9"},
	}}, map[string]string{"output.ilo_password": `"correct-horse-battery"`, "machine.m-a": `{"root_password": "tr0ub4dor-and-3"}`})
	wantEnd(t, got, provision.Success, "")
	if m := run.machines(); len(m) != 2 || m[0].IPAddresses[0] != "192.0.2.7" || m[0].SSHPort != 2222 || m[1].ExternalID != "asset-9" || !slices.Contains(m[0].Actions, provision.MachineReveals) {
		t.Errorf("the machines told of are %+v", m)
	}
	outputs := run.outputs()
	if rack, secret := outputs["rack"], outputs["ilo_password"]; string(rack.Value) != `"B12"` || string(rack.Type) != `"string"` || !secret.Sensitive || secret.Value != nil {
		t.Errorf("outputs = %+v", outputs)
	}
	state := c.recorded()
	if a := state.Named("m-a"); a == nil || a.Credentials["root_password"] != "tr0ub4dor-and-3" || a.ExternalID != "192.0.2.7" || a.InDoubt() {
		t.Errorf("recorded = %+v", a)
	}
	if string(state.Outputs["ilo_password"].Value) != `"correct-horse-battery"` {
		t.Error("the sensitive output is not in the state")
	}
	for _, secret := range []string{"correct-horse-battery", "tr0ub4dor-and-3"} {
		if strings.Contains(run.text(), secret) || strings.Contains(reported(t, run), secret) {
			t.Errorf("%s left the run", secret)
		}
	}

	// Nothing is asked for where nothing has changed.
	c.job.Assignment.Input, c.job.Assignment.ApprovedPlan = nil, ""
	got, run = c.apply(provision.OperationApply, 2048, "a", "b")
	wantEnd(t, got, provision.Success, "")
	if len(run.outputs()) != 3 || strings.Contains(run.text(), "correct-horse-battery") {
		t.Errorf("outputs after nothing had changed: %+v", run.outputs())
	}

	asked = c.asks(provision.OperationApply, 4096, "b")
	var actions []string
	for _, m := range asked.Machines {
		actions = append(actions, m.Action+" "+m.Name)
	}
	if want := []string{"change m-b", "destroy m-a"}; !slices.Equal(actions, want) {
		t.Errorf("asked for %q, want %q", actions, want)
	}
	got, _ = c.answers(provision.Input{Done: true, Outputs: shelf, Machines: map[string]provision.InputFacts{"m-b": {ExternalID: "asset-9"}}},
		map[string]string{"output.ilo_password": `"correct-horse-battery"`})
	wantEnd(t, got, provision.Success, "")
	if state := c.recorded(); len(state.Machines) != 1 || state.Named("m-b").Wanted.Memory != 4096 {
		t.Errorf("recorded = %+v", state.Machines)
	}

	if asked = c.asks(provision.OperationDestroy, 4096, "b"); !asked.Destroys || len(asked.Outputs) > 0 || len(asked.Machines) != 1 {
		t.Errorf("asked = %+v", asked)
	}
	got, _ = c.answers(provision.Input{Done: true}, nil)
	wantEnd(t, got, provision.Success, "")
	if state := c.recorded(); len(state.Machines)+len(state.Outputs) != 0 || state.Work != "" {
		t.Errorf("recorded after all was destroyed: %+v", state)
	}
}

// What could not be done is a failure with the person's reason, and what exists all the
// same is not forgotten.
func TestWorkThatCouldNotBeDone(t *testing.T) {
	t.Parallel()
	c := newHands(t)
	c.asks(provision.OperationApply, 2048, "a", "b")
	got, run := c.answers(provision.Input{Reason: "no free rack", Machines: map[string]provision.InputFacts{"m-a": {ExternalID: "asset-1"}}}, nil)
	wantEnd(t, got, provision.Failed, provision.CodeManualFailed)
	if !strings.Contains(got.Detail.ErrorMessage, "No free rack.") {
		t.Errorf("message = %q", got.Detail.ErrorMessage)
	}
	if m := c.recorded().Named("m-a"); m == nil || m.ExternalID != "asset-1" || m.Status != "failed" {
		t.Errorf("recorded = %+v\n%s", m, run.text())
	}
	// A machine that exists is not touched by what could not be done.
	c.asks(provision.OperationApply, 2048, "a", "b")
	got, _ = c.answers(provision.Input{Done: true, Outputs: shelf, Machines: map[string]provision.InputFacts{"m-a": {ExternalID: "asset-1"}, "m-b": {ExternalID: "asset-2"}}},
		map[string]string{"output.ilo_password": `"correct-horse-battery"`})
	wantEnd(t, got, provision.Success, "")
	c.asks(provision.OperationApply, 4096, "a", "b")
	got, _ = c.answers(provision.Input{Reason: "no memory left", Machines: map[string]provision.InputFacts{"m-a": {ExternalID: "asset-1"}}}, nil)
	wantEnd(t, got, provision.Failed, provision.CodeManualFailed)
	if m := c.recorded().Named("m-a"); m == nil || m.Status != "running" || m.Wanted.Memory != 2048 {
		t.Errorf("recorded = %+v, want it as it was", m)
	}
	// An answer that can't be recorded is told before anything is.
	c.asks(provision.OperationApply, 4096, "a", "b")
	got, run = c.answers(provision.Input{Done: true, Outputs: shelf, Machines: map[string]provision.InputFacts{"m-a": {Address: "192.0.2.1"}, "m-b": {Address: "192.0.2.2"}}},
		map[string]string{"output.ilo_password": `"correct-horse-battery"`, "machine.m-b": `"no-object-of-texts"`})
	wantEnd(t, got, provision.Failed, provision.CodeSealedInvalid)
	if slices.Contains(run.stages(), provision.StageApply) {
		t.Errorf("stages = %v, want none of the apply", run.stages())
	}
}

// What was made in part is asked for again.
func TestWorkThatWasDoneInPart(t *testing.T) {
	t.Parallel()
	c := newHands(t)
	c.asks(provision.OperationApply, 2048, "a", "b")
	got, _ := c.answers(provision.Input{Reason: "no free rack", Machines: map[string]provision.InputFacts{"m-a": {ExternalID: "asset-1"}}}, nil)
	wantEnd(t, got, provision.Failed, provision.CodeManualFailed)
	if asked := c.asks(provision.OperationApply, 2048, "a", "b"); len(asked.Machines) != 2 || asked.Machines[0].Action != "replace" || asked.Machines[0].Known.ExternalID != "asset-1" {
		t.Errorf("the next run asks for %+v", asked.Machines)
	}
}

// A plan that a person must approve first is asked for once it is, under the same digest.
func TestApprovedPlanIsAskedFor(t *testing.T) {
	t.Parallel()
	c := newHands(t)
	c.job.Assignment.Approval = provision.ApprovalAlways
	c.ask(c.repo.URL, "v1", "", map[string]any{"cloud": c.dir, "names": []string{"a"}, "memory": 2048})
	digest, _ := c.awaits()
	c.job.Assignment.ApprovedPlan = digest
	got, _ := c.run()
	wantEnd(t, got, provision.AwaitingInput, "")
	if got.Detail.PlanDigest != "" {
		t.Errorf("the run names the plan %s, want none but the approved one", got.Detail.PlanDigest)
	}
	got, _ = c.answers(provision.Input{Done: true, Outputs: shelf, Machines: map[string]provision.InputFacts{"m-a": {Address: "2001:db8::7"}}},
		map[string]string{"output.ilo_password": `"correct-horse-battery"`})
	wantEnd(t, got, provision.Success, "")
	got, _ = c.answers(*c.job.Assignment.Input, nil)
	wantEnd(t, got, provision.Failed, provision.CodePlanStale)
}
