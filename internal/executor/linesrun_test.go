package executor_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/executor"
	"github.com/tendril-run/tendril/internal/process"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

const linesTemplate = `
title = "Class"
icon  = "people"
provisioner "script" {
  speak   = "lines"
  command = ["./provisioner"]
  timeout = 60
  machine {
    for_each = var.names
    name     = "m-${each.key}"
    image    = "debian"
    cores    = 2
    memory   = var.memory
  }
}
step "clone" { label = "Creating VM from template" }
`

// newLines is a site whose template is carried out by one of the examples, or by a program
// of the test's own.
func newLines(t *testing.T, program string) *cloud {
	t.Helper()
	s := newSite(t)
	c := &cloud{site: s, m: s.manage(), dir: filepath.Join(t.TempDir(), "cloud")}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "FAKE_CLOUD="+c.dir)
	s.job.Settings.Policy.PlainSensitive = true
	files := gittest.Text(map[string]string{"variables.tf": scriptVariables, "tendril.hcl": linesTemplate})
	files["provisioner"] = gittest.Executable(program)
	c.repo, _ = s.git.Repo("machines", files, "v1")
	return c
}

func example(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "examples", "provisioners", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// machinesThere are how many machines the examples' cloud has.
func (c *cloud) machinesThere() int {
	c.t.Helper()
	found, err := filepath.Glob(filepath.Join(c.dir, "vm-*"))
	if err != nil {
		c.t.Fatal(err)
	}
	return len(found)
}

// The shipped examples carry out the same life of machines as a script that is asked once.
func TestMachinesOfAProvisioner(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{"bash": "bash/fake-cloud", "python": "python/fake_cloud.py"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newLines(t, example(t, path))
			for i, step := range []struct {
				operation provision.Operation
				memory    int
				names     []string
				changes   int
				there     int
			}{
				{provision.OperationPlan, 2048, []string{"a", "b"}, 2, 0},
				{provision.OperationApply, 2048, []string{"a", "b"}, 2, 2},
				{provision.OperationApply, 2048, []string{"a", "b"}, 0, 2},
				{provision.OperationApply, 4096, []string{"b", "c"}, 3, 2},
				{provision.OperationDestroy, 4096, []string{"b", "c"}, 2, 0},
			} {
				got, run := c.apply(step.operation, step.memory, step.names...)
				wantEnd(t, got, provision.Success, "")
				plan := last(run, func(d provision.Detail) *provision.PlanSummary { return d.Plan })
				if plan == nil || len(plan.Resources) != step.changes {
					t.Errorf("step %d: plan = %+v, want %d changes", i, plan, step.changes)
				}
				if there := c.machinesThere(); there != step.there {
					t.Errorf("step %d: %d machines exist, want %d", i, there, step.there)
				}
				if recorded := len(run.resources()); step.operation == provision.OperationApply && recorded != step.there {
					t.Errorf("step %d: %d machines are recorded, want %d", i, recorded, step.there)
				}
				if t.Failed() {
					t.Fatal(run.text())
				}
			}
			for _, m := range c.recorded().Machines {
				t.Errorf("%s is recorded after all were destroyed", m.Wanted.Name)
			}
		})
	}
}

// A provisioner that breaks a rule of the protocol is ended with a clear error, and what it
// was allowed to make is not forgotten.
func TestProvisionerThatBreaksTheRules(t *testing.T) {
	t.Parallel()
	const speak = `#!/bin/sh
read -r request
id=$(printf '%%s' "$request" | sed -n 's/.*"id":"\([^"]*\)","name":"m-a".*/\1/p')
case $request in
*'"type":"describe"'*) echo '{"type": "result", "ok": true, "protocol": "tendril-provisioner/1", "actions": ["plan", "apply", "destroy"]}' ;;
*'"type":"plan"'*) printf '{"type": "change", "machine": "%%s", "action": "create"}\n{"type": "result", "ok": true, "plan": 1}\n' "$id" ;;
*) %s ;;
esac
`
	const intent = `printf '{"type": "intent", "id": "1", "machine": "%s", "action": "create", "name": "m-a"}\n' "$id"; read -r ack; `
	for name, tt := range map[string]struct {
		does, says string
		known      bool // that there is no machine
	}{
		"a machine without an intent":     {`printf '{"type": "machine", "id": "%s", "status": "running"}\n' "$id"; echo '{"type": "result", "ok": true}'`, "intent", true},
		"a machine of somebody else":      {intent + `echo '{"type": "machine", "id": "` + uuid.NewString() + `", "status": "running"}'; echo '{"type": "result", "ok": true}'`, "is not one of the request's", false},
		"all is done, it says":            {intent + `echo '{"type": "result", "ok": true}'`, "that is not so for machine.m-a", false},
		"it failed, and all is done":      {intent + `printf '{"type": "machine", "id": "%s", "status": "failed"}\n{"type": "result", "ok": true}\n' "$id"`, "that is not so for machine.m-a", true},
		"nothing is done":                 {`echo '{"type": "result", "ok": true}'`, "that is not so for machine.m-a", true},
		"no result":                       {intent + `exit 0`, "result", false},
		"half a line":                     {intent + `printf '{"type": "mach'`, "middle", false},
		"a message that there is not":     {intent + `echo '{"type": "hello"}'`, "hello", false},
		"an error, before it is made":     {`echo '{"type": "result", "ok": false, "code": "no_capacity", "message": "There is no room in the cloud.", "retry": true}'`, "There is no room in the cloud. It may work later: deploy again", true},
		"its end by a signal":             {intent + `kill -9 $$`, "signal", false},
		"an end with 1 after a good word": {intent + `echo '{"type": "result", "ok": true}'; exit 1`, "exit status 1", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newLines(t, fmt.Sprintf(speak, tt.does))
			got, _ := c.apply(provision.OperationApply, 2048, "a")
			wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
			if !strings.Contains(got.Detail.ErrorMessage, tt.says) {
				t.Errorf("the message is %q, want %q in it", got.Detail.ErrorMessage, tt.says)
			}
			if len(c.m.state) == 0 { // nothing was about to be made
				if !tt.known {
					t.Error("nothing is recorded of what was about to be made")
				}
				return
			}
			if m := c.recorded().Named("m-a"); (m == nil || m.Intent == nil) != tt.known {
				t.Errorf("the state has %+v, want it known what became of the machine: %t", m, tt.known)
			}
		})
	}
}

