package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tendril-run/tendril/provisioner"
)

// lineCases are the cases of the form lines. The first is describe.
var lineCases = []aCase{
	{"describe", "", func(t *trial) {
		t.able = t.must(question{request: &provisioner.Describe{Protocols: []string{provisioner.Protocol}}}).result
	}},
	{"describe picks a version that it speaks", "", func(t *trial) {
		t.must(question{request: &provisioner.Describe{Protocols: []string{"tendril-provisioner/999", provisioner.Protocol}}})
	}},
	{"describe refuses a version that it does not speak", "", func(t *trial) {
		r := t.ask(question{request: &provisioner.Describe{Protocols: []string{"tendril-provisioner/999"}}})
		t.wantCode(r, provisioner.CodeUnsupportedProtocol)
	}},
	{"an unknown request is unsupported", "", func(t *trial) {
		r := t.ask(question{request: &unknownRequest{t.work()}})
		t.wantCode(r, provisioner.CodeUnsupported)
	}},
	{"a request that is no JSON ends the program", "", func(t *trial) {
		r := t.ask(question{request: &provisioner.Plan{Work: t.work()}, line: []byte("{\"type\":\"plan\",\n"), closes: true, may: true})
		if r.result.OK || r.exit < 0 {
			t.fail(fmt.Sprintf("the result is ok=%v, and the exit status %d", r.result.OK, r.exit), "a result with the code invalid, or an exit status that isn't 0", "stop when the request can't be read")
		}
	}},
	{"unknown fields are ignored", "", func(t *trial) {
		ids := t.want("web")
		r := t.must(question{request: &futureRequest{Plan: provisioner.Plan{Work: t.work()}, Future: map[string]any{"a": []int{1}}}})
		t.expect(r, ids[0], provisioner.ActionCreate, "ignore fields that you don't know")
	}},
	{"a plan with no machines", "", func(t *trial) {
		r := t.plan()
		if len(r.changes) > 0 {
			t.fail("the plan has changes", "no change", "plan what the field machines has, and nothing else")
		}
	}},
	{"a plan of one new machine", "", func(t *trial) {
		ids := t.want("web")
		t.expect(t.plan(), ids[0], provisioner.ActionCreate, "send a change with the action create for a machine that isn't there")
	}},
	{"a plan creates nothing", "", func(t *trial) {
		ids := t.want("web")
		t.plan()
		t.expect(t.plan(), ids[0], provisioner.ActionCreate, "create nothing in answer to plan")
		t.count(0)
	}},
	{"apply creates a machine", "", func(t *trial) {
		ids := t.want("web")
		r := t.apply(ids...)
		t.wantIntent(r, ids[0], provisioner.ActionCreate)
		t.count(1)
	}},
	{"apply waits for its ack", "", func(t *trial) {
		ids := t.want("web")
		early := false
		t.must(question{request: t.request(t.plan()), intent: func(p *process, i provisioner.Intent) error {
			time.Sleep(300 * time.Millisecond) // the ack is withheld: time for a program that does not wait to show it
			listed, _ := t.inventory()
			early = sawMachine(p.out.text(), i.Machine) || len(listed) > 0
			return nil
		}})
		if early {
			t.fail("machine "+ids[0]+" was made before its intent was acknowledged", "nothing is created before the ack", "read a line from stdin after each intent, and create only if ok is true")
		}
	}},
	{"a refused intent creates nothing", "", func(t *trial) {
		ids := t.want("web")
		r := t.ask(question{request: t.request(t.plan()), intent: refuse})
		if r.result.OK {
			t.fail("the result is ok, though the intent was refused", "a result with the code refused", "send a result that isn't ok when an ack has ok false")
		}
		t.expect(t.plan(), ids[0], provisioner.ActionCreate, "create nothing after an ack with ok false")
		t.count(0)
	}},
	{"apply does only what was approved", "", func(t *trial) {
		ids := t.want("web")
		request := t.request(t.plan())
		request.Changes = nil
		t.noIntent(t.ask(question{request: request}), "do only what the field changes of the request has")
		t.expect(t.plan(), ids[0], provisioner.ActionCreate, "create only what the field changes of the request has")
		t.count(0)
	}},
	{"a second apply creates nothing", "", func(t *trial) {
		ids := t.want("web")
		first := t.apply(ids...)
		t.expect(t.plan(), ids[0], provisioner.ActionNone, "find the machine by what the state says, or by its id in the cloud")
		second := t.apply()
		t.noIntent(second, "create nothing for a machine that is there")
		if _, there := second.machines[ids[0]]; there {
			t.same(first, second, ids[0])
		}
		t.count(1)
	}},
	{"apply without the state finds its machine", "idempotent", func(t *trial) {
		ids := t.want("web")
		first := t.apply(ids...)
		t.workspace.state = nil // as after a crash before it was stored
		second := t.apply(ids...)
		t.same(first, second, ids[0])
		t.count(1)
	}},
	{"the same apply again creates nothing", "idempotent", func(t *trial) {
		ids := t.want("web")
		request := t.request(t.plan())
		first := t.must(question{request: request})
		again := t.must(question{request: request})
		t.status(again, ids[0], provisioner.StatusRunning)
		t.same(first, again, ids[0])
		t.count(1)
	}},
	{"detach leaves the work going on, and resume takes it up", "detachable", func(t *trial) {
		ids := t.want("web", "db")
		request := t.request(t.plan())
		changes := request.Changes
		detach := make(chan struct{})
		var once sync.Once
		first := t.ask(question{request: request, detach: detach, intent: func(*process, provisioner.Intent) error {
			time.AfterFunc(10*time.Millisecond, func() { once.Do(func() { close(detach) }) })
			return nil
		}})
		if !first.result.OK && first.result.Code != provisioner.CodeDetached {
			t.fail("the result has the code "+first.result.Code, "the code detached, or ok where all is done", "after detach, report the machines as they are, send a result with the code detached, and leave the work going on")
		}
		request = &provisioner.Apply{Work: t.work(), Plan: request.Plan, Resume: true}
		done := func(id string) bool { return first.machines[id].Status == provisioner.StatusRunning }
		for _, c := range changes {
			if !done(c.Machine) {
				request.Changes = append(request.Changes, c)
			}
		}
		for _, i := range first.intents {
			if !done(i.Machine) {
				request.Intents = append(request.Intents, i)
			}
		}
		second := t.must(question{request: request})
		for _, i := range request.Intents {
			if slices.ContainsFunc(second.intents, func(again provisioner.Intent) bool { return again.Machine == i.Machine }) {
				t.fail("there is another intent for machine "+i.Machine, "none, for it is among the intents of the request", "with resume, wait for what has begun, without another intent")
			}
		}
		for _, id := range ids {
			if done(id) {
				continue
			}
			t.status(second, id, provisioner.StatusRunning)
			if first.machines[id].ExternalID != "" {
				t.same(first, second, id)
			}
		}
		t.count(2)
	}},
	{"killed before the ack", "", func(t *trial) {
		ids := t.want("web")
		t.ask(question{request: t.request(t.plan()), may: true, intent: func(p *process, _ provisioner.Intent) error {
			p.kill()
			return errors.New("killed")
		}})
		t.expect(t.plan(), ids[0], provisioner.ActionCreate, "create nothing before the ack")
		t.count(0)
		t.apply(ids...)
		t.count(1)
	}},
	{"killed between intent and machine", "idempotent", func(t *trial) {
		for i, after := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond, 80 * time.Millisecond} {
			id := t.want(fmt.Sprintf("web-%d", i))[0]
			request := t.request(t.plan())
			var intents []provisioner.Intent
			t.ask(question{request: request, may: true, intent: func(p *process, i provisioner.Intent) error {
				intents = append(intents, i)
				time.AfterFunc(after, p.kill)
				return nil
			}})
			t.recovered(request, intents, id, i+1)
		}
	}},
	{"killed at each line of its answer", "idempotent", func(t *trial) {
		for line := 1; line <= 6; line++ {
			t.enter(newWorkspace("acme/test")) // with one machine, so that each line is about it
			id := t.want("web")[0]
			request := t.request(t.plan())
			var intents []provisioner.Intent
			t.ask(question{request: request, may: true, killAt: line, intent: func(_ *process, i provisioner.Intent) error {
				intents = append(intents, i)
				return nil
			}})
			t.recovered(request, intents, id, line)
		}
	}},
	{"cancel before the ack", "", func(t *trial) {
		ids := t.want("web")
		var cancel func()
		r := t.ask(question{request: t.request(t.plan()), cancel: func(c func()) { cancel = c }, intent: func(*process, provisioner.Intent) error {
			cancel()
			return errors.New("the run was cancelled")
		}})
		if r.result.OK {
			t.fail("the result is ok", "a result with the code cancelled or refused", "stop after cancel")
		}
		t.expect(t.plan(), ids[0], provisioner.ActionCreate, "create nothing after cancel")
		t.count(0)
	}},
	{"cancel after the ack", "", func(t *trial) {
		ids := t.want("web")
		var cancel func()
		t.ask(question{request: t.request(t.plan()), cancel: func(c func()) { cancel = c }, intent: func(*process, provisioner.Intent) error {
			time.AfterFunc(10*time.Millisecond, cancel)
			return nil
		}})
		// It may have been made or not. A machine that was made is known, or found.
		t.apply()
		t.expect(t.plan(), ids[0], provisioner.ActionNone, "send what was made, and the state, before the result of a cancelled request")
		t.count(1)
	}},
	{"stdin ends after the request", "", func(t *trial) {
		ids := t.want("web")
		r := t.ask(question{request: t.request(t.plan()), closes: true, may: true})
		if r.result.OK || r.exit < 0 {
			t.fail(fmt.Sprintf("the result is ok=%v, and the exit status %d", r.result.OK, r.exit), "an exit, and no result that is ok", "when stdin ends, nobody acknowledges any more: create nothing and exit")
		}
		t.expect(t.plan(), ids[0], provisioner.ActionCreate, "create nothing when stdin has ended before the ack")
		t.count(0)
	}},
	{"two machines", "", func(t *trial) {
		ids := t.want("web", "db")
		r := t.apply(ids...)
		if a, b := r.machines[ids[0]].ExternalID, r.machines[ids[1]].ExternalID; a == b {
			t.fail("both machines have the external_id "+a, "an id each", "make a machine for each that is wanted")
		}
		t.count(2)
	}},
	{"a third machine leaves two alone", "", func(t *trial) {
		ids := t.want("web", "db")
		first := t.apply(ids...)
		third := t.want("mail")[0]
		plan := t.plan()
		t.expect(plan, ids[0], provisioner.ActionNone, "leave machines alone that are as they should be")
		t.expect(plan, third, provisioner.ActionCreate, "plan a new machine as create")
		second := t.must(question{request: t.request(plan)})
		t.status(second, third, provisioner.StatusRunning)
		if _, there := second.machines[ids[0]]; there {
			t.same(first, second, ids[0])
		}
		t.count(3)
	}},
	{"a machine that is no longer wanted is destroyed", "", func(t *trial) {
		ids := t.want("web", "db")
		t.apply(ids...)
		w := t.workspace
		w.obsolete, w.machines = w.machines[1:], w.machines[:1]
		plan := t.plan()
		t.expect(plan, ids[0], provisioner.ActionNone, "leave the wanted machine alone")
		t.expect(plan, ids[1], provisioner.ActionDestroy, "plan to destroy the machines of the field obsolete")
		r := t.must(question{request: t.request(plan)})
		t.wantIntent(r, ids[1], provisioner.ActionDestroy)
		t.status(r, ids[1], provisioner.StatusGone)
		t.count(1)
	}},
	{"targets", "", func(t *trial) {
		ids := t.want("web", "db")
		t.workspace.targets = []string{"web"}
		t.apply(ids[0])
		t.workspace.targets = nil
		plan := t.plan()
		t.expect(plan, ids[0], provisioner.ActionNone, "remember the machine that was made")
		t.expect(plan, ids[1], provisioner.ActionCreate, "create only the machines that the field targets names")
		t.count(1)
	}},
	{"ten machines", "", func(t *trial) {
		var names []string
		for i := range 10 {
			names = append(names, fmt.Sprintf("web-%02d", i))
		}
		t.apply(t.want(names...)...)
		t.count(10)
	}},
	{"UTF-8", "", func(t *trial) {
		t.o.Machine.Labels = map[string]string{"größe": "groß ✓ 大"}
		ids := t.want("büro-大")
		r := t.apply(ids...)
		if got := r.machines[ids[0]].Name; got != "" && got != "büro-大" {
			t.fail(fmt.Sprintf("the machine's name is %q", got), `"büro-大"`, "read and write UTF-8")
		}
	}},
	{"values are never commands", "", func(t *trial) {
		t.o.Machine.Labels = map[string]string{}
		for name, trap := range traps {
			t.o.Machine.Labels[name] = trap
			t.o.Variables = with(t.o.Variables, name, trap)
		}
		ids := t.want("web")
		t.apply(ids...)
		t.untrapped()
	}},
	{"a long request", "", func(t *trial) {
		t.o.Variables = with(t.o.Variables, "text", strings.Repeat("0123456789abcdef", 32<<10))
		ids := t.want("web")
		t.expect(t.plan(), ids[0], provisioner.ActionCreate, fmt.Sprintf("read lines of up to %d MiB", provisioner.MaxRequest>>20))
	}},
	{"destroy", "", func(t *trial) {
		ids := t.want("web", "db")
		t.apply(ids...)
		plan, r := t.destroy()
		for _, id := range ids {
			t.expect(plan, id, provisioner.ActionDestroy, "plan to destroy each machine in the mode destroy")
			t.wantIntent(r, id, provisioner.ActionDestroy)
			t.status(r, id, provisioner.StatusGone)
		}
		t.expect(t.plan(), ids[0], provisioner.ActionCreate, "forget what was destroyed")
		t.count(0)
	}},
	{"destroy what is not there", "", func(t *trial) {
		t.want("web")
		_, r := t.destroy()
		t.noIntent(r, "destroy nothing that isn't there")
	}},
	{"a refused intent destroys nothing", "", func(t *trial) {
		ids := t.want("web")
		t.apply(ids...)
		work := t.work()
		work.Mode = provisioner.ModeDestroy
		plan := t.must(question{request: &provisioner.Plan{Work: work}})
		r := t.ask(question{request: &provisioner.Destroy{Work: work, Plan: plan.result.Plan, Changes: changesOf(plan, t.workspace)}, intent: refuse})
		if r.result.OK {
			t.fail("the result is ok, though the intent was refused", "a result with the code refused", "send a result that isn't ok when an ack has ok false")
		}
		t.expect(t.plan(), ids[0], provisioner.ActionNone, "destroy nothing after an ack with ok false")
		t.count(1)
	}},
	{"another workspace's machine of the same name is left alone", "", func(t *trial) {
		first := t.want("web")[0]
		theirs := t.apply(first)
		t.enter(newWorkspace("other/test"))
		second := t.want("web")[0]
		t.expect(t.plan(), second, provisioner.ActionCreate, "find machines by their id, never by their name alone")
		ours := t.apply(second)
		if a, b := theirs.machines[first].ExternalID, ours.machines[second].ExternalID; a == b {
			t.fail("two workspaces have the machine "+a, "a machine each", "find machines by their id, never by their name alone")
		}
		t.destroy()
		t.workspace, t.others[0] = t.others[0], t.workspace
		t.expect(t.plan(), first, provisioner.ActionNone, "destroy only the machines of the request")
		t.count(1)
	}},
	{"refresh says how a machine is", "refresh", func(t *trial) {
		ids := t.want("web")
		made := t.apply(ids...)
		r := t.must(question{request: &provisioner.Refresh{Work: t.work()}})
		t.status(r, ids[0], provisioner.StatusRunning)
		t.same(made, r, ids[0])
	}},
	{"refresh does not invent a machine", "refresh", func(t *trial) {
		ids := t.want("web")
		r := t.must(question{request: &provisioner.Refresh{Work: t.work()}})
		if m, there := r.machines[ids[0]]; there && m.Status != provisioner.StatusGone && m.Status != provisioner.StatusUnknown {
			t.fail(fmt.Sprintf("a machine that was never made is %s", m.Status), "no message machine, or one with the status gone", "report what is there")
		}
		t.expect(t.plan(), ids[0], provisioner.ActionCreate, "create nothing in answer to refresh")
	}},
	{"power", "power", func(t *trial) {
		ids := t.want("web", "db")
		t.apply(ids...)
		for _, step := range []struct {
			action provisioner.PowerAction
			want   provisioner.MachineStatus
		}{{provisioner.PowerStop, provisioner.StatusStopped}, {provisioner.PowerStop, provisioner.StatusStopped}, {provisioner.PowerStart, provisioner.StatusRunning}, {provisioner.PowerRestart, provisioner.StatusRunning}} {
			r := t.must(question{request: &provisioner.Power{Work: t.work(), Machine: ids[0], Action: step.action}})
			t.status(r, ids[0], step.want)
		}
	}},
	{"rebuild keeps the machine's id", "rebuild", func(t *trial) {
		ids := t.want("web")
		t.apply(ids...)
		r := t.must(question{request: &provisioner.Rebuild{Work: t.work(), Machine: ids[0]}})
		t.wantIntent(r, ids[0], provisioner.ActionReplace, provisioner.ActionCreate)
		t.status(r, ids[0], provisioner.StatusRunning)
		t.expect(t.plan(), ids[0], provisioner.ActionNone, "find the machine after it was rebuilt")
		t.count(1)
	}},
	{"health of a machine that runs", "health", func(t *trial) {
		ids := t.want("web")
		t.apply(ids...)
		r := t.must(question{request: &provisioner.Health{Work: t.work(), Machine: ids[0]}})
		if r.result.Health != provisioner.Healthy {
			t.fail(fmt.Sprintf("the health is %s", r.result.Health), "healthy", "check the machine that the field machine names")
		}
	}},
	{"health of a machine that is not there", "health", func(t *trial) {
		ids := t.want("web")
		r := t.ask(question{request: &provisioner.Health{Work: t.work(), Machine: ids[0]}})
		if r.result.OK && r.result.Health == provisioner.Healthy {
			t.fail("a machine that was never made is healthy", "unhealthy or unknown", "check the machine that the field machine names")
		}
	}},
}

