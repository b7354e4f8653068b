package executor_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
)

// leaks has a script tell people of a password before it answers with it, and then do more.
func leaks(t *testing.T, form, arguments, then string) *cloud {
	t.Helper()
	program := ""
	if form == "lines" {
		program = changed(t, "bash/fake-cloud", `  report "$external" --arg password`, `
  cloud=$FAKE_CLOUD
  echo "its password is hunter2-$id" >&2
  send log --arg message "and once more: hunter2-$id"
  send step --arg id show --arg machine "$id" --arg label "Setting the password hunter2-$id" --argjson percent 10
  `+then+`
  report "$external" --arg password "hunter2-$id"; return
  report "$external" --arg password`)
	}
	c := commandsAround(t, form, program, 60, arguments)
	if form == "once" {
		c.does("late", `echo "its password is hunter2-$id" >&2; echo "and once more: hunter2-$id" >&2
`+then)
	}
	return c
}

// said is all that a run has sent to the database.
func said(t *testing.T, run *child) string {
	t.Helper()
	run.mu.Lock()
	defer run.mu.Unlock()
	reports, err := json.Marshal(run.reports)
	if err != nil {
		t.Fatal(err)
	}
	return run.log.String() + string(reports)
}

// A password that a script writes for people before it answers with it is masked, and where
// there is no answer nobody sees it but who may read the machine's credentials.
func TestPasswordIsToldBeforeItIsKnown(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"once", "lines"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			c := leaks(t, form, "", "")
			got, run := c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Success, "")
			if text := said(t, run); strings.Contains(text, "hunter2") || !strings.Contains(text, "its password is ***") || !strings.Contains(text, "and once more: ***") {
				t.Errorf("the log has the password, or lacks what the script said:\n%s", text)
			}
			if m := c.recorded().Named("m-a"); m.Credentials["root_password"] != "hunter2-"+m.ID || m.Withheld != "" {
				t.Errorf("the machine is recorded as %+v, want the password", m)
			}
		})
		t.Run(form+" killed before it answers", func(t *testing.T) {
			t.Parallel()
			c := leaks(t, form, "", `if [ ! -e "$cloud/once" ]; then touch "$cloud/once"; kill -9 $$; fi`)
			got, run := c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
			if text := said(t, run); strings.Contains(text, "hunter2") || !strings.Contains(text, "machine.m-a: what its program wrote is not shown") {
				t.Errorf("the log has the password, or does not say that something is missing:\n%s", text)
			}
			id := c.recorded().Named("m-a").ID
			own, err := seal.Generate()
			if err != nil {
				t.Fatal(err)
			}
			c.job.Requester = own.Public()
			got, run = c.act(provision.OperationState, map[string]any{"state": map[string]any{"command": "reveal", "args": []string{"machine.m-a"}}})
			wantEnd(t, got, provision.Success, "")
			opened, err := own.Open([]byte(run.outputs()["credentials"].Sealed), 1<<20)
			if err != nil || !strings.Contains(string(opened), `its password is hunter2-`+id) {
				t.Errorf("the credentials open as %s, %v, want what the script said", opened, err)
			}
			if text := said(t, run); strings.Contains(text, "hunter2") {
				t.Errorf("the log has the password:\n%s", text)
			}
			c.act(provision.OperationApply, map[string]any{"state": nil}) // asked again, it answers with the same
			if m := c.recorded().Named("m-a"); m.ID != id || m.Status != "running" || m.Withheld != "" || m.Credentials["root_password"] != "hunter2-"+id {
				t.Errorf("asked again the machine is %+v, want it running, with its password", m)
			}
		})
		t.Run(form+" that says it makes none", func(t *testing.T) {
			t.Parallel()
			c := leaks(t, form, "  credentials = false", "")
			got, _ := c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
			if !strings.Contains(got.Detail.ErrorMessage, "credentials = false") {
				t.Errorf("the message is %q, want the argument that it contradicts", got.Detail.ErrorMessage)
			}
			if m := c.recorded().Named("m-a"); m.Status != "failed" || len(m.Credentials) > 0 {
				t.Errorf("the machine is recorded as %+v, want failed, without credentials", m)
			}
		})
	}
}

// People watch a script that makes no passwords at work.
func TestScriptWithoutPasswordsIsShownAtOnce(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"once", "lines"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			c := leaks(t, form, "  credentials = false", `while [ ! -e "$cloud/go" ]; do sleep 0.1; done; `+map[string]string{
				"once": `echo '{"success": true, "instance": {"external_id": "vm-1"}}'; exit 0`, "lines": `report "$external"; return`,
			}[form])
			c.ask(c.repo.URL, "v1", "", map[string]any{"cloud": c.dir, "names": []string{"a"}, "memory": 2048})
			run := c.start()
			run.await("its password is")
			run.await("and once more")
			c.does("go", "")
			wantEnd(t, run.end(), provision.Success, "")
		})
	}
}

// A script that says very much before it answers does not take the agent's memory.
func TestMuchIsToldBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	c := newCloud(t, false, 60)
	c.does("late", `yes "a line of what it does" | head -c 5000000 >&2; echo "the last of it" >&2`)
	got, run := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	if text := run.text(); len(text) > 2<<20 || !strings.Contains(text, "the last of it") || !strings.Contains(text, "bytes of what it wrote are left out") {
		t.Errorf("the log has %d bytes, want the end of what it said, and that the beginning is left out", len(text))
	}
}
