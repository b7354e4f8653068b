package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/protocol"
	"github.com/tendril-run/tendril/internal/timelimit"
	"github.com/tendril-run/tendril/provisioner"
)

// workspace is what a case has machines in.
type workspace struct {
	named    provisioner.Workspace
	run      string
	machines []provisioner.Wanted
	obsolete []provisioner.Wanted
	targets  []string
	intents  []provisioner.Intent
	state    json.RawMessage
	made     bool // something may be left to destroy
}

func newWorkspace(name string) *workspace {
	return &workspace{named: provisioner.Workspace{ID: uuid.NewString(), Name: name}, run: uuid.NewString()}
}

// want adds machines and returns their ids.
func (t *trial) want(names ...string) (ids []string) {
	for _, name := range names {
		m := t.o.Machine
		m.ID, m.Name = uuid.NewString(), name
		t.workspace.machines = append(t.workspace.machines, m)
		ids = append(ids, m.ID)
	}
	return ids
}

// work is the workspace as requests have it.
func (t *trial) work() provisioner.Work {
	w := t.workspace
	return provisioner.Work{
		Protocol: provisioner.Protocol, Run: w.run, Workspace: w.named, Mode: provisioner.ModeApply, Variables: with(t.o.Variables, "", ""),
		Machines: append([]provisioner.Wanted{}, w.machines...), Obsolete: w.obsolete, Targets: w.targets, Intents: w.intents, State: w.state,
	}
}

// question is a request, and what happens to the program meanwhile.
type question struct {
	request provisioner.Request
	// intent answers an intent; nil acknowledges it.
	intent func(p *process, i provisioner.Intent) error
	// cancel is called once, with what cancels the request.
	cancel func(cancel func())
	// detach is closed when the program is to leave its work going on.
	detach <-chan struct{}
	// line replaces the request's line.
	line []byte
	// closes says that stdin is closed after the request.
	closes bool
	// killAt kills the program once it has written so many lines; 0 never does.
	killAt int
	// killAfter kills the program after this time; 0 never does.
	killAfter time.Duration
	// may says that an answer which breaks the rules, or none, is right.
	may bool
}

// reply is what a program answered.
type reply struct {
	sent, came, stderr string

	result   provisioner.Result
	answered bool
	err      error
	exit     int

	changes  map[string]provisioner.Change // by the machine's id
	intents  []provisioner.Intent          // that were acknowledged
	machines map[string]provisioner.Machine
	outputs  []provisioner.Output
}

// ask starts the program, sends a request and reads the answer. The case ends if the answer
// breaks a rule.
func (t *trial) ask(q question) reply {
	sent, err := provisioner.Encode(q.request)
	if err != nil {
		t.err = err
		panic(stopped{&Problem{Wrong: err.Error()}})
	}
	if q.line != nil {
		sent = q.line
	}
	r := reply{sent: string(sent), changes: map[string]provisioner.Change{}, machines: map[string]provisioner.Machine{}}
	t.last = r
	p, err := begin(t.command, t.dir)
	if err != nil {
		t.err = err
		panic(stopped{&Problem{Wrong: err.Error()}})
	}
	p.in.replace, p.in.closes, p.out.at = q.line, q.closes, q.killAt
	if q.killAt > 0 {
		p.out.after = p.kill
	}
	if q.killAfter > 0 {
		defer time.AfterFunc(q.killAfter, p.kill).Stop()
	}
	ctx, cancel := timelimit.Context(t.ctx, t.o.Timeout)
	defer cancel()
	interrupted := context.AfterFunc(t.ctx, p.kill)
	defer interrupted()
	if q.cancel != nil {
		q.cancel(cancel)
	}
	w := t.workspace
	var state json.RawMessage
	var secrets []string
	outcome, talked := protocol.Talk(ctx, p.streams(), q.request, protocol.Handlers{
		Mask: func(more []string) { secrets = append(secrets, more...) },
		Change: func(c provisioner.Change) {
			if c.Machine != "" {
				r.changes[c.Machine] = c
			}
		},
		Intent: func(_ context.Context, i provisioner.Intent) error {
			if q.intent != nil {
				if err := q.intent(p, i); err != nil {
					return err
				}
			}
			r.intents, w.made = append(r.intents, i), true
			return nil
		},
		Machine: func(m provisioner.Machine) error { r.machines[m.ID] = m; return nil },
		Output:  func(o provisioner.Output) error { r.outputs = append(r.outputs, o); return nil },
		State:   func(s json.RawMessage) error { state = s; return nil },
		Detach:  q.detach,
	})
	r.exit = p.end(talked)
	r.err = outcome.Check(r.exit)
	r.result, r.answered = outcome.Result, outcome.Answered
	r.came, r.stderr = masked(p.out.text(), secrets), masked(p.stderr.String(), secrets)
	if state != nil {
		w.state = state
	}
	t.last = r
	if err := t.ctx.Err(); err != nil {
		t.err = fmt.Errorf("test the provisioner: %w", err)
		panic(stopped{&Problem{Wrong: err.Error()}})
	}
	if q.may {
		return r
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.fail(fmt.Sprintf("there was no result within %s", t.o.Timeout), "a result in time", "answer faster, or give a longer --timeout")
	}
	var v *protocol.ViolationError
	switch {
	case errors.As(r.err, &v):
		t.fail(located(v), "an answer that keeps the rules of docs/PROVISIONERS.md", v.Action)
	case r.err != nil:
		t.fail(r.err.Error(), "an answer that keeps the rules of docs/PROVISIONERS.md", "see stderr")
	case len(outcome.Unsettled) > 0:
		i := outcome.Unsettled[0]
		t.fail(fmt.Sprintf("the intent to %s machine %s was acknowledged, and no message machine followed", i.Action, i.Machine), "a message machine after each acknowledged intent, before the result",
			"send machine also if it failed: failed, gone, or unknown where you can't tell")
	}
	return r
}

