package terraform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

const wholeTemplate = `
variable "name" { type = string }
variable "password" {
  type      = string
  sensitive = true
  default   = "hunter2-default"
}
resource "terraform_data" "machine" {
  count = 2
  input = "${var.name}-${count.index}"
  provisioner "local-exec" { command = "echo hello from ${self.input}; echo complaint >&2" }
}
resource "terraform_data" "vault" { input = var.password }
output "machines" { value = terraform_data.machine[*].output }
output "password" {
  value     = var.password
  sensitive = true
}
`

func TestWholeLife(t *testing.T) { bothEngines(t, testWholeLife) }

func testWholeLife(t *testing.T, kind string) {
	t.Parallel()
	var stdout, stderr outputtest.Buffer
	r := newReal(t, kind, wholeTemplate, Options{Stdout: &stdout, Stderr: &stderr})
	vars := filepath.Join(t.TempDir(), "vars.tfvars.json")
	if err := os.WriteFile(vars, []byte(`{"name":"acme"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if err := r.Init(ctx, InitOptions{}); err != nil {
		t.Fatal(err)
	}
	changes, err := r.Plan(ctx, PlanOptions{VarFiles: []string{vars}, Out: "p"})
	if err != nil || !changes {
		t.Fatalf("Plan() = %v, %v, want true, nil", changes, err)
	}
	wantContains(t, "stdout", stdout.String(), "Plan: 3 to add, 0 to change, 0 to destroy.")

	before := stdout.String() + stderr.String()
	plan, err := r.ShowPlan(ctx, "p")
	if err != nil {
		t.Fatal(err)
	}
	if after := stdout.String() + stderr.String(); after != before {
		t.Errorf("ShowPlan printed %q, want nothing", strings.TrimPrefix(after, before))
	}
	if got := fmt.Sprint(SensitiveValues(plan)); got != "[hunter2-default]" {
		t.Errorf("SensitiveValues() = %s, want [hunter2-default]", got)
	}
	summary := Summarise(plan)
	if summary.Add != 3 || len(summary.Resources) != 3 || Steps(summary) != 3 || summary.Resources[0].Action != "create" {
		t.Errorf("Summarise() = %+v, want 3 to add", summary)
	}

	var kinds []string
	last := Event{}
	applied, err := r.Apply(ctx, ApplyOptions{PlanFile: "p", Steps: Steps(summary), On: func(e Event) {
		if e.Resource != nil {
			kinds = append(kinds, e.Resource.Kind)
			last = e
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	r.PrintOutputs(applied)
	if len(kinds) != 10 || kinds[0] != "resource_started" || last.Resource.Kind != "resource_finished" || last.Percent() != 100 {
		t.Errorf("events = %v, last at %d %%, want 6 of resources and 4 of provisioners that end finished at 100 %%", kinds, last.Percent())
	}
	if applied.Add != 3 || applied.Done != 3 || applied.Total != 3 {
		t.Errorf("applied = %+v, want 3 added, 3 of 3 done", applied)
	}
	wantContains(t, "stdout", stdout.String(),
		"terraform_data.machine[0] (local-exec): hello from acme-0\n", "terraform_data.machine[1] (local-exec): complaint\n",
		"terraform_data.vault: Creation complete after", "\nApply complete! Resources: 3 added, 0 changed, 0 destroyed.\n",
		"\nOutputs:\n\nmachines = [\"acme-0\",\"acme-1\"]\npassword = <sensitive>\n")
	if strings.Contains(stdout.String()+stderr.String(), "hunter2") {
		t.Error("the log holds a sensitive value")
	}
	if got := applied.Outputs["password"]; !got.Sensitive || got.Value != nil {
		t.Errorf("output password = %+v, want a marker without a value", got)
	}
	var machines []string
	if err := json.Unmarshal(applied.Outputs["machines"].Value, &machines); err != nil || len(machines) != 2 {
		t.Errorf("output machines = %s, want two", applied.Outputs["machines"].Value)
	}
	resources := Resources(plan, applied)
	if len(resources) != 3 || resources[0].Address != "terraform_data.machine[0]" || resources[0].ExternalID == "" {
		t.Errorf("Resources() = %+v, want 3 with ids", resources)
	}

	// Once more: nothing to do. Then destroy it all.
	refreshed := 0
	changes, err = r.Plan(ctx, PlanOptions{VarFiles: []string{vars}, Out: "p", Refreshing: func(n int) { refreshed = n }})
	if err != nil || changes {
		t.Fatalf("second Plan() = %v, %v, want false, nil", changes, err)
	}
	if refreshed != 3 {
		t.Errorf("the second plan looked at %d resources, want 3", refreshed)
	}
	wantContains(t, "stdout", stdout.String(), "terraform_data.vault: Refreshing state... [id=")
	if _, err = r.Plan(ctx, PlanOptions{VarFiles: []string{vars}, Out: "p", Destroy: true}); err != nil {
		t.Fatal(err)
	}
	if plan, err = r.ShowPlan(ctx, "p"); err != nil {
		t.Fatal(err)
	}
	if summary = Summarise(plan); summary.Destroy != 3 {
		t.Errorf("Summarise() = %+v, want 3 to destroy", summary)
	}
	if applied, err = r.Apply(ctx, ApplyOptions{PlanFile: "p"}); err != nil || applied.Destroy != 3 || applied.Total != 3 {
		t.Errorf("Apply() = %+v, %v, want 3 of 3 destroyed", applied, err)
	}
	if got := Resources(plan, applied); len(got) != 0 {
		t.Errorf("Resources() = %+v, want none", got)
	}
}

func TestReplacement(t *testing.T) { bothEngines(t, testReplacement) }

func testReplacement(t *testing.T, kind string) {
	t.Parallel()
	template := `resource "terraform_data" "a" { triggers_replace = "%s" }`
	r := newReal(t, kind, fmt.Sprintf(template, "one"), Options{})
	planned(t, r, PlanOptions{})
	if _, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "main.tf"), fmt.Appendf(nil, template, "two"), 0o600); err != nil {
		t.Fatal(err)
	}
	summary := planned(t, r, PlanOptions{})
	if summary.Replace != 1 || summary.Add+summary.Destroy != 0 || Steps(summary) != 2 {
		t.Errorf("Summarise() = %+v, want one replacement of two steps", summary)
	}
	plan, err := r.ShowPlan(t.Context(), "tendril.tfplan")
	if err != nil {
		t.Fatal(err)
	}
	applied, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"}) // the engine says how many steps
	if err != nil || applied.Done != 2 || applied.Total != 2 {
		t.Errorf("Apply() = %+v, %v, want 2 of 2 done", applied, err)
	}
	got := Resources(plan, applied)
	if len(got) != 1 || got[0].ExternalID != applied.Changed["terraform_data.a"] || got[0].ExternalID == "" {
		t.Errorf("Resources() = %+v, want terraform_data.a with its new id", got)
	}
}

func TestLinesComeOutAsTheyHappen(t *testing.T) { bothEngines(t, testLinesComeOutAsTheyHappen) }

func testLinesComeOutAsTheyHappen(t *testing.T, kind string) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "go-on")
	template := fmt.Sprintf(`resource "terraform_data" "a" {
  provisioner "local-exec" { command = "echo first; while [ ! -e %s ]; do sleep 0.01; done" }
}`, gate)
	var stdout outputtest.Buffer
	r := newReal(t, kind, template, Options{Stdout: &stdout})
	planned(t, r, PlanOptions{})
	_, wait := applyPlan(t, r)
	patience.Await(t, "the first line is there while the command runs", func() bool {
		return strings.Contains(stdout.String(), "(local-exec): first\n")
	})
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Error(err)
	}
}

// applyPlan applies the plan of planned in the background.
func applyPlan(t *testing.T, r *Runner) (cancel context.CancelCauseFunc, wait func() error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := r.Apply(ctx, ApplyOptions{PlanFile: "tendril.tfplan"})
		done <- err
	}()
	return cancel, func() error { return <-done }
}

func TestCancelOfARealApplyWritesTheState(t *testing.T) {
	bothEngines(t, testCancelOfARealApplyWritesTheState)
}

func testCancelOfARealApplyWritesTheState(t *testing.T, kind string) {
	t.Parallel()
	template := `resource "terraform_data" "done" {}
resource "terraform_data" "slow" {
  depends_on = [terraform_data.done]
  provisioner "local-exec" { command = "echo working; exec sleep 1000" }
}`
	var stdout outputtest.Buffer
	r := newReal(t, kind, template, Options{Stdout: &stdout})
	planned(t, r, PlanOptions{})
	cancel, wait := applyPlan(t, r)
	patience.Await(t, "the command runs", func() bool { return strings.Contains(stdout.String(), "working") })
	cancel(errStop)
	if err := wait(); !errors.Is(err, errStop) {
		t.Errorf("Apply() error = %v, want one that wraps %q", err, errStop)
	}
	state, err := os.ReadFile(filepath.Join(r.dir, "terraform.tfstate"))
	if err != nil || !strings.Contains(string(state), `"name": "done"`) {
		t.Errorf("state = %s, %v, want it to hold terraform_data.done", state, err)
	}
	if left, err := filepath.Glob(filepath.Join(r.dir, ".*.lock.info")); err != nil || left != nil {
		t.Errorf("lock files = %v, %v, want none", left, err)
	}
}

func TestBackendConfigReachesTheBackend(t *testing.T) {
	bothEngines(t, testBackendConfigReachesTheBackend)
}

func testBackendConfigReachesTheBackend(t *testing.T, kind string) {
	t.Parallel()
	r := newReal(t, kind, "terraform {\n  backend \"local\" {}\n}\nresource \"terraform_data\" \"a\" {}\n", Options{})
	path := filepath.Join(t.TempDir(), `odd ${name} "state"`)
	if err := r.Init(t.Context(), InitOptions{BackendConfig: map[string]string{"path": path}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Plan(t.Context(), PlanOptions{Out: "p"}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "p"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("Stat(the configured state) error = %v, want nil", err)
	}
}

func TestOverrideReplacesTheBackend(t *testing.T) { bothEngines(t, testOverrideReplacesTheBackend) }

func testOverrideReplacesTheBackend(t *testing.T, kind string) {
	t.Parallel()
	for _, declared := range []string{`backend "s3" {}`, `cloud {}`, ``} {
		t.Run(declared, func(t *testing.T) {
			t.Parallel()
			r := newReal(t, kind, "terraform {\n"+declared+"\n}\nresource \"terraform_data\" \"a\" {}\n", Options{Stdout: io.Discard})
			state := filepath.Join(t.TempDir(), "of ${policy}.tfstate")
			if err := Override(r.dir, "local", map[string]string{"path": state}); err != nil {
				t.Fatal(err)
			}
			planned(t, r, PlanOptions{})
			if _, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"}); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(state); err != nil {
				t.Errorf("Stat(the policy's state) error = %v, want nil", err)
			}
		})
	}
}

// Who knows Terraform reads the log of a run as it looks in a terminal.
func TestColours(t *testing.T) { bothEngines(t, testColours) }

func testColours(t *testing.T, kind string) {
	t.Parallel()
	var stdout, stderr outputtest.Buffer
	r := newReal(t, kind, `resource "terraform_data" "a" {
  provisioner "local-exec" { command = "exit 3" }
}
`, Options{Stdout: &stdout, Stderr: &stderr})
	planned(t, r, PlanOptions{})
	if _, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"}); err == nil {
		t.Fatal("Apply() = nil, want its provisioner to fail")
	}
	for stream, wanted := range map[*outputtest.Buffer][]string{
		&stdout: {"\x1b[1mInitializing the backend...", "\x1b[32m+\x1b[0m", "\x1b[1m  # terraform_data.a\x1b[0m will be created", "\x1b[1mPlan:\x1b[0m 1 to add", "\x1b[1mterraform_data.a: Creating...\x1b[0m\n"},
		&stderr: {"\x1b[31m╷\x1b[0m\n\x1b[31m│\x1b[0m \x1b[1m\x1b[31mError: \x1b[0m\x1b[1mlocal-exec provisioner error\x1b[0m\n"},
	} {
		for _, part := range wanted {
			if got := stream.String(); !strings.Contains(got, part) {
				t.Errorf("%q is printed, want it to contain %q", got, part)
			}
		}
	}
}
