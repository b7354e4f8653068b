package executor_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// act has something done to machines, with the template and the variables of the last run.
func (c *cloud) act(operation provision.Operation, more map[string]any) (provision.Report, *child) {
	c.t.Helper()
	var snapshot map[string]any
	if err := json.Unmarshal(c.job.Assignment.Snapshot, &snapshot); err != nil {
		c.t.Fatal(err)
	}
	for _, key := range []string{"targets", "replace", "power"} {
		delete(snapshot, key)
	}
	for key, value := range more {
		snapshot[key] = value
	}
	var err error
	if c.job.Assignment.Snapshot, err = json.Marshal(snapshot); err != nil {
		c.t.Fatal(err)
	}
	c.job.Assignment.Operation, c.job.Assignment.ClaimID, c.job.Assignment.ProvisionID = operation, uuid.New(), uuid.New()
	got, run := c.run()
	c.store(run)
	return got, run
}

func (c *child) machines() (listed []provision.Machine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		if r.Detail.Machines != nil {
			listed = r.Detail.Machines
		}
	}
	return listed
}

func (c *child) events() (events []provision.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		events = append(events, r.Detail.Events...)
	}
	return events
}

// shown are the machines of a run's last report of them: name, status, and what can be done to it.
func shown(run *child) string {
	var all []string
	for _, m := range run.machines() {
		text := m.Name + " " + string(m.Status)
		for _, action := range m.Actions {
			text += " " + string(action)
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// there are the machines in the examples' cloud: external id to its name and status.
func (c *cloud) there() map[string]string {
	c.t.Helper()
	paths, err := filepath.Glob(filepath.Join(c.dir, "vm-*"))
	if err != nil {
		c.t.Fatal(err)
	}
	found := map[string]string{}
	for _, path := range paths {
		var vm struct{ Name, Status string }
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &vm)
		}
		if err != nil {
			c.t.Fatal(err)
		}
		found[vm.Name] = filepath.Base(path) + " " + vm.Status
	}
	return found
}

// changed is an example with something in place of what must be in it.
func changed(t *testing.T, path, from, to string) string {
	t.Helper()
	text := example(t, path)
	if !strings.Contains(text, from) {
		t.Fatalf("%s has no %q any more", path, from)
	}
	return strings.Replace(text, from, to, 1)
}

// path is where the examples' cloud has a machine.
func (c *cloud) path(name string) string {
	return filepath.Join(c.dir, strings.Fields(c.there()[name])[0])
}

func (c *cloud) file(name string) string {
	c.t.Helper()
	text, err := os.ReadFile(c.path(name))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

// alter changes what the cloud has of a machine, as somebody does by hand.
func (c *cloud) alter(name, from, to string) {
	c.t.Helper()
	text := c.file(name)
	if !strings.Contains(text, from) {
		c.t.Fatalf("the cloud has %s as %s, without %s", name, text, from)
	}
	if err := os.WriteFile(c.path(name), []byte(strings.Replace(text, from, to, 1)), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// What people do to one machine: stop, start, restart, rebuild, ask how it is.
func TestActsOnAMachine(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"bash": "bash/fake-cloud", "python": "python/fake_cloud.py"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newLines(t, example(t, path))
			got, run := c.apply(provision.OperationApply, 2048, "a", "b")
			wantEnd(t, got, provision.Success, "")
			const can = " destroy rebuild refresh power reveal"
			if is, want := shown(run), "m-a running"+can+"; m-b running"+can; is != want {
				t.Errorf("machines = %q, want %q", is, want)
			}
			if t.Failed() {
				return // without its machines nothing can be done to them
			}
			made := c.there()
			ada := []string{"machine.m-a"}
			for _, step := range []struct {
				do   provision.Power
				want string
			}{{"stop", "stopped"}, {"stop", "stopped"}, {"start", "running"}, {"restart", "running"}} {
				got, run := c.act(provision.OperationPower, map[string]any{"targets": ada, "power": step.do})
				wantEnd(t, got, provision.Success, "")
				if is := c.there(); is["m-a"] != strings.Fields(made["m-a"])[0]+" "+step.want || is["m-b"] != made["m-b"] {
					t.Errorf("after %s the cloud has %v, want m-a %s and m-b as it was", step.do, is, step.want)
				}
				if is, want := shown(run), "m-a "+step.want+can+"; m-b running"+can; is != want {
					t.Errorf("after %s machines = %q, want %q", step.do, is, want)
				}
				var events []string
				for _, e := range run.events() {
					events = append(events, e.Kind+" "+e.Address+" "+e.Action)
				}
				if want := []string{"resource_started machine.m-a " + string(step.do), "resource_finished machine.m-a " + string(step.do)}; !slices.Equal(events, want) {
					t.Errorf("events of %s = %q, want %q", step.do, events, want)
				}
				if !slices.Contains(run.stages(), provision.StageApply) {
					t.Errorf("%s does not ask before it begins", step.do)
				}
			}

			// Somebody has stopped both, which the provisioner's plan does not look at.
			c.alter("m-a", "running", "stopped")
			c.alter("m-b", "running", "stopped")
			got, run = c.act(provision.OperationApply, map[string]any{"targets": ada, "replace": ada})
			wantEnd(t, got, provision.Success, "")
			if plan := planOf(run); plan == nil || len(plan.Resources) != 1 || plan.Resources[0].Action != "replace" || plan.Resources[0].Address != "machine.m-a" || plan.Resources[0].Reason != "it was asked for" {
				t.Errorf("plan of a rebuild = %+v, want m-a replaced, for it was asked for", plan)
			}
			if is := c.there(); len(is) != 2 || is["m-a"] != made["m-a"] || !strings.HasSuffix(is["m-b"], "stopped") {
				t.Errorf("after a rebuild of m-a the cloud has %v, want m-a made again and m-b left alone", is)
			}

			// Somebody destroys it by hand.
			if err := os.Remove(c.path("m-a")); err != nil {
				t.Fatal(err)
			}
			got, run = c.act(provision.OperationRefresh, nil)
			wantEnd(t, got, provision.Success, "")
			if is, want := shown(run), "m-a unknown"+can+"; m-b stopped"+can; is != want {
				t.Errorf("after a refresh machines = %q, want %q", is, want)
			}
			drift := last(run, func(d provision.Detail) *[]provision.PlannedChange {
				if d.Drift == nil {
					return nil
				}
				return &d.Drift
			})
			if drift == nil || !slices.ContainsFunc(*drift, func(c provision.PlannedChange) bool { return c.Address == "machine.m-a" && c.Action == "delete" }) {
				t.Errorf("drift = %+v, want that m-a is gone", drift)
			}
			// It is marked, so it can be asked for again.
			got, _ = c.apply(provision.OperationApply, 2048, "a", "b")
			wantEnd(t, got, provision.Success, "")
			if is := c.there(); len(is) != 2 {
				t.Errorf("after the next deploy the cloud has %v, want m-a again", is)
			}
		})
	}
}

// What can't be done is said before anything is.
func TestActsThatAreRefused(t *testing.T) {
	t.Parallel()
	bash := example(t, "bash/fake-cloud")
	less := changed(t, "bash/fake-cloud", `["plan","apply","destroy","refresh","power","rebuild","health"]`, `["plan","apply","destroy"]`)
	ada := []string{"machine.m-a"}
	for name, tt := range map[string]struct {
		program   string
		operation provision.Operation
		more      map[string]any
		code      provision.Code
		says      string
	}{
		"power, which the program lacks":   {less, provision.OperationPower, map[string]any{"targets": ada, "power": "stop"}, provision.CodeOperationRefused, "can't start or stop machines"},
		"rebuild, which the program lacks": {less, provision.OperationApply, map[string]any{"targets": ada, "replace": ada}, provision.CodeOperationRefused, "can't rebuild a machine"},
		"refresh, which the program lacks": {less, provision.OperationRefresh, nil, provision.CodeOperationRefused, "can't refresh machines"},
		"a machine that is not there":      {bash, provision.OperationPower, map[string]any{"targets": []string{"machine.m-a", "machine.m-x"}, "power": "stop"}, provision.CodePlanFailed, "no machine m-x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newLines(t, tt.program)
			got, _ := c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Success, "")
			before := c.there()
			got, _ = c.act(tt.operation, tt.more)
			wantEnd(t, got, provision.Failed, tt.code)
			if !strings.Contains(got.Detail.ErrorMessage, tt.says) {
				t.Errorf("the message is %q, want %q in it", got.Detail.ErrorMessage, tt.says)
			}
			if after := c.there(); after["m-a"] != before["m-a"] {
				t.Errorf("the cloud had %v and has %v", before, after)
			}
		})
	}
	t.Run("a script that is asked once", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t, false, 60)
		got, run := c.apply(provision.OperationApply, 2048, "a")
		wantEnd(t, got, provision.Success, "")
		if is, want := shown(run), "m-a running destroy rebuild reveal"; is != want {
			t.Errorf("machines = %q, want %q", is, want)
		}
		got, _ = c.act(provision.OperationPower, map[string]any{"targets": ada, "power": "stop"})
		wantEnd(t, got, provision.Failed, provision.CodeOperationRefused)
		got, _ = c.act(provision.OperationApply, map[string]any{"targets": ada, "replace": ada})
		wantEnd(t, got, provision.Success, "")
		if made := c.made(); !slices.Equal(made, []int{1}) {
			t.Errorf("the cloud has machines made %v times, want one machine, made once", made)
		}
	})
}