// masked hides the secrets of a program in what is shown.
func masked(text string, secrets []string) string {
	for _, secret := range secrets {
		if len(secret) > 2 {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}

// located is what a violation says is wrong, and where.
func located(v *protocol.ViolationError) string {
	if v.Line == 0 {
		return v.Problem
	}
	return fmt.Sprintf("line %d of the answer: %s", v.Line, v.Problem)
}

// must is ask for what has to succeed.
func (t *trial) must(q question) reply {
	r := t.ask(q)
	if !r.result.OK {
		t.fail(fmt.Sprintf("the result is %s: %s", r.result.Code, r.result.Message), "a result that is ok", "see the message and stderr")
	}
	return r
}

// plan asks what would be done now.
func (t *trial) plan() reply {
	return t.must(question{request: &provisioner.Plan{Work: t.work()}})
}

// expect holds the plan's change of a machine to an action. A machine without a change has
// the action none.
func (t *trial) expect(r reply, id string, want provisioner.Action, action string) {
	t.last = r
	got := r.changes[id].Action
	if got == "" {
		got = provisioner.ActionNone
	}
	if got != want {
		t.fail(fmt.Sprintf("the plan has the action %s for machine %s", got, id), "the action "+string(want), action)
	}
}

// request is the one to apply a plan.
func (t *trial) request(plan reply) *provisioner.Apply {
	return &provisioner.Apply{Work: t.work(), Plan: plan.result.Plan, Changes: changesOf(plan, t.workspace)}
}

// changesOf are the changes of a plan, in the order of the machines.
func changesOf(plan reply, w *workspace) (changes []provisioner.Change) {
	for _, list := range [][]provisioner.Wanted{w.machines, w.obsolete} {
		for _, m := range list {
			if c, there := plan.changes[m.ID]; there {
				changes = append(changes, c)
			}
		}
	}
	return changes
}

// apply plans and applies, and wants these machines to run afterwards.
func (t *trial) apply(running ...string) reply {
	r := t.must(question{request: t.request(t.plan())})
	for _, id := range running {
		t.status(r, id, provisioner.StatusRunning)
	}
	return r
}

// status holds a machine of an answer to a status.
func (t *trial) status(r reply, id string, want provisioner.MachineStatus) {
	t.last = r
	m, there := r.machines[id]
	switch {
	case !there:
		t.fail(fmt.Sprintf("there is no message machine of %s", id), fmt.Sprintf("one with the status %s", want), "send what each machine of the request is now, also one that stays as it is, before the result")
	case m.Status != want:
		t.fail(fmt.Sprintf("machine %s is %s", id, m.Status), string(want), "send what the machine is now, before the result")
	case want == provisioner.StatusRunning && m.ExternalID == "":
		t.fail(fmt.Sprintf("machine %s has no external_id", id), "the machine's id in its cloud", "send external_id with machine")
	}
}

// wantIntent wants one acknowledged intent for a machine.
func (t *trial) wantIntent(r reply, id string, want ...provisioner.Action) {
	t.last = r
	for _, i := range r.intents {
		for _, action := range want {
			if i.Machine == id && i.Action == action {
				return
			}
		}
	}
	t.fail(fmt.Sprintf("there was no intent for machine %s", id), fmt.Sprintf("an intent to %s", want[0]), "send intent, and wait for its ack, before you do it")
}

// noIntent wants nothing to be made or destroyed.
func (t *trial) noIntent(r reply, action string) {
	t.last = r
	if len(r.intents) > 0 {
		t.fail(fmt.Sprintf("there is an intent to %s machine %s", r.intents[0].Action, r.intents[0].Machine), "no intent", action)
	}
}

// same wants a machine to have kept its id in the cloud.
func (t *trial) same(before, after reply, id string) {
	t.last = after
	if was, is := before.machines[id].ExternalID, after.machines[id].ExternalID; was != is {
		t.fail(fmt.Sprintf("machine %s was %s and is %s", id, was, is), "the machine that was made first", "look for a machine that bears the id before you create one")
	}
}

// destroy plans and destroys all of the workspace's machines.
func (t *trial) destroy() (plan, r reply) {
	work := t.work()
	work.Mode = provisioner.ModeDestroy
	plan = t.must(question{request: &provisioner.Plan{Work: work}})
	r = t.must(question{request: &provisioner.Destroy{Work: work, Plan: plan.result.Plan, Changes: changesOf(plan, t.workspace)}})
	return plan, r
}

// cleanUp destroys what a case may have made.
func (t *trial) cleanUp() {
	for _, w := range append(t.others, t.workspace) {
		if t.workspace = w; w.made && t.ctx.Err() == nil {
			w.targets = nil
			_ = t.attempt(func(t *trial) { t.destroy() })
		}
	}
}

// enter has the case continue in another workspace.
func (t *trial) enter(w *workspace) {
	t.others = append(t.others, t.workspace)
	t.workspace = w
}

// sawMachine reports whether the output, so far, says that a machine was made.
func sawMachine(output, id string) bool {
	for line := range strings.Lines(output) {
		m, err := provisioner.DecodeMessage([]byte(line))
		if machine, is := m.(*provisioner.Machine); err == nil && is && machine.ID == id {
			return true
		}
	}
	return false
}
