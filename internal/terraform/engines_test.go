package terraform

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// bothEngines runs a test with each engine: what holds of one has to hold of the
// other.
func bothEngines(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range []string{Terraform, OpenTofu} {
		t.Run(kind, func(t *testing.T) { test(t, kind) })
	}
}

// ofOpenTofu is what only OpenTofu is to read.
func ofOpenTofu(kind, text string) string {
	if kind != OpenTofu {
		return ""
	}
	return text
}

// realEngine is the Terraform or OpenTofu of this machine.
func realEngine(t *testing.T, kind string) Engine {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no real engine")
	}
	if _, err := exec.LookPath(kind); err != nil {
		t.Fatalf("these tests run the real engines: \"make deps\" brings %s, and the directory of \"make tools-dir\" must be on PATH (%v)", kind, err)
	}
	engine, err := Locate(t.Context(), job.Engine{}, Want{Kind: kind}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

// newReal returns a Runner of the real engine on a template.
func newReal(t *testing.T, kind, template string, opts Options) *Runner {
	t.Helper()
	opts.Dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(opts.Dir, "main.tf"), []byte(template), 0o600); err != nil {
		t.Fatal(err)
	}
	return realIn(t, kind, opts)
}

func realIn(t *testing.T, kind string, opts Options) *Runner {
	t.Helper()
	opts.Env = append(opts.Env, "PATH="+os.Getenv("PATH"), "HOME="+t.TempDir())
	r, err := New(realEngine(t, kind), opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// planned runs init and plan.
func planned(t *testing.T, r *Runner, opts PlanOptions) provision.PlanSummary {
	t.Helper()
	if err := r.Init(t.Context(), InitOptions{}); err != nil {
		t.Fatal(err)
	}
	opts.Out = "tendril.tfplan"
	if _, err := r.Plan(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	plan, err := r.ShowPlan(t.Context(), "tendril.tfplan")
	if err != nil {
		t.Fatal(err)
	}
	return Summarise(plan)
}
