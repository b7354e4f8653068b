package executor_test

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// encrypted has OpenTofu encrypt its state and its plans.
const encrypted = `
terraform {
  encryption {
    key_provider "pbkdf2" "key" {
      passphrase = "a passphrase of some length"
      iterations = 200000 # the fewest that it takes
      hash_function = "sha256"
    }
    method "aes_gcm" "method" {
      keys = key_provider.pbkdf2.key
    }
    state {
      method   = method.aes_gcm.method
      enforced = true
    }
    plan {
      method   = method.aes_gcm.method
      enforced = true
    }
  }
}
`

// What OpenTofu encrypts nobody else can read, and a workspace lives with it:
// apply, a change that fails half-way, a look for drift, destroy.
func TestEncryptedState(t *testing.T) {
	t.Parallel()
	s := newSiteOf(t, "tofu")
	const resource = encrypted + `
variable "n" { type = number }
resource "terraform_data" "a" { input = "needle-${var.n}" }
resource "terraform_data" "b" {
  triggers_replace = var.n
  provisioner "local-exec" { command = "test ${var.n} != 3" }
}
output "n" { value = terraform_data.a.output }
`
	repo := s.template(map[string]string{"main.tf": resource}, map[string]any{"n": 1})
	do := func(operation provision.Operation, n int, status provision.Status, code provision.Code) *child {
		t.Helper()
		s.ask(repo.URL, "v1", "", map[string]any{"n": n})
		s.job.Assignment.Operation = operation
		got, c := s.run()
		wantEnd(t, got, status, code)
		s.wantNothingLeft()
		return c
	}
	c := do(provision.OperationApply, 1, provision.Success, "")
	if got := string(c.outputs()["n"].Value); got != `"needle-1"` {
		t.Errorf("output n = %s, want needle-1", got)
	}
	if state := string(s.stateFile()); !strings.Contains(state, "encrypted_data") || strings.Contains(state, "needle") {
		t.Errorf("state = %s, want it encrypted", state)
	}
	c = do(provision.OperationApply, 3, provision.Failed, provision.CodeApplyFailed)
	if plan := planOf(c); plan == nil || plan.Change != 1 || plan.Replace != 1 {
		t.Errorf("plan of a change = %+v, want 1 to change and 1 to replace", plan)
	}
	do(provision.OperationRefresh, 3, provision.Success, "")
	c = do(provision.OperationDestroy, 3, provision.Success, "")
	if plan := planOf(c); plan == nil || plan.Destroy != 2 {
		t.Errorf("plan of the destroy = %+v, want 2 to destroy", plan)
	}
}