// Of a machine whose program is killed while it stops it nobody knows, until it is asked again.
func TestKilledWhileItStopsAMachine(t *testing.T) {
	t.Parallel()
	program := changed(t, "bash/fake-cloud", "\n  report \"$external\"\n}\n\nrebuild", "\n  if [ -e \"$FAKE_CLOUD/die\" ]; then rm \"$FAKE_CLOUD/die\"; kill -9 $$; fi\n  report \"$external\"\n}\n\nrebuild")
	c := newLines(t, program)
	got, _ := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	stop := map[string]any{"targets": []string{"machine.m-a"}, "power": "stop"}
	c.does("die", "")
	got, run := c.act(provision.OperationPower, stop)
	wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
	if is := c.there()["m-a"]; !strings.HasSuffix(is, "stopped") || !strings.Contains(shown(run), "m-a unknown") {
		t.Errorf("machines = %q, and the cloud has m-a as %q, want it stopped and unknown", shown(run), is)
	}
	got, run = c.act(provision.OperationPower, stop)
	wantEnd(t, got, provision.Success, "")
	if !strings.Contains(shown(run), "m-a stopped") {
		t.Errorf("machines = %q, want m-a stopped", shown(run))
	}
}

// A provisioner that says of a machine something else than what it was asked for has failed.
func TestPowerThatDoesSomethingElse(t *testing.T) {
	t.Parallel()
	program := changed(t, "bash/fake-cloud", "status=stopped\n  alter", "status=failed\n  alter")
	c := newLines(t, program)
	got, _ := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	got, run := c.act(provision.OperationPower, map[string]any{"targets": []string{"machine.m-a"}, "power": "stop"})
	wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
	if !strings.Contains(got.Detail.ErrorMessage, "that the machine is failed") || !strings.Contains(shown(run), "m-a failed") {
		t.Errorf("the message is %q and machines are %q, want that m-a has failed", got.Detail.ErrorMessage, shown(run))
	}
}

