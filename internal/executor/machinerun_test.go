package executor_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	machinestate "github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// cloud is a directory in which each file is a machine: its name is the id that Tendril
// gave the machine, and each line in it is one time that it was made.
type cloud struct {
	*site
	m    *managed
	dir  string
	repo *gittest.Repo
}

const scriptVariables = `
variable "cloud"    { type = string }
variable "names"    { type = set(string) }
variable "memory"   {
  type    = number
  default = 2048
}
variable "password" {
  type      = string
  sensitive = true
  default   = "correct horse battery staple"
}
`

const scriptTemplate = `
title = "Fake machine"
provisioner "script" {
  speak        = "once"
  provision    = ["./provision.sh"]
  terminate    = ["./terminate.sh", "--now"]
  idempotent   = %t
  timeout      = %d
  machine {
    for_each = var.names
    name     = "m-${each.key}"
    image    = "debian"
    cores    = 2
    memory   = var.memory
    static {
      password = var.password
    }
  }
}
`

// scriptHead reads the request. What a template's commands get is JSON on one line.
const scriptHead = `#!/bin/sh
set -eu
read -r request
field() { printf '%s' "$request" | sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }
id=$(field contract_id) cloud=$(field cloud)
`

const provisionScript = scriptHead + `
echo "making $id" >&2
[ -e "$cloud/odd" ] && . "$cloud/odd"
echo made >> "$cloud/$id"
[ -e "$cloud/late" ] && . "$cloud/late"
printf '{"success": true, "instance": {"external_id": "vm-%s", "ip_address": "10.0.0.7", "ssh_port": 2222, "root_password": "hunter2-%s"}}\n' "$id" "$id"
[ -e "$cloud/said" ] && . "$cloud/said"
exit 0
`

const terminateScript = scriptHead + `
[ "$1" = --now ]
[ -e "$cloud/odd" ] && . "$cloud/odd"
rm -f "$cloud/$id"
[ -e "$cloud/late" ] && . "$cloud/late"
echo '{"success": true}'
[ -e "$cloud/said" ] && . "$cloud/said"
exit 0
`

func newCloud(t *testing.T, idempotent bool, timeout int) *cloud {
	t.Helper()
	s := newSite(t)
	c := &cloud{site: s, m: s.manage(), dir: t.TempDir()}
	c.job.Settings.Policy.PlainSensitive = true
	files := gittest.Text(map[string]string{
		"variables.tf": scriptVariables, "tendril.hcl": fmt.Sprintf(scriptTemplate, idempotent, timeout),
	})
	files["provision.sh"], files["terminate.sh"] = gittest.Executable(provisionScript), gittest.Executable(terminateScript)
	c.repo, _ = s.git.Repo("machines", files, "v1")
	return c
}

func (c *cloud) apply(operation provision.Operation, memory int, names ...string) (provision.Report, *child) {
	c.t.Helper()
	c.prepare(operation, memory, names...)
	got, run := c.run()
	c.store(run)
	return got, run
}

// prepare asks for a run without starting it.
func (c *cloud) prepare(operation provision.Operation, memory int, names ...string) {
	c.t.Helper()
	c.ask(c.repo.URL, "v1", "", map[string]any{"cloud": c.dir, "names": names, "memory": memory})
	c.job.Assignment.Operation = operation
	c.job.Assignment.ClaimID, c.job.Assignment.ProvisionID = uuid.New(), uuid.New()
}

// made are how often each machine of the cloud was made, in order.
func (c *cloud) made() (times []int) {
	c.t.Helper()
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range entries {
		if _, err := uuid.Parse(e.Name()); err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(c.dir, e.Name()))
		if err != nil {
			c.t.Fatal(err)
		}
		times = append(times, strings.Count(string(text), "made\n"))
	}
	return times
}

