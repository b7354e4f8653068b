package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/provisioner"
)

const examples = "../../examples/provisioners/"

// need is a program that the tests' set-up installs. The system's own goes first: a version
// manager's takes half a second to start.
func need(t *testing.T, program string) string {
	t.Helper()
	if file := filepath.Join("/usr/bin", program); exec.Command(file, "--version").Run() == nil {
		return file
	}
	file, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%s is missing: scripts/test-deps.sh installs it: %v", program, err)
	}
	return file
}

// build compiles the example in Go.
func build(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "fake-cloud-go")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, examples+"go").CombinedOutput(); err != nil {
		t.Fatalf("build the example in Go: %v\n%s", err, out)
	}
	return file
}

func options(form Form, command ...string) Options {
	return Options{
		Form: form, Command: command, Timeout: patience.For(30 * time.Second), Inventory: "ls cloud 2>/dev/null || true", Idempotent: true, Keep: true,
		Machine: provisioner.Wanted{Image: "debian-13", Cores: 2, Memory: 1024, Disk: 10}, Variables: map[string]json.RawMessage{"class": json.RawMessage(`"a1"`)},
	}
}

// test runs the suite and returns what the cases that failed say.
func test(t *testing.T, o Options) (Report, string) {
	t.Helper()
	var failed strings.Builder
	o.On = func(c CaseReport) {
		if c.Status != Passed {
			_ = c.WriteText(&failed)
		}
	}
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return report, failed.String()
}

// Every example passes every case of its form.
func TestExamples(t *testing.T) {
	t.Parallel()
	need(t, "jq")
	python := need(t, "python3")
	for name, o := range map[string]Options{
		"go":     options(Lines, build(t)),
		"bash":   options(Lines, "bash", examples+"bash/fake-cloud"),
		"python": options(Lines, python, examples+"python/fake_cloud.py"),
		"once":   options(Once, examples+"once/fake-cloud"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Keep = name != "go" // one of them shows that nothing is left
			if testing.Short() {
				o.Only = []string{"create", "terminate"}
			}
			report, failed := test(t, o)
			if report.Failed > 0 || report.Skipped > 0 || report.Passed != len(Names(o.Form)) && !testing.Short() {
				t.Errorf("%s:\n%s", report.Summary(), failed)
			}
		})
	}
}

// slowly is an example with a cloud that takes a while for each machine.
func slowly(command ...string) Options {
	o := options(Lines, append([]string{"env", "FAKE_CLOUD_SECONDS=5"}, command...)...)
	o.Only = []string{"detach"}
	return o
}

// A program detaches while its cloud makes a machine, and the next one takes that up.
func TestDetach(t *testing.T) {
	t.Parallel()
	original, err := os.ReadFile(examples + "python/fake_cloud.py")
	if err != nil {
		t.Fatal(err)
	}
	python := need(t, "python3")
	for name, command := range map[string][]string{"python": {python, examples + "python/fake_cloud.py"}, "bash": {"bash", examples + "bash/fake-cloud"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report, failed := test(t, slowly(command...))
			if report.Failed > 0 || report.Passed != 2 {
				t.Errorf("%s:\n%s", report.Summary(), failed)
			}
		})
	}
	for name, c := range map[string]struct{ from, to, says string }{
		"begins anew":        {`vm = find(wanted["id"]) or {`, `vm = {`, "and is vm-"},
		"says nothing of it": {`        agent.send("machine", **{**report(vm), "status": "creating"})` + "\n", "", "no message machine followed"},
		"has another code":   {`raise Failure("detached"`, `raise Failure("failed"`, "the result has the code failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Count(string(original), c.from) != 1 {
				t.Fatalf("the example doesn't have %q once", c.from)
			}
			file := filepath.Join(t.TempDir(), "mutant.py")
			if err := os.WriteFile(file, []byte(strings.Replace(string(original), c.from, c.to, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			report, failed := test(t, slowly(python, file))
			if report.Failed != 1 || !strings.Contains(failed, c.says) {
				t.Errorf("%s, want %q:\n%s", report.Summary(), c.says, failed)
			}
		})
	}
}