// A program that ends in order when its time is over is not said to have been cancelled.
func TestProvisionerTakesTooLong(t *testing.T) {
	t.Parallel()
	c := newLines(t, "")
	files := gittest.Text(map[string]string{"variables.tf": scriptVariables, "tendril.hcl": strings.Replace(linesTemplate, "timeout = 60", "timeout = 5", 1)})
	files["provisioner"] = gittest.Executable(`#!/bin/sh
read -r request
id=$(printf '%s' "$request" | sed -n 's/.*"id":"\([^"]*\)","name":"m-a".*/\1/p')
case $request in
*'"type":"describe"'*) echo '{"type": "result", "ok": true, "protocol": "tendril-provisioner/1", "actions": ["plan", "apply", "destroy"]}' ;;
*'"type":"plan"'*) printf '{"type": "change", "machine": "%s", "action": "create"}\n{"type": "result", "ok": true, "plan": 1}\n' "$id" ;;
*) read -r cancel; echo '{"type": "result", "ok": false, "code": "cancelled", "message": "the run was cancelled"}' ;;
esac
`)
	c.repo, _ = c.git.Repo("slow", files, "v1")
	got, _ := c.apply(provision.OperationApply, 2048, "a")
	wantEnd(t, got, provision.Failed, provision.CodeApplyFailed)
	if said := got.Detail.ErrorMessage; !strings.Contains(said, "took longer than 5s") || strings.Contains(said, "cancelled") {
		t.Errorf("the message is %q, want that it took too long", said)
	}
}

// holds stops the example before and after each message of a request that changes something,
// where the cloud has a file that says so. Then it waits to be killed or cancelled. It is the
// example in Python: that in bash starts jq dozens of times.
const holds = `
    def hold(self, moment):
        try:
            os.remove(os.path.join(CLOUD, "hold-%s-%d" % (moment, self.sent)))
        except FileNotFoundError:
            return
        with open(os.path.join(CLOUD, "held.new"), "w") as file:
            file.write(str(os.getpid()))
        os.rename(os.path.join(CLOUD, "held.new"), os.path.join(CLOUD, "held"))
        with self.news:
            self.news.wait_for(lambda: self.cancelled or self.ended)
            if self.cancelled:
                os._exit(1)
        time.sleep(1000)

    def send(self, kind, **fields):
        if not self.changes:
            return self.message(kind, **fields)
        self.sent += 1
        self.hold("before")
        self.message(kind, **fields)
        self.hold("after")

    def message(self, kind, **fields):
`

// holding is the example with holds. It does not detach: it would when its agent is killed.
func holding(t *testing.T) string {
	t.Helper()
	program := example(t, "python/fake_cloud.py")
	for from, to := range map[string]string{
		"\n    def send(self, kind, **fields):\n":              holds,
		"        self.intents = 0\n":                           "        self.intents = 0\n        self.sent = 0\n",
		"        request = json.loads(sys.stdin.readline())\n": "        request = json.loads(sys.stdin.readline())\n        agent.changes = request[\"type\"] not in (\"describe\", \"plan\")\n",
		`"detachable": True`:                                   `"detachable": False`,
	} {
		if strings.Count(program, from) != 1 {
			t.Fatalf("the example has %q not once", from)
		}
		program = strings.Replace(program, from, to, 1)
	}
	return program
}