// does has the cloud's scripts do something: "odd" before, "late" after the machine is made or
// destroyed, "said" after they have answered.
func (c *cloud) does(when, what string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, when), []byte(what), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// awaitFile waits until a file is in the cloud, or no longer is.
func (c *cloud) awaitFile(run *child, name string, there bool) {
	c.t.Helper()
	for limit := patience.Begin(deadline); ; {
		_, err := os.Stat(filepath.Join(c.dir, name))
		if (err == nil) == there {
			return
		}
		select {
		case <-run.over:
			c.t.Fatalf("the run ended before the file %s was there: %t\n%s", name, there, run.text())
		case <-time.After(10 * time.Millisecond):
		}
		if limit.Over() {
			c.t.Fatalf("timed out waiting for the file %s to be there: %t", name, there)
		}
	}
}

func (c *cloud) doesNothing() {
	c.t.Helper()
	for _, when := range []string{"odd", "late", "said", "held"} {
		if err := os.Remove(filepath.Join(c.dir, when)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.t.Fatal(err)
		}
	}
}

func (c *cloud) recorded() *machinestate.State {
	c.t.Helper()
	s, err := machinestate.Read(c.m.state)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// A life of machines that a script makes: planned, made, left alone, replaced, destroyed.
func TestMachinesOfAScript(t *testing.T) {
	t.Parallel()
	c := newCloud(t, false, 60)
	steps := []struct {
		operation                     provision.Operation
		memory                        int
		names                         []string
		add, change, replace, destroy int
		made                          []int
		listed                        string
	}{
		{provision.OperationPlan, 2048, []string{"a", "b"}, 2, 0, 0, 0, nil, "none said"},
		{provision.OperationApply, 2048, []string{"a", "b"}, 2, 0, 0, 0, []int{1, 1}, "m-a running 2048 10.0.0.7:2222, m-b running 2048 10.0.0.7:2222"},
		{provision.OperationApply, 2048, []string{"a", "b"}, 0, 0, 0, 0, []int{1, 1}, "m-a running 2048 10.0.0.7:2222, m-b running 2048 10.0.0.7:2222"},
		{provision.OperationApply, 4096, []string{"a", "b"}, 0, 0, 2, 0, []int{1, 1}, "m-a running 4096 10.0.0.7:2222, m-b running 4096 10.0.0.7:2222"},
		{provision.OperationApply, 4096, []string{"b", "c"}, 1, 0, 0, 1, []int{1, 1}, "m-b running 4096 10.0.0.7:2222, m-c running 4096 10.0.0.7:2222"},
		{provision.OperationDestroy, 4096, []string{"b", "c"}, 0, 0, 0, 2, nil, ""},
		{provision.OperationDestroy, 4096, []string{"b", "c"}, 0, 0, 0, 0, nil, ""},
	}
	for i, step := range steps {
		got, run := c.apply(step.operation, step.memory, step.names...)
		wantEnd(t, got, provision.Success, "")
		plan := last(run, func(d provision.Detail) *provision.PlanSummary { return d.Plan })
		if plan == nil || plan.Add != step.add || plan.Change != step.change || plan.Replace != step.replace || plan.Destroy != step.destroy {
			t.Errorf("step %d: plan = %+v, want +%d ~%d ±%d -%d", i, plan, step.add, step.change, step.replace, step.destroy)
		}
		if made := c.made(); !slices.Equal(made, step.made) {
			t.Errorf("step %d: the cloud has machines made %v times, want %v", i, made, step.made)
		}
		if listed := listedMachines(run); listed != step.listed {
			t.Errorf("step %d: machines = %q, want %q", i, listed, step.listed)
		}
		if text := run.text(); strings.Contains(text, "hunter2") || strings.Contains(text, "battery staple") {
			t.Errorf("step %d: the log has a password", i)
		}
		for _, r := range run.reports {
			if text, err := json.Marshal(r); err != nil || strings.Contains(string(text), "hunter2") || strings.Contains(string(text), "battery staple") {
				t.Errorf("step %d: a report has a password, or %v", i, err)
			}
		}
		if i == 1 {
			resources := run.resources()
			if len(resources) != 2 || resources[0].Address != "machine.m-a" || resources[0].Status != "created" ||
				!slices.Equal(resources[0].IPAddresses, []string{"10.0.0.7"}) || !strings.HasPrefix(resources[0].ExternalID, "vm-") {
				t.Errorf("resources = %+v, want both machines with id and address", resources)
			}
			if m := c.recorded().Named("m-a"); m.Credentials["root_password"] != "hunter2-"+m.ID || m.SSHPort != 2222 {
				t.Errorf("the state has %+v, want the password and the port in it", m.Machine)
			}
		}
	}
}

// listedMachines are those that a run reported last, as words.
func listedMachines(c *child) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	said := "none said"
	for _, r := range c.reports {
		if r.Detail.Machines == nil {
			continue
		}
		var words []string
		for _, m := range r.Detail.Machines {
			words = append(words, fmt.Sprintf("%s %s %d %s:%d", m.Name, m.Status, m.MemoryMiB, strings.Join(m.IPAddresses, " "), m.SSHPort))
		}
		said = strings.Join(words, ", ")
	}
	return said
}

