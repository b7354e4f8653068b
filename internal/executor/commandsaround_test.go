package executor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// commandsAround has a template of the form "once" or "lines" with these arguments in its
// provisioner block.
func commandsAround(t *testing.T, form, program string, limit int, arguments string) *cloud {
	t.Helper()
	var c *cloud
	var hcl string
	if form == "once" {
		c = newCloud(t, true, limit)
		hcl = fmt.Sprintf(scriptTemplate, true, limit)
	} else {
		c = newLines(t, program)
		hcl = strings.Replace(linesTemplate, "timeout = 60", fmt.Sprint("timeout = ", limit), 1)
	}
	hcl = strings.Replace(hcl, "  machine {", arguments+"\n  machine {", 1)
	files := gittest.Text(map[string]string{"variables.tf": scriptVariables, "tendril.hcl": hcl})
	files["provision.sh"], files["terminate.sh"] = gittest.Executable(provisionScript), gittest.Executable(terminateScript)
	files["provisioner"] = gittest.Executable(program)
	c.repo, _ = c.git.Repo("around", files, "v1")
	c.env = append(c.env, "TEST_CLOUD="+c.dir)
	return c
}

// status is how a machine is recorded; "" if it isn't.
func (c *cloud) status(name string) string {
	c.t.Helper()
	if m := c.recorded().Named(name); m != nil {
		return string(m.Status)
	}
	return ""
}

