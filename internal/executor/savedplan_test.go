package executor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/terraform"
)

// savable is a run that has made a plan.
func savable(t *testing.T) *terraformRun {
	t.Helper()
	dir := t.TempDir()
	run := newTerraformRun(&provisionRun{files: workDir{plan: filepath.Join(dir, "plan")}}, dir)
	if err := os.WriteFile(run.run.files.plan, []byte("a plan"), 0o600); err != nil {
		t.Fatal(err)
	}
	return run
}

func TestSave(t *testing.T) {
	t.Parallel()
	run := savable(t)
	if b, err := run.Save(); err != nil || string(b.Plan) != "a plan" || len(b.Lock) > 0 {
		t.Errorf("Save() = %+v, %v, want the plan and no lock file", b, err)
	}
	if err := os.WriteFile(run.lockFile(), []byte("a lock"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := run.Save(); err != nil || string(b.Plan) != "a plan" || string(b.Lock) != "a lock" {
		t.Errorf("Save() = %+v, %v, want the plan and the lock file", b, err)
	}

	// What a template may have put there.
	if err := os.Truncate(run.run.files.plan, planbundle.MaxContent+1); err != nil {
		t.Fatal(err)
	}
	_, err := run.Save()
	if failure := provision.AsFailure(err); failure.Code != provision.CodePlanFailed || !strings.Contains(failure.Message, "name targets") {
		t.Errorf("Save(a plan too large) = %v, want %s that says what to do", err, provision.CodePlanFailed)
	}
	run = savable(t)
	if err := os.Symlink("/etc/hostname", run.lockFile()); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Save(); !errors.Is(err, terraform.ErrNoStateFile) {
		t.Errorf("Save(a link for the lock file) = %v, want it refused", err)
	}
}

// The lock file of the plan takes the place of whatever the template ships.
func TestUseSavedReplacesTheLockFile(t *testing.T) {
	t.Parallel()
	run := savable(t)
	run.run.approved = &planbundle.Bundle{Lock: []byte("of the plan"), State: run.backend.place}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.WriteFile(outside, []byte("stays"), 0o600), os.Symlink(outside, run.lockFile())); err != nil {
		t.Fatal(err)
	}
	if err := run.useSaved(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(run.lockFile()); err != nil || string(got) != "of the plan" {
		t.Errorf("lock file = %q, %v, want the plan's", got, err)
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != "stays" {
		t.Errorf("what a link leads to = %q, %v, want it left alone", got, err)
	}
}
