package terraform

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
)

const stateTemplate = `
resource "terraform_data" "one" { input = "1" }
resource "terraform_data" "two" { input = "2" }
output "token" {
  value     = "hunter2-token"
  sensitive = true
}
`

func recordedIn(t *testing.T, r *Runner) []string {
	t.Helper()
	state, err := r.ShowState(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, resource := range Recorded(state) {
		found = append(found, strings.TrimPrefix(resource.Address, "terraform_data."))
	}
	return found
}

func TestStateCommands(t *testing.T) {
	t.Parallel()
	var out outputtest.Buffer
	r := newReal(t, Terraform, stateTemplate, Options{Stdout: &out, Stderr: &out})
	planned(t, r, PlanOptions{})
	if state, err := r.StoredState(t.Context(), PushOptions{}); err != nil || len(state) > 0 {
		t.Errorf("StoredState() before the first apply = %s, %v, want none", state, err)
	}
	if got := recordedIn(t, r); got != nil {
		t.Errorf("the state records %v before the first apply", got)
	}
	if _, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"}); err != nil {
		t.Fatal(err)
	}
	before, err := r.StoredState(t.Context(), PushOptions{})
	if err != nil || !strings.Contains(string(before), "hunter2-token") {
		t.Fatalf("StoredState() = %d bytes, %v, want the whole state", len(before), err)
	}
	shown, err := r.ShowState(t.Context())
	if err != nil || !slices.Equal(SensitiveInState(shown), []string{"hunter2-token"}) {
		t.Errorf("SensitiveInState() = %v, %v, want the output", SensitiveInState(shown), err)
	}

	if err := r.MoveInState(t.Context(), "terraform_data.one", "terraform_data.first"); err != nil {
		t.Fatal(err)
	}
	if err := r.RemoveFromState(t.Context(), "terraform_data.two"); err != nil {
		t.Fatal(err)
	}
	if got := recordedIn(t, r); !slices.Equal(got, []string{"first"}) {
		t.Errorf("after mv and rm the state records %v, want first alone", got)
	}
	if err := r.Import(t.Context(), "terraform_data.two", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"); err != nil {
		t.Fatal(err)
	}
	if got := recordedIn(t, r); !slices.Equal(got, []string{"first", "two"}) {
		t.Errorf("after an import the state records %v", got)
	}

	// An earlier state takes the place of the newest by succeeding it.
	now, err := r.StoredState(t.Context(), PushOptions{})
	if err != nil {
		t.Fatal(err)
	}
	over, err := ReadStateHeader(now)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(file, before, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.PushState(t.Context(), file, PushOptions{}); err == nil {
		t.Error("PushState of an older state = nil, want a refusal")
	}
	again, err := Succeed(before, over)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, again, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.PushState(t.Context(), file, PushOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := recordedIn(t, r); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("after the return the state records %v, want what it did before", got)
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Errorf("the log shows a state:\n%s", out.String())
	}
}

func TestStateCommandsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	r := newReal(t, Terraform, stateTemplate, Options{})
	if err := r.Init(t.Context(), InitOptions{}); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"No state file was found":      r.RemoveFromState(t.Context(), "terraform_data.none"),
		"neither an address nor an id": r.RemoveFromState(t.Context(), "-state=/etc/passwd"),
		`"-lock=false" is neither`:     r.MoveInState(t.Context(), "terraform_data.one", "-lock=false"),
		`"" is neither`:                r.Unlock(t.Context(), ""),
		"resource address":             r.Import(t.Context(), "terraform_data.none", "x"),
		"LocalState not locked":        r.Unlock(t.Context(), "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
	} {
		failure := provision.AsFailure(err)
		if err == nil || failure.Code != provision.CodeStateFailed || !strings.Contains(failure.Message, what) {
			t.Errorf("error = %v (%s), want %s that says %q", err, failure.Code, provision.CodeStateFailed, what)
		}
	}
}