// unknownRequest has a type that no version has.
type unknownRequest struct{ provisioner.Work }

func (*unknownRequest) Type() string { return "levitate" }

// futureRequest is a plan as a newer agent may send it.
type futureRequest struct {
	provisioner.Plan
	Future map[string]any `json:"a_field_of_the_future"`
}

// traps are texts that make a file where they are run as a command: bare, or in quotes.
var traps = map[string]string{
	"bare": "$(touch trapped)", "ticks": "`touch trapped`", "semicolon": "x; touch trapped; ", "single": "'; touch trapped; '",
	"double": "\"; touch trapped; \"", "lines": "\ntouch trapped\n", "star": "* \\",
}

// untrapped wants that none of the traps was run.
func (t *trial) untrapped() {
	if _, err := os.Stat(filepath.Join(t.dir, "trapped")); err == nil {
		t.fail("a value of the request was run as a command", "values are data", "quote values, and never give them to a shell")
	}
}

func refuse(*process, provisioner.Intent) error {
	return errors.New("the conformance suite refuses this intent")
}

// wantCode wants a result that isn't ok, for this reason.
func (t *trial) wantCode(r reply, code string) {
	if r.result.OK || r.result.Code != code {
		t.fail(fmt.Sprintf("the result is ok=%v with the code %q", r.result.OK, r.result.Code), fmt.Sprintf("ok=false with the code %q", code), "answer every request that you can't carry out with a result")
	}
}

// recovered asks again after a crash, as the agent does, and wants one machine.
func (t *trial) recovered(request *provisioner.Apply, intents []provisioner.Intent, id string, total int) {
	again := *request
	again.Intents = intents
	first := t.must(question{request: &again})
	t.status(first, id, provisioner.StatusRunning)
	t.workspace.made = true
	t.expect(t.plan(), id, provisioner.ActionNone, "find the machine that was made before the crash")
	if t.o.Inventory == "" { // then it is told by this alone
		t.same(first, t.must(question{request: &again}), id)
	}
	t.count(total)
}

// with returns variables and a text, if that has a name.
func with(variables map[string]json.RawMessage, name, value string) map[string]json.RawMessage {
	more := map[string]json.RawMessage{}
	for n, v := range variables {
		more[n] = v
	}
	if name != "" {
		more[name], _ = json.Marshal(value)
	}
	return more
}