// A Terraform template says in an output which machines it has made. What is wrong with it
// is said, and fails nothing.
func TestMachinesOfTerraform(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	repo := s.template(map[string]string{"main.tf": `variable "names" { type = list(string) }
variable "odd" { default = null }
resource "terraform_data" "vm" { for_each = toset(var.names) }
output "machines" {
  value = merge({ for name, vm in terraform_data.vm : name => { address = "10.0.0.7", memory = 512, ssh_port = 22, resource = "terraform_data.vm[\"${name}\"]" } },
    var.odd == null ? {} : { odd = { memory = var.odd } })
}
`}, map[string]any{"names": []string{"a", "b"}})
	for i, step := range []struct {
		operation provision.Operation
		names     []string
		odd       any
		targets   []string
		listed    string
		says      string
	}{
		{provision.OperationPlan, []string{"a", "b"}, nil, nil, "none said", ""},
		{provision.OperationApply, []string{"a", "b"}, nil, nil, "a running 512 10.0.0.7:22, b running 512 10.0.0.7:22", ""},
		{provision.OperationApply, []string{"a", "b"}, nil, []string{`terraform_data.vm["a"]`}, "a running 512 10.0.0.7:22, b running 512 10.0.0.7:22", ""},
		{provision.OperationDestroy, []string{"a", "b"}, nil, []string{`terraform_data.vm["a"]`}, "b running 512 10.0.0.7:22", ""},
		{provision.OperationApply, []string{"b"}, "much", nil, "b running 512 10.0.0.7:22, odd unknown 0 :0", `"odd" is listed without what is said of it: memory must be a whole number`},
		{provision.OperationApply, []string{"b"}, 1, nil, "b running 512 10.0.0.7:22, odd running 1 :0", ""},
		{provision.OperationDestroy, []string{"b"}, nil, nil, "", ""},
	} {
		s.ask(repo.URL, "v1", "", map[string]any{"names": step.names, "odd": step.odd})
		if step.targets != nil {
			s.with("targets", step.targets)
		}
		s.job.Assignment.Operation = step.operation
		s.job.Assignment.ClaimID, s.job.Assignment.ProvisionID = uuid.New(), uuid.New()
		got, run := s.run()
		wantEnd(t, got, provision.Success, "")
		if listed := listedMachines(run); listed != step.listed {
			t.Errorf("step %d: machines = %q, want %q", i, listed, step.listed)
		}
		if text := run.text(); !strings.Contains(text, step.says) || step.says == "" && strings.Contains(text, "the output machines") {
			t.Errorf("step %d: the log should say %q:\n%s", i, step.says, text)
		}
	}
}