// The suite finds what is wrong with a program: each change of the example in Python makes
// the case fail that is there for it.
func TestMutants(t *testing.T) {
	t.Parallel()
	python := need(t, "python3")
	original, err := os.ReadFile(examples + "python/fake_cloud.py")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ from, to, fails, says string }{
		"prints to stdout":        {`    sys.stdin.reconfigure`, `    print("Hello")` + "\n" + `    sys.stdin.reconfigure`, "describe", `line 1 of the answer: the line "Hello" is not JSON`},
		"speaks any version":      {`if PROTOCOL not in request.get("protocols", []):`, `if False:`, "describe refuses", "which was not offered"},
		"dies of what is new":     {`raise Failure("unsupported", `, `os._exit(3) or (`, "an unknown request", "(exit status 3)"},
		"creates while it plans":  {`def plan(request, agent):`, "def plan(request, agent):\n    for m in request['machines']: save({'id': m['id'], 'name': m['name'], 'status': 'running', 'external_id': 'vm-' + m['id']})", "a plan of one new", "the action replace"},
		"does not wait":           {`            self.news.wait_for(lambda: number in self.acks or self.ended or self.cancelled)` + "\n", "            self.acks[number] = {'ok': True}\n", "apply waits", "made before its intent"},
		"ignores a refusal":       {`if not ack["ok"]:`, `if False:`, "a refused intent creates", "without an acknowledged intent"},
		"sends no intent":         {`    agent.intent(wanted["id"], action, name=wanted["name"])` + "\n", "", "apply creates", "without an acknowledged intent"},
		"does what it wants":      {`for change in request["changes"]:`, `for change in [{"machine": m["id"], "action": "create"} for m in request["machines"]]:`, "apply does only", "was not approved"},
		"goes by no id":           {`(m for m in machines() if m["id"] == machine_id)`, `(m for m in machines())`, "another workspace's", "the action none"},
		"is not idempotent":       {`vm = find(wanted["id"]) or {`, `vm = {`, "the same apply again", "and is vm-"},
		"forgets after a kill":    {`vm = find(wanted["id"]) or {`, `vm = {`, "killed at each line", "the inventory has"},
		"ignores targets":         {`return not request.get("targets") or wanted["name"] in request["targets"]`, "return True", "targets", "not among the targets"},
		"ignores obsolete ones":   {`    for old in request.get("obsolete", []):`, `    for old in []:`, "no longer wanted", "the action none"},
		"destroys without asking": {`            agent.intent(wanted["id"], "destroy", external_id=vm["external_id"])` + "\n", "", "destroy", "no intent for machine"},
		"destroys only in words":  {`                os.remove(os.path.join(CLOUD, vm["external_id"]))` + "\n", "                pass\n", "destroy", "the action none"},
		"reads Latin-1":           {`sys.stdin.reconfigure(encoding="utf-8")`, `sys.stdin.reconfigure(encoding="latin-1")`, "UTF-8", "the machine's name is"},
		"runs what it reads":      {`    agent.send("step", id="create", label`, `    os.system("echo " + wanted.get("labels", {}).get("bare", "") + " >&2")` + "\n" + `    agent.send("step", id="create", label`, "values are never commands", "was run as a command"},
		"invents machines":        {`"status": "gone"}))`, `"status": "running"}))`, "refresh does not invent", "is running"},
		"always runs":             {`"stopped" if request["action"] == "stop"`, `"running" if request["action"] == "stop"`, "power", "is running"},
		"is always well":          {`"healthy" if vm and vm["status"] == "running" else "unhealthy"`, `"healthy"`, "health of a machine that is not there", "is healthy"},
		"rebuilds elsewhere":      {`    make("replace", next(`, `    need(request).update(id="x") or os.remove(os.path.join(CLOUD, need(request)["external_id"])) or agent.intent(request["machine"], "replace") or print(end="") or (lambda *a: None)("replace", next(`, "rebuild", "no message machine"},
		"never exits":             {`    os._exit(0)`, `    import time; time.sleep(600)`, "describe", "it didn't exit"},
		"keeps no state small":    {`value={"cloud": CLOUD}`, `value="x" * 600000`, "apply creates", "524288 are possible"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Count(string(original), c.from) < 1 {
				t.Fatalf("the example has no %q", c.from)
			}
			file := filepath.Join(t.TempDir(), "mutant.py")
			if err := os.WriteFile(file, []byte(strings.Replace(string(original), c.from, c.to, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			o := options(Lines, python, file)
			o.Only = []string{c.fails}
			report, failed := test(t, o)
			if report.Failed == 0 || !strings.Contains(failed, c.says) || !strings.Contains(failed, "✗ "+c.fails) && !strings.Contains(failed, c.fails) {
				t.Errorf("%s, want that %q fails with %q:\n%s", report.Summary(), c.fails, c.says, failed)
			}
		})
	}
}

// The same for the form once.
func TestOnceMutants(t *testing.T) {
	t.Parallel()
	need(t, "jq")
	original, err := os.ReadFile(examples + "once/fake-cloud")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ from, to, fails, says string }{
		"prints to stdout":      {"request=$(cat)", "request=$(cat); echo Hello", "provision", "is not JSON"},
		"exits with an error":   {"esac\n", "esac\nexit 4\n", "provision", "exit status 4"},
		"makes one each time":   {`if [ -z "$external" ]; then`, "if true; then", "provision twice", "has the machines"},
		"fails the second time": {`[ -z "$external" ] || rm`, "rm", "terminate twice", "stdout is empty (exit status 1)"},
		"is always well":        {`[ -n "$external" ] || failed "the machine of`, `true || failed "the machine of`, "health_check of a machine that is gone", "is healthy"},
		"does anything":         {`*) failed`, `*) echo '{"success":true}'; exit; failed`, "an unknown action", "is a success"},
		"runs what it reads":    {"case $action in\n", `bash -c "echo $(jq -r '.instance_config.note // empty' <<<"$request")" >/dev/null 2>&1 || true` + "\ncase $action in\n", "values that are never", "was run as a command"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Count(string(original), c.from) != 1 {
				t.Fatalf("the example has not one %q", c.from)
			}
			file := filepath.Join(t.TempDir(), "mutant")
			if err := os.WriteFile(file, []byte(strings.Replace(string(original), c.from, c.to, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			o := options(Once, "bash", file)
			o.Only = []string{c.fails}
			if report, failed := test(t, o); report.Failed == 0 || !strings.Contains(failed, c.says) {
				t.Errorf("%s, want that %q fails with %q:\n%s", report.Summary(), c.fails, c.says, failed)
			}
		})
	}
}

// Killed at any moment, an example never makes a machine without an acknowledged intent, and
// never a second one when it is asked again.
func TestExamplesKilledAtAnyMoment(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts some two hundred programs")
	}
	t.Parallel()
	for name, c := range map[string]struct {
		command []string
		within  time.Duration // about as long as an apply takes
		times   int
	}{
		"go":     {[]string{build(t)}, 30 * time.Millisecond, 30},
		"bash":   {[]string{"bash", examples + "bash/fake-cloud"}, 500 * time.Millisecond, 4},
		"python": {[]string{need(t, "python3"), examples + "python/fake_cloud.py"}, 150 * time.Millisecond, 15},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command, err := resolve(c.command)
			if err != nil {
				t.Fatal(err)
			}
			cut := 0
			for range c.times {
				one := &trial{ctx: t.Context(), o: options(Lines), command: command, dir: t.TempDir(), workspace: newWorkspace("acme/test")}
				ids := one.want("web", "db")
				after := rand.N(patience.For(c.within))
				problem := one.attempt(func(one *trial) {
					request := one.request(one.plan())
					r := one.ask(question{request: request, may: true, killAfter: after})
					if !r.answered {
						cut++
					}
					made, err := one.inventory()
					if err != nil || len(made) > len(r.intents) {
						t.Errorf("killed after %s: %d machines were made with %d acknowledged intents, %v", after, len(made), len(r.intents), err)
					}
					again := *request
					again.Intents = r.intents
					second := one.must(question{request: &again})
					for _, id := range ids {
						one.status(second, id, provisioner.StatusRunning)
						if was := r.machines[id].ExternalID; was != "" && was != second.machines[id].ExternalID {
							t.Errorf("killed after %s: machine %s was %s and is %s", after, id, was, second.machines[id].ExternalID)
						}
					}
					one.count(2)
				})
				if problem != nil {
					t.Fatalf("killed after %s: %+v", after, problem)
				}
			}
			t.Logf("%d of %d were cut short", cut, c.times)
		})
	}
}