// A machine that can't be stopped keeps no other from it.
func TestPowerOfSeveralOfWhichOneFails(t *testing.T) {
	t.Parallel()
	program := changed(t, "bash/fake-cloud", "status=stopped\n  alter", "status=stopped\n  [ \"$(get '.machine as $id | .machines[] | select(.id == $id).name')\" != m-a ] || status=failed\n  alter")
	c := newLines(t, program)
	got, _ := c.apply(provision.OperationApply, 2048, "a", "b", "c")
	wantEnd(t, got, provision.Success, "")
	got, run := c.act(provision.OperationPower, map[string]any{"targets": []string{"machine.m-a", "machine.m-b", "machine.m-c"}, "power": "stop"})
	wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
	const can = " destroy rebuild refresh power reveal"
	if is, want := shown(run), "m-a failed"+can+"; m-b stopped"+can+"; m-c stopped"+can; is != want || !strings.Contains(got.Detail.ErrorMessage, "the machine m-a") {
		t.Errorf("machines = %q with the message %q, want %q and m-a named", is, got.Detail.ErrorMessage, want)
	}
	var events []string
	for _, e := range run.events() {
		events = append(events, e.Kind+" "+e.Address)
	}
	if want := []string{"resource_started machine.m-a", "resource_failed machine.m-a", "resource_started machine.m-b", "resource_finished machine.m-b", "resource_started machine.m-c", "resource_finished machine.m-c"}; !slices.Equal(events, want) {
		t.Errorf("events = %q, want a program of the template asked for one after the other: %q", events, want)
	}
}