// Where a new version of a template makes the output sensitive, its machines stay as they were
// reported: they are neither listed by what only some may see, nor gone.
func TestMachinesOfAnOutputThatTurnsSensitive(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	main := `variable "names" { type = list(string) }
resource "terraform_data" "vm" { for_each = toset(var.names) }
output "machines" {
  value = { for name in keys(terraform_data.vm) : name => { address = "10.0.0.7" } }
}
`
	repo := s.template(map[string]string{"main.tf": main}, nil)
	repo.Tag("v2", repo.Commit(gittest.Text(map[string]string{"main.tf": strings.Replace(main, "  value", "  sensitive = true\n  value", 1)})))
	for i, step := range []struct {
		version   string
		operation provision.Operation
		names     []string
		listed    string
		says      bool
	}{
		{"v1", provision.OperationApply, []string{"a"}, "a running 0 10.0.0.7:0", false},
		{"v2", provision.OperationApply, []string{"a"}, "none said", true},
		{"v2", provision.OperationApply, []string{"b"}, "none said", true},
		{"v1", provision.OperationApply, []string{"b"}, "b running 0 :0", false}, // what was sensitive until now is masked
		{"v1", provision.OperationApply, []string{"b"}, "b running 0 10.0.0.7:0", false},
		{"v2", provision.OperationDestroy, []string{"b"}, "", false},
	} {
		s.ask(repo.URL, step.version, "", map[string]any{"names": step.names})
		s.job.Assignment.Operation = step.operation
		s.job.Assignment.ClaimID, s.job.Assignment.ProvisionID = uuid.New(), uuid.New()
		got, run := s.run()
		wantEnd(t, got, provision.Success, "")
		if listed := listedMachines(run); listed != step.listed {
			t.Errorf("step %d: machines = %q, want %q", i, listed, step.listed)
		}
		if text := run.text(); strings.Contains(text, "those that are listed stay as they were, and new ones are not listed") != step.says {
			t.Errorf("step %d: whether the log says why no machine is listed, want %t:\n%s", i, step.says, text)
		}
	}
}

// Whatever a script answers, or does not: the error is clear, and a machine that may exist
// is not forgotten.
func TestOddAnswersOfAScript(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		when, does string
		says       string
		known      bool // that there is no machine, or one
		exists     bool
	}{
		"an error":              {"odd", `echo '{"success": false, "error": "Out of storage space", "retry_possible": true}'; exit 0`, "Out of storage space. It may work later: deploy again", true, false},
		"nonsense":              {"late", `echo 'made it'; exit 0`, "stdout is not JSON", false, true},
		"half a line":           {"late", `printf '{"success": tr'; exit 0`, "stdout ended in the middle of a JSON document", false, true},
		"nothing":               {"late", `exit 0`, "stdout is empty", false, true},
		"too much":              {"late", `head -c 100000000 /dev/zero; exit 0`, "stdout has more than", false, true},
		"an exit after success": {"late", `echo '{"success": true, "instance": {"external_id": "vm-1"}}'; exit 1`, "exit status 1", false, true},
		"no end":                {"late", `sleep 1000`, "took longer than 5s", false, true},
		"killed":                {"late", `kill -9 $$`, "ended by a signal", false, true},
		"success without an id": {"late", `echo '{"success": true}'; exit 0`, "instance.external_id", false, true},
		"a failure that left a machine": {"late", `echo '{"success": false, "error": "no network", "instance": {"external_id": "vm-2"}}'; exit 0`,
			"no network", true, true},
		"a part of it": {"late", `echo '{"success": true, "status": "partial", "stages_completed": ["clone"], "instance": {"external_id": "vm-3"}}'; exit 0`, "[clone]", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := 60
			if name == "no end" {
				limit = 5
			}
			c := newCloud(t, false, limit)
			c.does(tt.when, tt.does)
			got, run := c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
			if !strings.Contains(got.Detail.ErrorMessage, tt.says) {
				t.Errorf("the message is %q, want %q in it", got.Detail.ErrorMessage, tt.says)
			}
			m := c.recorded().Named("m-a")
			if exists := m != nil; exists != tt.exists {
				t.Fatalf("the state has the machine: %t, want %t", exists, tt.exists)
			}
			if m != nil && (m.Intent == nil) != tt.known {
				t.Errorf("the state has the intent %v, want what became of the machine known: %t", m.Intent, tt.known)
			}
			if len(run.text()) > 1<<20 {
				t.Error("what the script wrote to stdout is in the log")
			}
			c.doesNothing()
			got, _ = c.apply(provision.OperationApply, 2048, "a")
			if tt.known { // made or replaced
				wantEnd(t, got, provision.Success, "")
				return
			}
			wantEnd(t, got, provision.Failed, provision.CodePlanFailed)
			if want := "trellis state import WORKSPACE machine.m-a EXTERNAL_ID"; !strings.Contains(got.Detail.ErrorMessage, want) {
				t.Errorf("the message is %q, want %q in it", got.Detail.ErrorMessage, want)
			}
			if made := c.made(); !slices.Equal(made, []int{1}) {
				t.Errorf("the machine was made %v times, want once", made)
			}
		})
	}
}

