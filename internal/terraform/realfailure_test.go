package terraform

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

func TestHeldStateLock(t *testing.T) { bothEngines(t, testHeldStateLock) }

func testHeldStateLock(t *testing.T, kind string) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "go-on")
	template := fmt.Sprintf(`resource "terraform_data" "a" {
  provisioner "local-exec" { command = "echo holding; while [ ! -e %s ]; do sleep 0.01; done" }
}`, gate)
	var held outputtest.Buffer
	holder := newReal(t, kind, template, Options{Stdout: &held})
	planned(t, holder, PlanOptions{})
	_, wait := applyPlan(t, holder)
	patience.Await(t, "the lock is held", func() bool { return strings.Contains(held.String(), "holding") })

	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	other := realIn(t, kind, Options{Dir: holder.dir})
	_, planErr := other.Plan(t.Context(), PlanOptions{Out: "other.tfplan"})
	_, applyErr := other.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"})
	for command, err := range map[string]error{"plan": planErr, "apply": applyErr} {
		failure := wantCode(t, err, provision.CodeStateLocked)
		wantContains(t, command+"'s message", failure.Message, "@"+host, " UTC", "for apply", "terraform.tfstate", kind+" force-unlock ")
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := wait(); err != nil {
		t.Error(err)
	}
}

func TestFailedProvisioner(t *testing.T) { bothEngines(t, testFailedProvisioner) }

func testFailedProvisioner(t *testing.T, kind string) {
	t.Parallel()
	var stdout, stderr outputtest.Buffer
	r := newReal(t, kind, `resource "terraform_data" "a" {
  provisioner "local-exec" { command = "echo boom; exit 3" }
}
resource "terraform_data" "b" {
  provisioner "local-exec" { command = "exit 4" }
}`, Options{Stdout: &stdout, Stderr: &stderr})
	planned(t, r, PlanOptions{})
	var failed []string
	applied, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan", On: func(e Event) {
		if e.Resource != nil && e.Resource.Kind == "resource_failed" {
			failed = append(failed, e.Resource.Address)
		}
	}})
	failure := wantCode(t, err, provision.CodeApplyFailed)
	wantContains(t, "message", failure.Message, kind+" apply failed for terraform_data.", " on main.tf line ",
		"local-exec provisioner error: Error running command", "(and 1 more error, see the log)")
	if len(failed) != 2 || applied.Outputs != nil {
		t.Errorf("failed = %v, outputs = %v, want both resources and no outputs", failed, applied.Outputs)
	}
	wantContains(t, "stderr", stderr.String(), "\nError: local-exec provisioner error\n\n  with terraform_data.a,\n  on main.tf line 2, in resource \"terraform_data\" \"a\":\n   2:   provisioner \"local-exec\"",
		"Error running command 'echo boom; exit 3': exit status 3. Output: boom\n")
	wantContains(t, "stdout", stdout.String(), "terraform_data.a (local-exec): boom\n")
	if strings.Contains(stdout.String(), "provisioner error") {
		t.Error("an error went to stdout, want stderr")
	}
}

func TestErrorsOfInitAndPlan(t *testing.T) { bothEngines(t, testErrorsOfInitAndPlan) }

func testErrorsOfInitAndPlan(t *testing.T, kind string) {
	t.Parallel()
	tests := []struct {
		name, template string
		code           provision.Code
		want           []string
	}{
		{"unclosed block", "resource \"terraform_data\" \"a\" {\n", provision.CodeInitFailed,
			[]string{"terraform init failed on main.tf line 1: Unclosed configuration block: There is no closing brace"}},
		{"unknown backend", `terraform { 
  backend "nosuch" {}
}`, provision.CodeInitFailed,
			[]string{"terraform init failed on main.tf line 2: Unsupported backend type: There is no backend type named \"nosuch\"."}},
		{"incomplete backend", `terraform {
  backend "http" {}
}`, provision.CodeInitFailed, []string{"address"}},
		{"needs a newer engine", `terraform { required_version = ">= 99" }` + "\n" + ofOpenTofu(kind, "language {\n  compatible_with {\n    opentofu = \">= 99\"\n  }\n}\n"),
			provision.CodeInitFailed, []string{map[string]string{Terraform: "Unsupported Terraform Core version", OpenTofu: "Incompatible module"}[kind]}},
		{"unknown argument", `resource "terraform_data" "a" { inpu = 1 }`, provision.CodePlanFailed,
			[]string{"terraform plan failed on main.tf line 1: Unsupported argument: An argument named \"inpu\" is not expected here. Did you mean \"input\"?"}},
		{"two errors", "output \"a\" { value = local.x }\noutput \"b\" { value = local.y }\n", provision.CodePlanFailed,
			[]string{"Reference to undeclared local value", "(and 1 more error, see the log)"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var stderr outputtest.Buffer
			r := newReal(t, kind, test.template, Options{Stderr: &stderr})
			err := r.Init(t.Context(), InitOptions{})
			if err == nil {
				_, err = r.Plan(t.Context(), PlanOptions{Out: "p"})
			}
			message := strings.ReplaceAll(wantCode(t, err, test.code).Message, kind+" ", "terraform ")
			wantContains(t, "message", message, test.want...)
			wantContains(t, "stderr", stderr.String(), "Error: ")
		})
	}
}

func TestStaleAndMissingPlans(t *testing.T) { bothEngines(t, testStaleAndMissingPlans) }

func testStaleAndMissingPlans(t *testing.T, kind string) {
	t.Parallel()
	r := newReal(t, kind, `resource "terraform_data" "a" {}`, Options{})
	planned(t, r, PlanOptions{})
	if _, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"}); err != nil {
		t.Fatal(err)
	}
	_, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"})
	wantContains(t, "message", wantCode(t, err, provision.CodePlanStale).Message, "the state has moved on")
	_, err = r.ShowPlan(t.Context(), "nowhere")
	wantContains(t, "message", wantCode(t, err, provision.CodePlanFailed).Message, kind+" show failed")
}
