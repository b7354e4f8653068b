package executor

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/terraform"
)

// savable is a run that has made a plan.
func savable(t *testing.T) *terraformRun {
	t.Helper()
	dir := t.TempDir()
	run := newTerraformRun(given{task: &task{}, dir: dir, files: workDir{plan: filepath.Join(dir, "plan")}}, &templatefile.File{})
	if err := run.sealBytes([]byte("a plan")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = run.sealedPlan.Close() })
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
	if err := run.sealFrom(io.LimitReader(zeros{}, planbundle.MaxContent+1)); err != nil {
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

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// What was shown stays what it is, for this process as well.
func TestSealedPlanCannotBeChanged(t *testing.T) {
	t.Parallel()
	run := savable(t)
	for _, how := range []int{os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND} {
		file, err := os.OpenFile(run.sealedPlan.path(), how, 0)
		if err == nil {
			_, err = file.WriteAt([]byte("x"), 0)
			if how&os.O_APPEND != 0 {
				_, err = file.WriteString("x")
			}
			err = errors.Join(err, file.Close())
		}
		if err == nil {
			t.Errorf("a sealed plan opened with %#x was written", how)
		}
	}
	if err := run.sealedPlan.file.Truncate(0); err == nil {
		t.Error("a sealed plan was cut")
	}
	if got, err := run.sealedPlan.read(100); err != nil || string(got) != "a plan" {
		t.Errorf("the plan = %q, %v, want it as it was", got, err)
	}
}

// The lock file of the plan takes the place of whatever the template ships.
func TestUseSavedReplacesTheLockFile(t *testing.T) {
	t.Parallel()
	run := savable(t)
	run.approved = &planbundle.Bundle{Lock: []byte("of the plan"), State: run.backend.place}
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