// What a refresh could not find out keeps nobody from deploying, whatever a program promises.
func TestDeployAfterARefreshOfAMachineThatIsGone(t *testing.T) {
	t.Parallel()
	program := changed(t, "bash/fake-cloud", "--argjson idempotent true", "--argjson idempotent false")
	c := newLines(t, program)
	got, _ := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	if err := os.Remove(c.path("m-a")); err != nil {
		t.Fatal(err)
	}
	got, run := c.act(provision.OperationRefresh, nil)
	wantEnd(t, got, provision.Success, "")
	if !strings.Contains(shown(run), "m-a unknown") {
		t.Errorf("machines = %q, want m-a unknown", shown(run))
	}
	got, run = c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	if !strings.Contains(shown(run), "m-a running") || c.machinesThere() != 1 {
		t.Errorf("machines = %q and %d exist, want m-a again", shown(run), c.machinesThere())
	}
}

// Each step of a machine begins and ends once, whatever a program tells.
func TestStepsBeginAndEndOnce(t *testing.T) {
	t.Parallel()
	program := changed(t, "python/fake_cloud.py", `    agent.send("step", id="create", label="Creating the machine", machine=wanted["id"], percent=0)
`, `    for step, percent in [("x", 10), ("y", 10), ("x", 20), ("y", 20), ("x", 100), ("y", 100), ("x", 50)]:
        agent.send("step", id=step, machine=wanted["id"], percent=percent)
    agent.send("step", id="create", label="Creating the machine", machine=wanted["id"], percent=0)
`)
	c := newLines(t, program)
	got, run := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	times := map[string]int{}
	for _, e := range run.events() {
		if strings.HasPrefix(e.Kind, "step_") && e.Kind != "step_declared" {
			times[e.Kind+" "+e.Action]++
		}
	}
	want := map[string]int{"step_started x": 1, "step_finished x": 1, "step_started y": 1, "step_finished y": 1, "step_started create": 1, "step_finished create": 1}
	if !maps.Equal(times, want) {
		t.Errorf("steps = %v, want %v", times, want)
	}
}

