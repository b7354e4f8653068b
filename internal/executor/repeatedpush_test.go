package executor_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// The backend stores the pushed state, and the reply is lost: of the apply's
// own write, or of the push after it.
func TestLostReplyOfPush(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]int{"the apply's": 0, "the push's": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, server := remote(t, three)
			server.breaks(broken)
			server.lose(1)
			got, c := s.run()
			wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
			wantMessage(t, got, "what was done is in it")
			wantSaid(t, c, false, true, false, false)
			s.wantKept(0)
			if n := wantCreatedIn(t, c, server.stored()); n == 0 {
				t.Error("nothing was created: this test shows nothing")
			}
			got, _ = s.run()
			wantEnd(t, got, provision.Success, "")
		})
	}
}

// The run is killed between a push that worked and the removal of the file.
func TestKilledAfterPush(t *testing.T) {
	t.Parallel()
	for kind, test := range map[string]struct{ local, disturbed bool }{
		"a local state":            {true, false},
		"half a local state":       {true, true},
		"a state on a server":      {false, false},
		"a server without a state": {false, true},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var s *site
			var server *stateServer
			if test.local {
				s = newSite(t)
				s.template(map[string]string{"main.tf": three}, nil)
			} else {
				s, server = remote(t, three)
			}
			got, _ := s.run()
			wantEnd(t, got, provision.Success, "")
			stored := s.localState
			if !test.local {
				stored = server.stored
			}
			state := changedState(t, stored(), 1)
			switch {
			case !test.disturbed:
			case test.local:
				if err := os.Truncate(filepath.Join(s.job.Dirs.State, "terraform.tfstate"), 100); err != nil {
					t.Fatal(err)
				}
			default:
				server.replace("")
			}
			kept := filepath.Join(s.job.Dirs.State, "errored.tfstate")
			if err := os.WriteFile(kept, state, 0o600); err != nil {
				t.Fatal(err)
			}
			s.refuse = func(c *child, r provision.Report) *provision.Failure {
				if u := r.Detail.StateUnsaved; u != nil && !*u {
					_ = c.cmd.Process.Kill()
				}
				return nil
			}
			c := s.start()
			<-c.over
			s.refuse = nil
			if c.result != nil {
				t.Fatalf("result = %+v, want none: the child was killed", c.result)
			}
			if err := os.WriteFile(kept, state, 0o600); err != nil { // as if it had not come to the removal
				t.Fatal(err)
			}
			got, _ = s.run()
			wantEnd(t, got, provision.Success, "")
			s.wantKept(0)
		})
	}
}

// A run is killed while its engine has left a state that still has the serial
// of the stored one: the next run finds it and stores it all the same.
func TestRescuedStateGetsTheNextSerial(t *testing.T) {
	t.Parallel()
	s, server := remote(t, three)
	got, _ := s.run()
	wantEnd(t, got, provision.Success, "")
	first := s.job.Assignment.Snapshot
	s.template2("terraform {\n  backend \"http\" {}\n}\n" + three + `
resource "terraform_data" "wait" {
  provisioner "local-exec" { command = "echo waiting; while kill -0 $PPID; do sleep 0.1; done 2>/dev/null" }
}`)
	c := s.start()
	c.await("(local-exec): waiting")
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-c.over
	server.holdLock("")
	left := filepath.Join(s.job.Dirs.Work, "source", "errored.tfstate")
	if err := os.WriteFile(left, changedState(t, server.stored(), 0), 0o600); err != nil {
		t.Fatal(err)
	}
	s.job.Assignment.Snapshot = first
	got, c = s.run()
	wantEnd(t, got, provision.Success, "")
	wantSaid(t, c, true, true, false)
	if !strings.Contains(c.text(), "The state is stored, and the file is removed.") {
		t.Error("the log does not say that the state is stored")
	}
	if files := must(os.ReadDir(s.job.Dirs.State)); len(files) > 0 {
		t.Errorf("%s is left in the state's directory", files[0].Name())
	}
}

// changedState returns a state with one more output and a serial that is
// higher by some steps.
func changedState(t *testing.T, state string, steps float64) []byte {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(state), &fields); err != nil {
		t.Fatal(err)
	}
	fields["serial"] = fields["serial"].(float64) + steps
	fields["outputs"] = map[string]any{"x": map[string]any{"value": "1", "type": "string"}}
	return must(json.Marshal(fields))
}