// Whatever is killed whenever a script is at work: it is asked again for the same machine,
// and after the next run none is there twice, and none is forgotten.
func TestKilledWhileAScriptIsAtWork(t *testing.T) {
	t.Parallel()
	for _, work := range []struct {
		name      string
		exist     bool // a machine before it
		operation provision.Operation
		memory    int
		left      int // machines after it
	}{
		{"create", false, provision.OperationApply, 2048, 1},
		{"replace", true, provision.OperationApply, 4096, 1},
		{"destroy", true, provision.OperationDestroy, 2048, 0},
	} {
		for _, moment := range drawn(1, "odd", "late", "said") {
			for _, victim := range victims() {
				t.Run(strings.Join([]string{work.name, moment, victim}, "/"), func(t *testing.T) {
					t.Parallel()
					c := newCloud(t, true, 600)
					if work.exist {
						got, _ := c.apply(provision.OperationApply, 2048, "a")
						wantEnd(t, got, provision.Success, "")
					}
					c.does(moment, `rm "$cloud/`+moment+`"; echo $$ >"$cloud/held.new"; mv "$cloud/held.new" "$cloud/held"; sleep 1000`)
					c.prepare(work.operation, work.memory, "a")
					run := c.start()
					c.kill(run, victim)
					c.store(run)
					before := c.recorded().Named("m-a")
					if moment != "said" && (before == nil || before.Intent == nil) {
						t.Errorf("the state has %+v, want the intent of what was being done", before)
					}
					c.doesNothing()
					got, again := c.apply(work.operation, work.memory, "a")
					wantEnd(t, got, provision.Success, "")
					after := c.recorded().Named("m-a")
					switch there := len(c.made()); {
					case there != work.left || (after != nil) != (work.left > 0):
						t.Errorf("%d machines exist and %+v is recorded, want %d\n%s", there, after, work.left, again.text())
					case after != nil && (after.InDoubt() || after.Status != "running" || before != nil && after.ID != before.ID):
						t.Errorf("the machine is %+v, want the same one, and running\n%s", after, again.text())
					}
				})
			}
		}
	}
}

// Whether a script that is not idempotent has made a machine before its run was killed is for
// a person to say.
func TestRunKilledWhileAMachineIsMade(t *testing.T) {
	t.Parallel()
	c := newCloud(t, false, 600)
	c.does("late", `echo $$ >"$cloud/held.new"; mv "$cloud/held.new" "$cloud/held"; sleep 1000`)
	c.prepare(provision.OperationApply, 2048, "a")
	run := c.start()
	c.kill(run, "exec")
	c.store(run)
	c.doesNothing()
	got, _ := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Failed, provision.CodePlanFailed)
	for _, command := range []string{
		`{"command": "import", "args": ["machine.m-a", "vm-found"]}`,
		`{"command": "rm", "args": ["machine.m-a"]}`,
	} {
		c.stateCommand(command)
	}
	if c.recorded().Named("m-a") != nil {
		t.Error("the machine is still recorded after it was forgotten")
	}
}

// A machine that an earlier run may have made is not given up because the cloud does not
// answer now.
func TestUnreachableCloudEndsNoMachine(t *testing.T) {
	t.Parallel()
	c := newCloud(t, true, 60)
	c.does("late", `exit 0`) // made, and nothing said
	got, _ := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
	before := c.recorded().Named("m-a")
	c.doesNothing()
	c.does("odd", `echo '{"success": false, "error": "unreachable", "retry_possible": true}'; exit 0`)
	got, _ = c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
	c.doesNothing()
	got, _ = c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	if after := c.recorded().Named("m-a"); before == nil || after.ID != before.ID || len(c.made()) != 1 {
		t.Errorf("%d machines exist, recorded is %+v, want the one from before, %+v", len(c.made()), after, before)
	}
}