// An example whose cloud fails after the ack says that the machine may exist. Its password
// is shown nowhere.
func TestExamplesReportWhatFailed(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"go": {build(t)}, "bash": {"bash", examples + "bash/fake-cloud"}, "python": {need(t, "python3"), examples + "python/fake_cloud.py"},
	} {
		command, err := resolve(command)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		one := &trial{ctx: t.Context(), o: options(Lines), command: command, dir: dir, workspace: newWorkspace("acme/test")}
		ids := one.want("web")
		problem := one.attempt(func(c *trial) {
			request := c.request(c.plan())
			if err := os.WriteFile(filepath.Join(dir, "cloud"), nil, 0o600); err != nil { // no directory can be made
				t.Fatal(err)
			}
			r := c.ask(question{request: request})
			if r.result.OK || r.result.Message == "" || r.machines[ids[0]].Status != provisioner.StatusUnknown {
				t.Errorf("%s: the result is %+v, and the machine %+v, want an error and that it is unknown", name, r.result, r.machines[ids[0]])
			}
			if err := os.Remove(filepath.Join(dir, "cloud")); err != nil {
				t.Fatal(err)
			}
			made := c.apply(ids...)
			if password := made.machines[ids[0]].Credentials["root_password"]; password == "" || strings.Contains(made.came, password) || !strings.Contains(made.came, "***") {
				t.Errorf("%s: the answer is shown with its password: %s", name, made.came)
			}
		})
		if problem != nil {
			t.Errorf("%s: %+v", name, problem)
		}
	}
}