// Commands before and after a machine is made are the same for both forms of a script.
func TestCommandsAroundAMachine(t *testing.T) {
	t.Parallel()
	cannotRebuild := changed(t, "python/fake_cloud.py", `"rebuild": rebuild, `, "")
	for name, form := range map[string]struct{ kind, program string }{
		"once": {"once", ""}, "lines": {"lines", example(t, "python/fake_cloud.py")}, "lines without rebuild": {"lines", cannotRebuild},
	} {
		// A program that cannot rebuild differs only where a machine is replaced.
		test := func(of string, replaces bool, do func(t *testing.T)) {
			if form.program == cannotRebuild && !replaces {
				return
			}
			t.Run(name+"/"+of, func(t *testing.T) {
				t.Parallel()
				do(t)
			})
		}
		around := func(t *testing.T, limit int, arguments string) *cloud {
			return commandsAround(t, form.kind, form.program, limit, arguments)
		}
		test("well", false, func(t *testing.T) {
			c := around(t, 60, `  pre_provision_commands  = ["echo first $TENDRIL_MACHINE $TENDRIL_EXTERNAL_ID."]
  post_provision_commands = ["echo then $TENDRIL_MACHINE $TENDRIL_EXTERNAL_ID at $TENDRIL_ADDRESS", "echo last"]`)
			got, run := c.apply(provision.OperationApply, 2048, "a", "b")
			wantEnd(t, got, provision.Success, "")
			log := run.text()
			for _, machine := range []string{"m-a", "m-b"} {
				m := c.recorded().Named(machine)
				first, then := strings.Index(log, "first "+machine+" .\n"), strings.Index(log, fmt.Sprintf("then %s %s at %s\n", machine, m.ExternalID, m.Address))
				if first < 0 || then < first || m.Status != "running" || m.Unfinished || m.Address == "" {
					t.Errorf("%s is %+v, and the log has its commands at %d and %d:\n%s", machine, m, first, then, log)
				}
			}
			got, run = c.apply(provision.OperationApply, 2048, "a", "b")
			wantEnd(t, got, provision.Success, "")
			if log := run.text(); strings.Contains(log, "first") || strings.Contains(log, "then") {
				t.Errorf("commands ran though no machine was made:\n%s", log)
			}
		})
		test("skipped", false, func(t *testing.T) {
			c := around(t, 60, `  post_provision_commands = ["exit 3"]
  skip_post_provision     = true`)
			got, _ := c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Success, "")
		})
		test("an error before it", false, func(t *testing.T) {
			c := around(t, 60, `  pre_provision_commands = ["test ! -e $TEST_CLOUD/broken"]`)
			c.does("broken", "")
			got, _ := c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
			if said := got.Detail.ErrorMessage; !strings.Contains(said, "The machine m-a: the command ") || !strings.Contains(said, "before it is made: exit status 1") {
				t.Errorf("the message is %q, want the command and its status", said)
			}
			if c.status("m-a") != "" || len(c.made())+c.machinesThere() > 0 {
				t.Errorf("the machine is %q, and was made, though the command before it failed", c.status("m-a"))
			}
			remove(t, c.dir, "broken")
			got, _ = c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Success, "")
		})
		test("an error after it", true, func(t *testing.T) {
			c := around(t, 60, `  post_provision_commands = ["test $TENDRIL_MACHINE = m-b || test ! -e $TEST_CLOUD/broken"]`)
			c.does("broken", "")
			got, run := c.apply(provision.OperationApply, 2048, "a", "b")
			wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
			if said := got.Detail.ErrorMessage; !strings.Contains(said, "The machine m-a: it exists, but the command ") || !strings.Contains(said, "exit status 1. The next deploy replaces it") {
				t.Errorf("the message is %q, want the command and its status", said)
			}
			if c.status("m-a") != "failed" || c.status("m-b") != "running" {
				t.Errorf("the machines are %q and %q, want failed and running\n%s", c.status("m-a"), c.status("m-b"), run.text())
			}
			var ended []string
			for _, e := range run.events() {
				if e.Kind == "resource_finished" || e.Kind == "resource_failed" {
					ended = append(ended, e.Kind+" "+e.Address)
				}
			}
			if want := []string{"resource_failed machine.m-a", "resource_finished machine.m-b"}; !slices.Equal(ended, want) {
				t.Errorf("events = %q, want %q", ended, want)
			}
			if form.kind == "lines" { // what the program says of it does not make it a finished one
				got, _ = c.act(provision.OperationRefresh, nil)
				wantEnd(t, got, provision.Success, "")
				if c.status("m-a") != "failed" {
					t.Errorf("after a refresh the machine is %q, want failed", c.status("m-a"))
				}
			}
			remove(t, c.dir, "broken")
			got, run = c.apply(provision.OperationApply, 2048, "a", "b")
			wantEnd(t, got, provision.Success, "")
			plan := last(run, func(d provision.Detail) *provision.PlanSummary { return d.Plan })
			if plan.Replace != 1 || plan.Resources[0].Address != "machine.m-a" || plan.Resources[0].Reason != "its making was not completed" || c.status("m-a") != "running" {
				t.Errorf("the next plan is %+v, and the machine is then %q, want it replaced and running", plan, c.status("m-a"))
			}
		})
		test("longer than it may", false, func(t *testing.T) {
			c := around(t, 15, `  post_provision_commands = ["sleep 1000"]`)
			got, _ := c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
			if !strings.Contains(got.Detail.ErrorMessage, "took longer than 15s") || c.status("m-a") != "failed" {
				t.Errorf("the message is %q and the machine %q, want that it took too long, and failed", got.Detail.ErrorMessage, c.status("m-a"))
			}
		})
		test("their time is their own", false, func(t *testing.T) {
			c := around(t, 15, `  pre_provision_commands  = ["sleep 10"]
  post_provision_commands = ["sleep 10"]`)
			got, _ := c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Success, "")
		})
		test("killed after it", true, func(t *testing.T) {
			c := around(t, 600, `  post_provision_commands = ["test -e $TEST_CLOUD/waits || { touch $TEST_CLOUD/waits; sleep 1000; }"]`)
			c.ask(c.repo.URL, "v1", "", map[string]any{"cloud": c.dir, "names": []string{"a"}, "memory": 2048})
			run := c.start()
			c.awaitFile(run, "waits", true)
			if err := syscall.Kill(run.cmd.Process.Pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-run.over
			c.store(run)
			if c.status("m-a") != "failed" {
				t.Errorf("the machine is %q, want failed: its commands have not ended", c.status("m-a"))
			}
			got, run := c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Success, "")
			if plan := last(run, func(d provision.Detail) *provision.PlanSummary { return d.Plan }); plan.Replace != 1 || c.status("m-a") != "running" {
				t.Errorf("the next plan is %+v, and the machine is then %q, want it replaced and running", plan, c.status("m-a"))
			}
		})
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}
