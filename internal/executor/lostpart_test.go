package executor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// cutAtTheEnd is a template whose apply fails and leaves half of a state.
func cutAtTheEnd(command string) string {
	return three + `
resource "terraform_data" "cut" {
  depends_on = [terraform_data.c]
  provisioner "local-exec" {
    command = <<-EOT
      ` + command + `
      exit 1
    EOT
  }
}`
}

// wantHeld fails the test unless the next run applies nothing, and unless it
// goes on when a person has removed what is kept.
func (s *site) wantHeld(parts ...string) {
	s.t.Helper()
	s.template2(three)
	got, c := s.run()
	wantEnd(s.t, got, provision.Failed, provision.CodeStateUnsaved)
	wantMessage(s.t, got, append(parts, "a person must decide", "terraform state pull", "remove the file, which ends the hold")...)
	wantSaid(s.t, c, true, true)
	if strings.Contains(c.text(), "Creating...") || strings.Contains(c.text(), "Checking out") {
		s.t.Error("the run went on, want it to end before anything else")
	}
	s.wantKept(1)
	if err := os.Remove(s.kept()[0]); err != nil {
		s.t.Fatal(err)
	}
	got, c = s.run()
	wantEnd(s.t, got, provision.Success, "")
	wantSaid(s.t, c, false)
	if _, err := os.Lstat(filepath.Join(s.job.Dirs.State, ".base")); err == nil {
		s.t.Error(".base is left, want it gone: nothing is kept any more")
	}
}

// A killed run left half an errored.tfstate: it is kept, and nothing happens
// before a person has removed it.
func TestTornStateOfAKilledRunHolds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": three}, nil)
	left := filepath.Join(s.job.Dirs.Work, "source")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	const torn = `{"version":4,"serial":3,"lineage":"l","resources":[{"type":"aws_instance","instances":[{"attributes":{"id":"i-0123`
	if err := os.WriteFile(filepath.Join(left, "errored.tfstate"), []byte(torn), 0o600); err != nil {
		t.Fatal(err)
	}
	got, _ := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	if kept := s.kept(); len(kept) != 1 || string(must(os.ReadFile(kept[0]))) != torn {
		t.Fatalf("kept = %v, want the half that was left", kept)
	}
	s.wantHeld(s.kept()[0], "no whole state")
}

func TestTornStateOfAnApplyHolds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": cutAtTheEnd(`printf '{"version":4,"serial":3,"resou' > errored.tfstate`)}, nil)
	got, c := s.run()
	wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
	wantMessage(t, got, "no whole state", "The run itself: terraform apply failed")
	wantSaid(t, c, false, true, true)
	s.wantNothingLeft()
	s.wantHeld("no whole state")
}

// What the template puts in the file's place neither hangs the run nor is
// followed; whether a state was there nobody knows, so the workspace is held.
func TestOddErroredState(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{
		"a pipe":               "rm -f errored.tfstate; mkfifo errored.tfstate",
		"a link without end":   "ln -sf /dev/zero errored.tfstate",
		"a link to a state":    "ln -sf $VICTIM errored.tfstate",
		"a pipe, and no .base": "rm -f errored.tfstate $STATE/.base; mkfifo errored.tfstate",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			victim := filepath.Join(t.TempDir(), "terraform.tfstate")
			const state = `{"version":4,"serial":90,"lineage":"theirs","outputs":{},"resources":[]}`
			if err := os.WriteFile(victim, []byte(state), 0o600); err != nil {
				t.Fatal(err)
			}
			command = strings.NewReplacer("$VICTIM", victim, "$STATE", s.job.Dirs.State).Replace(command)
			s.template(map[string]string{"main.tf": cutAtTheEnd(command)}, nil)
			got, c := s.run()
			wantEnd(t, got, provision.Failed, provision.CodeStateUnsaved)
			wantSaid(t, c, false, true, true)
			if !strings.Contains(c.text(), "is no file any more") {
				t.Error("the log does not say what is in the file's place")
			}
			if strings.Contains(s.localState(), "theirs") || string(must(os.ReadFile(victim))) != state {
				t.Error("a state of another workspace was pushed or changed")
			}
			s.wantHeld("only a note that it is lost")
		})
	}
}

// Odd files among the kept states are none.
func TestOddKeptStateIsNone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": three}, nil)
	if err := os.Symlink("/dev/zero", filepath.Join(s.job.Dirs.State, "errored.tfstate")); err != nil {
		t.Fatal(err)
	}
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	wantSaid(t, c, false)
}