// Steps are told as they begin and end, and those that the template declares before any begins.
func TestStepsAreTold(t *testing.T) {
	t.Parallel()
	steps := func(run *child) (told []string) {
		for _, e := range run.events() {
			if kind, is := strings.CutPrefix(e.Kind, "step_"); is {
				told = append(told, strings.Join(strings.Fields(kind+" "+e.Address+" "+e.Action+" "+e.Message), " "))
			}
		}
		return told
	}
	want := func(t *testing.T, run *child, want ...string) {
		t.Helper()
		if got := steps(run); !slices.Equal(got, want) {
			t.Errorf("steps = %q, want %q", got, want)
		}
	}
	t.Run("of a provisioner", func(t *testing.T) {
		t.Parallel()
		c := newLines(t, example(t, "python/fake_cloud.py"))
		got, run := c.apply(provision.OperationApply, 2048, "a")
		wantEnd(t, got, provision.Success, "")
		// Its own label may have a password that it has not told of yet.
		want(t, run, "declared clone Creating VM from template", "started machine.m-a create create", "finished machine.m-a create create")
	})
	t.Run("of a provisioner, as the template calls them", func(t *testing.T) {
		t.Parallel()
		c := newLines(t, strings.ReplaceAll(example(t, "python/fake_cloud.py"), `id="create"`, `id="clone"`))
		got, run := c.apply(provision.OperationApply, 2048, "a")
		wantEnd(t, got, provision.Success, "")
		want(t, run, "declared clone Creating VM from template", "started machine.m-a clone Creating VM from template", "finished machine.m-a clone Creating VM from template")
	})
	t.Run("of commands around a script", func(t *testing.T) {
		t.Parallel()
		c := newCloud(t, true, 60)
		files := gittest.Text(map[string]string{
			"variables.tf": scriptVariables, "tendril.hcl": strings.Replace(fmt.Sprintf(scriptTemplate, true, 60), "machine {", `pre_provision_commands  = ["true"]
  post_provision_commands = ["test ! -e $TENDRIL_CLOUD_BROKEN"]
  machine {`, 1),
		})
		files["provision.sh"], files["terminate.sh"] = gittest.Executable(provisionScript), gittest.Executable(terminateScript)
		c.repo, _ = c.git.Repo("around", files, "v1")
		broken := filepath.Join(c.dir, "broken")
		c.env = append(c.env, "TENDRIL_CLOUD_BROKEN="+broken)
		const before, make, after = " machine.m-a before Commands before it is made", " machine.m-a make Making the machine", " machine.m-a after Commands after it is made"
		declared := []string{"declared before Commands before it is made", "declared make Making the machine", "declared after Commands after it is made"}
		got, run := c.apply(provision.OperationApply, 2048, "a")
		wantEnd(t, got, provision.Success, "")
		want(t, run, append(declared, "started"+before, "finished"+before, "started"+make, "finished"+make, "started"+after, "finished"+after)...)
	})
}