// A program that can't be started is no failed case.
func TestNoProgram(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{nil, {"/nowhere/program"}, {"no-such-program"}} {
		if report, err := Run(t.Context(), options(Lines, command...)); err == nil || len(report.Cases) > 0 {
			t.Errorf("Run(%q) = %+v, %v, want an error", command, report, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, options(Lines, "sh")); !errors.Is(err, context.Canceled) {
		t.Errorf("Run() after the end of the context = %v", err)
	}
}

// Actions that a program doesn't have are skipped, and without describe nothing is run.
func TestSkipped(t *testing.T) {
	t.Parallel()
	few := filepath.Join(t.TempDir(), "few")
	if err := os.WriteFile(few, []byte("#!/bin/sh\necho '{\"type\":\"result\",\"ok\":true,\"protocol\":\"tendril-provisioner/1\",\"actions\":[\"plan\",\"apply\",\"destroy\"]}'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	o := options(Lines, few)
	o.Idempotent, o.Only = false, []string{"power", "the same apply again"}
	report, said := test(t, o)
	if report.Passed != 1 || report.Skipped != 2 || !strings.Contains(said, "– power: the program doesn't have the action power") || !strings.Contains(said, "isn't declared idempotent") {
		t.Errorf("%s:\n%s", report.Summary(), said)
	}
	o = options(Lines, "false")
	report, said = test(t, o)
	if report.Failed != 1 || report.Skipped != len(Names(Lines))-1 || !strings.Contains(said, "stdout ended without a result (exit status 1)") || !strings.Contains(said, "came   nothing") {
		t.Errorf("%s:\n%s", report.Summary(), said)
	}
}

func TestNamesAreUnique(t *testing.T) {
	t.Parallel()
	for _, form := range []Form{Lines, Once} {
		names := Names(form)
		slices.Sort(names)
		if unique := slices.Compact(slices.Clone(names)); len(unique) != len(names) {
			t.Errorf("the form %s has two cases of one name: %q", form, names)
		}
	}
	if n := len(Names(Lines)); n < 30 {
		t.Errorf("there are %d cases, want forty or so", n)
	}
}