// Whatever is killed at whichever message: after the next run no machine is there twice, and
// none is forgotten.
func TestKilledAtEachMessage(t *testing.T) {
	t.Parallel()
	program := holding(t)
	for _, request := range []struct {
		name     string
		messages []string
		exist    bool // a machine before it
		asks     func(*cloud)
		left     int // machines after it
	}{
		{"create", []string{"intent", "step", "step", "machine", "state", "result"}, false, func(*cloud) {}, 1},
		{"rebuild", []string{"intent", "step", "step", "machine", "result"}, true, func(c *cloud) { c.with("replace", []string{"machine.m-a"}) }, 1},
		{"change", []string{"machine", "state", "result"}, true, func(c *cloud) { c.prepare(provision.OperationApply, 4096, "a") }, 1},
		{"destroy", []string{"intent", "machine", "state", "result"}, true, func(c *cloud) { c.job.Assignment.Operation = provision.OperationDestroy }, 0},
	} {
		// After a message is as before the next one, but for what waits for an answer, and the last.
		at := []string{fmt.Sprint("after-", len(request.messages))}
		for n, message := range request.messages {
			if at = append(at, fmt.Sprint("before-", n+1)); message == "intent" {
				at = append(at, fmt.Sprint("after-", n+1))
			}
		}
		for _, moment := range drawn(2, at...) {
			for _, victim := range victims() {
				t.Run(strings.Join([]string{request.name, moment, victim}, "/"), func(t *testing.T) {
					t.Parallel()
					c := newLines(t, program)
					if request.exist {
						got, _ := c.apply(provision.OperationApply, 2048, "a")
						wantEnd(t, got, provision.Success, "")
					}
					c.does("hold-"+moment, "")
					c.prepare(provision.OperationApply, 2048, "a")
					request.asks(c)
					run := c.start()
					c.kill(run, victim)
					c.store(run)
					c.prepare(provision.OperationApply, 2048, "a")
					request.asks(c)
					got, again := c.run()
					c.store(again)
					wantEnd(t, got, provision.Success, "")
					exist, recorded := c.marked(), []string(nil)
					for _, m := range c.recorded().Machines {
						if recorded = append(recorded, fmt.Sprint(m.ID, " ", m.ExternalID, " ", m.Wanted.Memory)); m.InDoubt() || m.Status != "running" {
							t.Errorf("%s is %s, with the intent %v", m.Wanted.Name, m.Status, m.Intent)
						}
					}
					if !slices.Equal(exist, recorded) || len(exist) != request.left {
						t.Errorf("the cloud has %q, recorded are %q, want %d machines in each", exist, recorded, request.left)
					}
				})
			}
		}
	}
}

// marked are the machines of the examples' cloud, each with the id that Tendril gave it, its
// id in the cloud, and its memory.
func (c *cloud) marked() (all []string) {
	c.t.Helper()
	found, err := filepath.Glob(filepath.Join(c.dir, "vm-*"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, path := range found {
		text, err := os.ReadFile(path)
		var m struct {
			ID     string
			Memory int
		}
		if err = errors.Join(err, json.Unmarshal(text, &m)); err != nil {
			c.t.Fatal(err)
		}
		all = append(all, fmt.Sprint(m.ID, " ", filepath.Base(path), " ", m.Memory))
	}
	return all
}

// victims are whom to kill at a moment: each, or the one that is drawn.
func victims() []string { return drawn(1, "script", "exec", "agent") }

// engineSalt is what tells for this process which engine a case is tried with.
var engineSalt = rand.Uint32()

// takes says whether a case is tried with an engine: with the one that is drawn for it, or with
// both where TENDRIL_TEST_FAULTS=all.
func takes(kind, name string) bool {
	return os.Getenv("TENDRIL_TEST_FAULTS") == "all" || (crc32.ChecksumIEEE([]byte(name))^engineSalt)&1 == 0 == (kind == "terraform")
}

// drawn are the faults that a test takes of a series: all with TENDRIL_TEST_FAULTS=all, else
// so many that chance chooses.
func drawn[T any](n int, all ...T) []T {
	if os.Getenv("TENDRIL_TEST_FAULTS") == "all" {
		return all
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(n, len(all))]
}

// kill waits until the run says that its script is held, and by which process, kills one of
// those that carry the run out, and waits for the run's end. To a run an agent's end is that
// of its control pipe.
func (c *cloud) kill(run *child, victim string) {
	c.t.Helper()
	c.awaitFile(run, "held", true)
	held := filepath.Join(c.dir, "held")
	text, err := os.ReadFile(filepath.Clean(held))
	if err != nil {
		c.t.Fatal(err)
	}
	script, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err := errors.Join(err, os.Remove(held)); err != nil {
		c.t.Fatal(err)
	}
	switch victim {
	case "script":
		err = syscall.Kill(script, syscall.SIGKILL)
	case "exec":
		err = syscall.Kill(run.cmd.Process.Pid, syscall.SIGKILL)
	case "agent":
		err = run.control.Close()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	<-run.over
	// What a killed one leaves running is the agent's to end.
	if _, err := process.KillByEnvironment(c.t.Context(), executor.EngineMark(c.job.Dirs.Work)); err != nil {
		c.t.Error(err)
	}
}
