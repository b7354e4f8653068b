package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/provision"
)

// hook makes a script the policy hook and returns the directory it runs in.
func (s *site) hook(script string) (dir string) {
	s.t.Helper()
	dir = s.t.TempDir()
	path := filepath.Join(dir, "hook")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+strings.ReplaceAll(script, "$DIR", dir)), 0o755); err != nil {
		s.t.Fatal(err)
	}
	s.job.Settings.Policy.Hook, s.job.Settings.Policy.HookTimeout = []string{path, "an argument; not a command"}, time.Minute
	return dir
}

// applied reports whether the run asked to apply.
func applied(c *child) bool {
	return last(c, func(d provision.Detail) bool { return d.Stage == provision.StageApply })
}

// A hook that consents sees the whole plan on its stdin, and nothing else: no
// credentials, and what it prints is masked.
func TestPolicyHookConsents(t *testing.T) {
	t.Parallel()
	for _, operation := range []provision.Operation{provision.OperationApply, provision.OperationPlan} {
		t.Run(string(operation), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.env = []string{"AWS_SECRET_ACCESS_KEY=cloud-credential"}
			s.job.Assignment.Operation = operation
			dir := s.hook(`cat > $DIR/plan.json; env > $DIR/env; printf '%s' "$1" > $DIR/argument
echo "looked at it"; printf 'found default-s3cret' >&2`)
			s.template(map[string]string{"main.tf": hello}, map[string]any{"name": "world"})
			got, c := s.run()
			wantEnd(t, got, provision.Success, "")
			for name, want := range map[string]string{
				"plan.json": `"default-s3cret"`, "argument": "an argument; not a command",
				"env": "TENDRIL_WORKSPACE=acme/test\n",
			} {
				if text := read(t, filepath.Join(dir, name)); !strings.Contains(text, want) {
					t.Errorf("%s = %.2000s, want %q in it", name, text, want)
				}
			}
			env := read(t, filepath.Join(dir, "env"))
			for _, want := range []string{"TENDRIL_OPERATION=" + string(operation) + "\n", "TENDRIL_PROVISION=" + s.job.Assignment.ProvisionID.String() + "\n"} {
				if !strings.Contains(env, want) {
					t.Errorf("the hook's environment lacks %q:\n%s", want, env)
				}
			}
			if strings.Contains(env, "cloud-credential") {
				t.Errorf("the hook's environment has the cloud's credential:\n%s", env)
			}
			for _, want := range []string{"looked at it\n", "found ***\n", "The policy hook consents"} {
				if !strings.Contains(c.text(), want) {
					t.Errorf("log lacks %q", want)
				}
			}
			if got, want := applied(c), operation == provision.OperationApply; got != want {
				t.Errorf("asked to apply: %v, want %v", got, want)
			}
		})
	}
}

// Whatever is not a yes is a no, and nothing is applied then.
func TestPolicyHookRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script  string
		change  func(s *site)
		message string
	}{
		"says no":    {"echo 'no public bucket, default-s3cret'; exit 3", nil, "says no (exit status 3). Nothing was applied. It printed:\nno public bucket, ***"},
		"is killed":  {"kill -9 $$", nil, "says no (signal: killed)"},
		"takes long": {"sleep 60", func(s *site) { s.job.Settings.Policy.HookTimeout = 200 * time.Millisecond }, "did not answer within 200ms"},
		"is missing": {"", func(s *site) { s.job.Settings.Policy.Hook[0] += "-gone" }, "cannot be asked: "},
		"is no longer a program": {"", func(s *site) {
			if err := os.Chmod(s.job.Settings.Policy.Hook[0], 0o644); err != nil {
				s.t.Fatal(err)
			}
		}, "is not an executable file"},
		"holds its output": {"setsid sleep 60 & exit 1", nil, "says no (exit status 1)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.hook(test.script)
			if test.change != nil {
				test.change(s)
			}
			s.template(map[string]string{"main.tf": hello}, map[string]any{"name": "world"})
			got, c := s.run()
			wantEnd(t, got, provision.Failed, provision.CodePolicyRefused)
			if !strings.Contains(got.Detail.ErrorMessage, test.message) {
				t.Errorf("message = %q, want %q in it", got.Detail.ErrorMessage, test.message)
			}
			if applied(c) {
				t.Error("the run asked to apply, want it not to")
			}
			s.wantNothingLeft()
		})
	}
}

// A cancel ends the hook with all that it started.
func TestCancelEndsThePolicyHook(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.hook("sleep 61 & echo started $!; sleep 61")
	s.template(map[string]string{"main.tf": hello}, map[string]any{"name": "world"})
	c := s.start()
	c.await("started ")
	var pid int
	if _, err := fmt.Sscanf(c.text()[strings.Index(c.text(), "started "):], "started %d", &pid); err != nil {
		t.Fatal(err)
	}
	if err := job.Write(c.control, job.Control{Stop: job.StopCancelled}); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, c.end(), provision.Cancelled, provision.CodeCancelled)
	if alive(t, strconv.Itoa(pid)) {
		t.Errorf("process %d of the hook lives on", pid)
	}
	if applied(c) {
		t.Error("the run asked to apply, want it not to")
	}
}

// A plan that was approved is judged once more before it is applied: the rules
// may have changed since.
func TestPolicyHookJudgesAnApprovedPlan(t *testing.T) {
	t.Parallel()
	s, states := newSharedSite(t)
	dir := s.hook(`cat > $DIR/plan.json; test ! -e $DIR/stricter`)
	s.job.Assignment.Approval = provision.ApprovalAlways
	s.template(httpTemplate(`resource "terraform_data" "needle" {}`), nil)
	digest, _ := s.awaits()
	for name, change := range map[string]error{
		"stricter": os.WriteFile(filepath.Join(dir, "stricter"), nil, 0o600), "plan.json": os.Remove(filepath.Join(dir, "plan.json")),
	} {
		if change != nil {
			t.Fatal(name, change)
		}
	}
	other := s.elsewhere()
	other.job.Assignment.ApprovedPlan = digest
	got, c := other.run()
	wantEnd(t, got, provision.Failed, provision.CodePolicyRefused)
	if plan := read(t, filepath.Join(dir, "plan.json")); !strings.Contains(plan, "terraform_data.needle") {
		t.Errorf("the hook got %q for the approved plan, want the plan", plan)
	}
	if applied(c) || states.state != nil {
		t.Errorf("asked to apply: %v, state = %s, want nothing done", applied(c), states.state)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
