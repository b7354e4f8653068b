package terraform

import (
	"errors"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

var errExit = errors.New("exit status 1")

func TestFailureFromStderr(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, stderr string
		code         provision.Code
		want         string
	}{
		{"framed", "╷\n│ Error: Bad thing\n│ \n│   with a.b,\n│   on x.tf line 9, in resource \"a\" \"b\":\n│    9: y = 1\n│     ├────\n│     │ y is 1\n│ \n│ Do it better.\n╵\n",
			provision.CodePlanFailed, "terraform plan failed for a.b on x.tf line 9: Bad thing: Do it better."},
		{"after a preface", "Error: Terraform encountered problems during initialisation, including problems\nwith the configuration.\n\nError: Unclosed block\n\n  on x.tf line 1:\n   1: {\n\nClose it.\n",
			provision.CodePlanFailed, "terraform plan failed on x.tf line 1: Unclosed block: Close it."},
		{"silent", "", provision.CodePlanFailed, "terraform plan failed (exit status 1): it gave no reason"},
		{"no error block", "something\nelse\n", provision.CodePlanFailed, "terraform plan failed (exit status 1): something\nelse"},
		{"lock that cannot be had", "Error: Error acquiring the state lock\n\nError message: AccessDenied\n",
			provision.CodePlanFailed, "terraform plan failed: Error acquiring the state lock: Error message: AccessDenied"},
		{"lock text in another error", "Error: local-exec provisioner error\n\nLock Info:\n  ID: 1\n",
			provision.CodePlanFailed, "terraform plan failed: local-exec provisioner error: Lock Info:\n  ID: 1"},
		{"coloured", "\x1b[31m╷\x1b[0m\n\x1b[31m│\x1b[0m \x1b[1mError: \x1b[0mBad thing\n\x1b[31m│\x1b[0m\n\x1b[31m│\x1b[0m Do it better.\n",
			provision.CodePlanFailed, "terraform plan failed: Bad thing: Do it better."},
		{"lock of the http backend", "Error: Error acquiring the state lock\n\nError message: HTTP remote state already locked: ID=theirs\nLock Info:\n  ID:        ours\n  Who:       us\n",
			provision.CodeStateLocked, "terraform plan could not begin: the state is locked by somebody unknown, lock id theirs. " +
				"If that run is still going, wait for it and try again. If it is dead for certain, release the lock with `terraform force-unlock theirs` and try again."},
		{"lock with little said", "Error: Error acquiring the state lock\n\nLock Info:\n  ID:        7\n  Path:      \n  Created:   yesterday\n",
			provision.CodeStateLocked, "terraform plan could not begin: the state is locked by somebody unknown since yesterday, lock id 7. " +
				"If that run is still going, wait for it and try again. If it is dead for certain, release the lock with `terraform force-unlock 7` and try again."},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var d diagnostics
			for line := range strings.Lines(test.stderr) {
				d.addStderr([]byte(line))
			}
			got := d.failure(Terraform, "plan", provision.CodePlanFailed, errExit)
			if got.Code != test.code || got.Message != test.want || !errors.Is(got, errExit) {
				t.Errorf("failure(%q) = %s %q, want %s %q", test.stderr, got.Code, got.Message, test.code, test.want)
			}
		})
	}
}

func TestDiagnosticsAreBounded(t *testing.T) {
	t.Parallel()
	var d diagnostics
	long := strings.Repeat("long", 50_000)
	for range 1000 {
		d.addStderr([]byte("Error: " + long[:500] + "\n"))
		d.add(diagnostic{Severity: "error", Summary: long, Detail: long})
	}
	if size := cap(d.block) + cap(d.tail) + len(d.first.Summary) + len(d.first.Detail); size > 64<<10 {
		t.Errorf("%d bytes are kept, want at most %d", size, 64<<10)
	}
	if got := d.failure(Terraform, "apply", provision.CodeApplyFailed, errExit).Message; len(got) > maxMessage+100 {
		t.Errorf("message has %d bytes, want at most %d", len(got), maxMessage+100)
	}
}