// A machine is destroyed with the settings that it was made with, whatever they are now.
func TestMachineIsDestroyedAsItWasMade(t *testing.T) {
	t.Parallel()
	c := newCloud(t, false, 60)
	got, _ := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	was := c.dir
	c.dir = t.TempDir()
	got, _ = c.apply(provision.OperationApply, 4096, "a") // replaced, elsewhere
	wantEnd(t, got, provision.Success, "")
	there := c.made()
	c.dir = was
	if left := c.made(); len(left) > 0 || len(there) != 1 {
		t.Errorf("%d machines are left in the old cloud and %d in the new one, want none and 1", len(left), len(there))
	}
}

// What the database does not acknowledge is not done, and is forgotten again.
func TestRefusedIntentLeavesAllAsItWas(t *testing.T) {
	t.Parallel()
	c := newCloud(t, false, 60)
	got, _ := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	c.refuse = func(_ *child, r provision.Report) *provision.Failure {
		if len(r.Detail.Events) > 0 && r.Detail.Events[0].Kind == "machine_intent" {
			return provision.Fail(provision.CodeCancelled, "cancelled", nil)
		}
		return nil
	}
	got, _ = c.apply(provision.OperationApply, 2048, "b")
	if got.Status == provision.Success {
		t.Error("the run whose intents were refused succeeded")
	}
	c.refuse = nil
	got, run := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Success, "")
	if plan := last(run, func(d provision.Detail) *provision.PlanSummary { return d.Plan }); plan == nil || !plan.Empty() {
		t.Errorf("the plan after it = %+v, want nothing to do", plan)
	}
}

// Commands after a machine is made belong to the making: when they do not end well it is
// replaced. They can't hang, and what they leave running is ended.
func TestCommandsAfterAMachineIsMade(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		command, says string
	}{
		"well":               {`echo "$TENDRIL_MACHINE at $TENDRIL_ADDRESS"`, "m-a at 10.0.0.7"},
		"leaves a process":   {`echo "$TENDRIL_MACHINE at $TENDRIL_ADDRESS"; sleep 1000 &`, "m-a at 10.0.0.7"},
		"an error":           {`exit 3`, "exit status 3"},
		"longer than it may": {`sleep 1000`, "took longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t, false, 60)
			limit := 60
			if strings.HasPrefix(name, "longer") {
				limit = 5
			}
			hcl := strings.Replace(fmt.Sprintf(scriptTemplate, false, limit), "  machine {", fmt.Sprintf("  post_provision_commands = [%q]\n  machine {", tt.command), 1)
			files := gittest.Text(map[string]string{"variables.tf": scriptVariables, "tendril.hcl": hcl})
			files["provision.sh"], files["terminate.sh"] = gittest.Executable(provisionScript), gittest.Executable(terminateScript)
			c.repo, _ = c.git.Repo("after", files, "v1")
			got, run := c.apply(provision.OperationApply, 2048, "a")
			if strings.HasPrefix(tt.says, "m-a") {
				wantEnd(t, got, provision.Success, "")
				if !strings.Contains(run.text(), tt.says) || c.recorded().Named("m-a").Status != "running" {
					t.Errorf("the log has no %q, or the machine is not running", tt.says)
				}
				return
			}
			wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
			if !strings.Contains(got.Detail.ErrorMessage, tt.says) || c.recorded().Named("m-a").Status != "failed" {
				t.Errorf("the message is %q and the machine %+v, want %q, and failed", got.Detail.ErrorMessage, c.recorded().Named("m-a"), tt.says)
			}
		})
	}
}

// stateCommand has a person change the state.
func (c *cloud) stateCommand(command string) {
	c.t.Helper()
	var snapshot map[string]any
	var state any
	if err := errors.Join(json.Unmarshal(c.job.Assignment.Snapshot, &snapshot), json.Unmarshal([]byte(command), &state)); err != nil {
		c.t.Fatal(err)
	}
	snapshot["state"] = state
	text, err := json.Marshal(snapshot)
	if err != nil {
		c.t.Fatal(err)
	}
	before := c.job.Assignment
	defer func() { c.job.Assignment = before }()
	c.job.Assignment.Snapshot, c.job.Assignment.Operation = text, provision.OperationState
	got, run := c.run()
	wantEnd(c.t, got, provision.Success, "")
	c.store(run)
}