// What signs in to a machine leaves the agent sealed to who asked for it, where the agent's
// policy lets them, and stands nowhere else.
func TestReveal(t *testing.T) {
	t.Parallel()
	c := newCloud(t, true, 60)
	got, _ := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	id := c.recorded().Named("m-a").ID
	reveal := func(address string) (provision.Report, *child) {
		t.Helper()
		return c.act(provision.OperationState, map[string]any{"state": map[string]any{"command": "reveal", "args": []string{address}}})
	}
	got, _ = reveal("machine.m-a")
	wantEnd(t, got, provision.Failed, provision.CodeStateFailed) // nobody to seal it to
	c.job.RequesterRefused = "policy.requester_keys does not name the key"
	got, _ = reveal("machine.m-a")
	wantEnd(t, got, provision.Failed, provision.CodeOperationRefused)
	own, err := seal.Generate()
	if err != nil {
		t.Fatal(err)
	}
	c.job.Requester, c.job.RequesterRefused = own.Public(), ""
	got, run := reveal("machine.m-a")
	wantEnd(t, got, provision.Success, "")
	output := run.outputs()["credentials"]
	opened, err := own.Open([]byte(output.Sealed), 1<<20)
	if want := fmt.Sprintf(`{"root_password":"hunter2-%s"}`, id); err != nil || string(opened) != want || !output.Sensitive || output.Value != nil {
		t.Errorf("the output credentials = %+v, which opens as %s, %v, want %s", output, opened, err, want)
	}
	run.mu.Lock()
	reports, err := json.Marshal(run.reports)
	run.mu.Unlock()
	if err != nil || strings.Contains(run.text()+string(reports), "hunter2") {
		t.Errorf("the log or a report has the password (%v):\n%s\n%s", err, run.text(), reports)
	}
	got, _ = reveal("machine.m-x")
	wantEnd(t, got, provision.Failed, provision.CodeStateFailed)

	// All machines by one run.
	got, _ = c.apply(provision.OperationApply, 2048, "a", "b")
	wantEnd(t, got, provision.Success, "")
	got, run = c.act(provision.OperationState, map[string]any{"state": map[string]any{"command": "reveal"}})
	wantEnd(t, got, provision.Success, "")
	var all []provision.HandedOut
	if opened, err = own.Open([]byte(run.outputs()["credentials"].Sealed), 1<<20); err != nil || json.Unmarshal(opened, &all) != nil {
		t.Fatalf("the output credentials of all opens as %s, %v", opened, err)
	}
	want := []provision.HandedOut{}
	for _, name := range []string{"m-a", "m-b"} {
		m := c.recorded().Named(name)
		want = append(want, provision.HandedOut{Name: name, Address: m.Address, Port: 2222, User: "root", Password: "hunter2-" + m.ID, Command: "ssh -p 2222 root@" + m.Address, Others: map[string]string{}})
	}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("all credentials = %+v, want %+v", all, want)
	}
	if strings.Contains(run.text(), "hunter2") || !strings.Contains(run.text(), "The credentials of all machines are sealed to") {
		t.Errorf("the log of a reveal of all machines:\n%s", run.text())
	}
}

// Labels follow the template, and replace no machine.
func TestLabelsFollowTheTemplate(t *testing.T) {
	t.Parallel()
	c := newCloud(t, true, 60)
	files := gittest.Text(map[string]string{
		"variables.tf": scriptVariables + `variable "note" { default = "" }`,
		"tendril.hcl": strings.Replace(fmt.Sprintf(scriptTemplate, true, 60), `image    = "debian"`, `image    = "debian"
    labels   = { note = var.note, all = length(var.names) }`, 1),
	})
	files["provision.sh"], files["terminate.sh"] = gittest.Executable(provisionScript), gittest.Executable(terminateScript)
	c.repo, _ = c.git.Repo("labels", files, "v1")
	for _, step := range []struct {
		names []string
		note  string
		want  string
	}{
		{[]string{"a"}, "first", "m-a map[all:1 note:first]"},
		{[]string{"a"}, "second", "m-a map[all:1 note:second]"},
		{[]string{"a", "b"}, "second", "m-a map[all:2 note:second]; m-b map[all:2 note:second]"},
	} {
		c.ask(c.repo.URL, "v1", "", map[string]any{"cloud": c.dir, "names": step.names, "note": step.note})
		got, run := c.act(provision.OperationApply, nil)
		wantEnd(t, got, provision.Success, "")
		listed := func(all []provision.Machine) string {
			var words []string
			for _, m := range all {
				words = append(words, fmt.Sprint(m.Name, " ", m.Labels))
			}
			return strings.Join(words, "; ")
		}
		if is := listed(run.machines()); is != step.want {
			t.Errorf("machines = %q, want %q", is, step.want)
		}
		if is := listed(c.recorded().Listed()); is != step.want {
			t.Errorf("recorded are %q, want %q", is, step.want)
		}
	}
	if made := c.made(); !slices.Equal(made, []int{1, 1}) {
		t.Errorf("machines were made %v times, want once each", made)
	}
}