// Nothing is made before the database has acknowledged that it is about to be.
func TestNothingIsMadeWithoutAnAcknowledgedIntent(t *testing.T) {
	t.Parallel()
	c := newCloud(t, false, 60)
	c.refuse = func(_ *child, r provision.Report) *provision.Failure {
		if len(r.Detail.Events) > 0 && r.Detail.Events[0].Kind == "machine_intent" {
			return provision.Fail(provision.CodeAgentLost, "the claim is lost", nil)
		}
		return nil
	}
	got, _ := c.apply(provision.OperationApply, 2048, "a", "b")
	if got.Status != provision.Failed {
		t.Errorf("the run ended %s, want FAILED", got.Status)
	}
	if made := c.made(); len(made) > 0 {
		t.Errorf("%d machines were made without an acknowledgement", len(made))
	}
}

// A plan that was approved is the one that is carried out, and only on the state that it
// was made from. What is hidden is not in it for people.
func TestApprovedPlanOfMachines(t *testing.T) {
	t.Parallel()
	c := newCloud(t, false, 60)
	c.job.Assignment.Approval = provision.ApprovalAlways
	c.ask(c.repo.URL, "v1", "", map[string]any{"cloud": c.dir, "names": []string{"a"}, "memory": 2048})
	digest, run := c.awaits()
	plan := last(run, func(d provision.Detail) *provision.PlanSummary { return d.Plan })
	var shown []string
	for _, a := range plan.Resources[0].Attributes {
		shown = append(shown, fmt.Sprintf("%s=%s hidden %t", a.Path, a.After, a.Sensitive))
	}
	if want := []string{"cores=2 hidden false", `image="debian" hidden false`, "memory=2048 hidden false", "static.password= hidden true"}; !slices.Equal(shown, want) {
		t.Errorf("the plan shows %q, want %q", shown, want)
	}
	if len(c.made()) > 0 {
		t.Error("a machine was made before the plan was approved")
	}
	c.job.Assignment.ApprovedPlan = digest
	got, run := c.run()
	wantEnd(t, got, provision.Success, "")
	c.store(run)
	if made := c.made(); !slices.Equal(made, []int{1}) {
		t.Errorf("the machine was made %v times, want once", made)
	}
	got, run = c.run()
	wantEnd(t, got, provision.Failed, provision.CodePlanStale)
	c.store(run)
}

// What a template runs outside of itself is for the agent's policy to allow.
func TestProgramsOutsideOfTheTemplate(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "provision.sh")
	if err := os.WriteFile(outside, []byte(provisionScript), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, allowed := range []bool{true, false} {
		c := newCloud(t, false, 60)
		files := gittest.Text(map[string]string{"variables.tf": scriptVariables,
			"tendril.hcl": strings.Replace(fmt.Sprintf(scriptTemplate, false, 60), `"./provision.sh"`, fmt.Sprintf("%q", outside), 1)})
		files["terminate.sh"] = gittest.Executable(terminateScript)
		c.repo, _ = c.git.Repo("outside", files, "v1")
		if allowed {
			c.job.Settings.Policy.Programs = []string{outside}
		}
		got, _ := c.apply(provision.OperationApply, 2048, "a")
		if allowed {
			wantEnd(t, got, provision.Success, "")
		} else {
			wantEnd(t, got, provision.Failed, provision.CodePolicyRefused)
		}
		if made := len(c.made()) > 0; made != allowed {
			t.Errorf("allowed %t: a machine was made: %t", allowed, made)
		}
	}
}

// Machines need a managed state, and a state of another kind is not touched.
func TestMachinesNeedTheirOwnManagedState(t *testing.T) {
	t.Parallel()
	c := newCloud(t, false, 60)
	c.m.state = []byte(`{"version": 4, "serial": 3, "lineage": "x", "resources": []}`)
	got, _ := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Failed, provision.CodeStateInvalid)
	c.job.Settings.State.Default = ""
	got, _ = c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Failed, provision.CodeStateFailed)
	if len(c.made()) > 0 {
		t.Error("a machine was made without a state to record it in")
	}
}
