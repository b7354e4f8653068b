package executor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/protocol"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/timelimit"
	messages "github.com/tendril-run/tendril/provisioner"
)

// linesRun carries out a template whose machines a program makes that speaks
// tendril-provisioner/1: it plans by itself, and does one request for all machines.
type linesRun struct {
	*machineRun
	by        maker
	describes messages.Result
	// labels are the stages that the program has told of, by id.
	labels map[string]string
	// steps are told of while there is somebody to tell; nil: nobody.
	steps *steps
	// doing is what is being done to machines, by id: begun, and not told the end of.
	doing map[string]string
	// percents are how far each stage of a machine is, as told last.
	percents map[string]int
	// making are the machines that the request which is carried out has been allowed to make.
	making map[string]bool
	// failures are those of the template's commands, in order. A machine that failed does not
	// keep the others from being made.
	failures []error
	// pause and resume stop the time that a program has while something else is at work.
	pause, resume func()
}

// maker is what makes the machines: a program of the template's, or this one.
type maker struct {
	name  string // as people know it
	start func(people io.Writer) (*program, error)
	// timeout is how long a request may take.
	timeout time.Duration
	// idempotent and noCredentials are as in templatefile.Script.
	idempotent, noCredentials bool
	// trusted says that it has every secret masked before it says anything.
	trusted bool
}

func newLinesRun(m *machineRun) *linesRun {
	script := m.file.Script
	m.compares = true
	return &linesRun{machineRun: m, by: maker{
		name: "the template's provisioner " + script.Command[0], timeout: script.Timeout, idempotent: script.Idempotent, noCredentials: script.NoCredentials,
		start: func(people io.Writer) (*program, error) { return m.programs.start(script.Command, people) },
	}}
}

// Locate implements provisioner. Nothing of the template runs yet.
func (l *linesRun) Locate(context.Context) (provision.Detail, error) {
	return provision.Detail{Engine: l.engine, EngineVersion: "lines"}, l.locate()
}

// describe asks the program what it can do.
func (l *linesRun) describe(ctx context.Context) error {
	ran, err := l.by.start(l.log.Stream(provision.Stderr))
	if err != nil {
		return l.cannotStart(err)
	}
	defer context.AfterFunc(ctx, ran.interrupt)()
	outcome, err := protocol.Describe(l.session.grace, ran.Program)
	exit := ran.end(!endsByItself(err))
	if err = outcome.Check(exit); err == nil && !outcome.Result.OK {
		err = fmt.Errorf("it says: %s", cmp.Or(outcome.Result.Message, outcome.Result.Code))
	}
	if err != nil {
		return provision.Fail(provision.CodeTemplateInvalid, sentence(fmt.Sprintf("%s could not be used: %s", l.by.name, sentence(err.Error()))), err)
	}
	l.describes, l.labels, l.percents, l.doing = outcome.Result, map[string]string{}, map[string]int{}, map[string]string{}
	l.making = map[string]bool{}
	for _, step := range l.file.Steps {
		l.labels[step.ID] = step.Label
	}
	l.resumes = l.by.idempotent || outcome.Result.Idempotent
	l.state.Actions = []provision.MachineAction{provision.MachineDestroys}
	for _, action := range []provision.MachineAction{provision.MachineRebuilds, provision.MachineRefreshes, provision.MachinePowers, provision.MachineRescues} {
		if slices.Contains(outcome.Result.Actions, string(action)) || l.pooled && action == provision.MachineRebuilds { // which pools do as they replace
			l.state.Actions = append(l.state.Actions, action)
		}
	}
	if h := l.health; h != nil && h.ByCommand() && len(h.Command) == 0 && !slices.Contains(outcome.Result.Actions, actionHealth) {
		l.log.System("Warning: tendril.hcl: health is for the template's provisioner to say, which does not describe the action health; machines are not checked.")
		l.health = nil
	}
	l.log.System("Carried out by %s.", oneLine(strings.TrimSpace(l.by.name+" "+outcome.Result.Version)))
	return nil
}

// Recall implements provisioner.
func (l *linesRun) Recall(ctx context.Context) (planned, error) {
	if err := l.describe(ctx); err != nil {
		return planned{}, err
	}
	return l.machineRun.Recall(ctx)
}

// endsByItself reports whether a program that was talked to so has closed its stdout, and
// is to have the time to say by its exit status how it ended.
func endsByItself(err error) bool {
	broken, is := errors.AsType[*protocol.ViolationError](err)
	return err == nil || is && (broken.Kind == protocol.NoResult || broken.Kind == protocol.HalfLine)
}

func (l *linesRun) cannotStart(err error) error {
	return provision.Fail(provision.CodeTemplateInvalid, sentence(fmt.Sprintf("%s could not be started: %s", l.by.name, sentence(err.Error()))), err)
}

// work is what all requests have in common.
func (l *linesRun) work() messages.Work {
	mode := messages.ModeApply
	if l.operation() == provision.OperationDestroy {
		mode = messages.ModeDestroy
	}
	a := l.job.Assignment
	w := messages.Work{
		Protocol: l.describes.Protocol, Run: l.runID(), Workspace: messages.Workspace{ID: a.WorkspaceID.String(), Name: a.Workspace},
		Mode: mode, Variables: l.values, Machines: l.plan.Wanted, Obsolete: l.plan.Obsolete,
		Targets: names(l.snapshot.Targets), State: l.state.Program,
	}
	for _, m := range l.state.Machines {
		if m.Intent != nil {
			w.Intents = append(w.Intents, *m.Intent)
		}
	}
	return w
}

// Plan implements provisioner.
func (l *linesRun) Plan(ctx context.Context) (planned, error) {
	if err := l.describe(ctx); err != nil {
		return planned{}, err
	}
	if l.operation() == provision.OperationRefresh {
		return l.refresh(ctx)
	}
	if len(l.snapshot.Replace) > 0 {
		if err := l.can(provision.MachineRebuilds, "rebuild a machine"); err != nil {
			return planned{}, err
		}
	}
	if err := l.compare(); err != nil {
		return planned{}, err
	}
	l.plan.Changes = []machines.Change{} // the program says which
	result, err := l.talk(ctx, &messages.Plan{Work: l.work()}, protocol.Handlers{
		Change: l.toldOf,
	})
	if err != nil {
		return planned{}, failedAs(provision.CodePlanFailed, err)
	}
	l.plan.Program = result.Plan
	l.rebuild()
	l.adopt()
	return l.planned()
}

// toldOf takes a change that the program tells of into the plan.
func (l *linesRun) toldOf(c messages.Change) {
	if c.Action == messages.ActionNone {
		return
	}
	change := machines.Change{Change: c}
	change.Name = l.plan.Of(change).Name
	for i := range change.Attributes {
		if a := &change.Attributes[i]; l.hidden[a.Name] {
			a.Before, a.After, a.Sensitive = nil, nil, true
		}
	}
	l.plan.Changes = append(l.plan.Changes, change)
}

// rebuild plans the machines that a person wants rebuilt, and those of which the template's
// commands have not ended well, unless the program replaces them already.
func (l *linesRun) rebuild() {
	asked, targets := names(l.snapshot.Replace), names(l.snapshot.Targets)
	for _, name := range asked {
		if m := l.state.Named(name); m == nil || !l.wants(m) {
			l.log.System("Warning: nothing is at %s, which is to be replaced.", machines.Address(name))
		} else {
			l.replace(m, "it was asked for")
		}
	}
	for i := range l.state.Machines {
		m := &l.state.Machines[i]
		if m.Unfinished && m.Intent == nil && l.wants(m) && (len(targets) == 0 || slices.Contains(targets, m.Wanted.Name)) {
			l.replace(m, "its making was not completed")
		}
	}
}

func (l *linesRun) wants(m *machines.Machine) bool {
	return slices.ContainsFunc(l.plan.Wanted, func(w messages.Wanted) bool { return w.ID == m.ID })
}

// replace plans a machine to be made again. A program that can't rebuild is to replace it.
func (l *linesRun) replace(m *machines.Machine, why string) {
	change := machines.Change{
		Name: m.Wanted.Name, Rebuild: slices.Contains(l.state.Actions, provision.MachineRebuilds),
		Change: messages.Change{Machine: m.ID, Action: messages.ActionReplace, Why: why},
	}
	switch at := slices.IndexFunc(l.plan.Changes, func(c machines.Change) bool { return c.Machine == m.ID }); {
	case at < 0:
		l.plan.Changes = append(l.plan.Changes, change)
	case l.plan.Changes[at].Action == messages.ActionChange:
		change.Attributes = l.plan.Changes[at].Attributes
		l.plan.Changes[at] = change
	}
}

// can fails unless the program says that it does something.
func (l *linesRun) can(action provision.MachineAction, what string) error {
	if slices.Contains(l.state.Actions, action) {
		return nil
	}
	return provision.Fail(provision.CodeOperationRefused, fmt.Sprintf(
		"This template's provisioner can't %s: %q is not among the actions that it describes. Nothing was done.", what, string(action)), nil)
}

// refresh asks how the machines are, and records that. What has changed outside is left to
// a person.
func (l *linesRun) refresh(ctx context.Context) (planned, error) {
	if err := l.can(provision.MachineRefreshes, "refresh machines"); err != nil {
		return planned{}, err
	}
	l.plan = machines.AsRecorded(l.state)
	var gone []string
	h := l.handlers(ctx, l.noEvent)
	h.Change, h.Intent = l.toldOf, nil
	record := h.Machine
	h.Machine = func(m messages.Machine) error {
		if m.Status == messages.StatusGone {
			gone = append(gone, m.ID)
		}
		return record(m)
	}
	if _, err := l.talk(ctx, &messages.Refresh{Work: l.work()}, h); err != nil {
		return planned{}, failedAs(provision.CodePlanFailed, err)
	}
	for _, id := range gone {
		if l.state.Find(id) != nil && !slices.ContainsFunc(l.plan.Changes, func(c machines.Change) bool { return c.Machine == id }) {
			l.toldOf(messages.Change{Machine: id, Action: messages.ActionDestroy, Why: "the provisioner says that it is gone"})
		}
	}
	return planned{drift: l.plan.Summary().Resources, found: l.found()}, nil
}

// Power implements powerSwitch.
func (l *linesRun) Power(ctx context.Context, to reporter) error {
	l.steps = newSteps(to)
	if err := l.describe(ctx); err != nil {
		return err
	}
	action, what := provision.MachinePowers, "start or stop machines"
	if l.rescues() {
		action, what = provision.MachineRescues, "boot machines from a rescue system"
	}
	if err := l.can(action, what); err != nil {
		return err
	}
	l.plan = machines.AsRecorded(l.state)
	do, wanted := l.snapshot.Power, names(l.snapshot.Targets)
	for _, name := range wanted {
		switch m := l.state.Named(name); {
		case m == nil:
			return provision.Fail(provision.CodePlanFailed, fmt.Sprintf("This workspace has no machine %s. Nothing was done.", name), nil)
		case m.Intent != nil:
			return provision.Fail(provision.CodePlanFailed, fmt.Sprintf(
				"A run was interrupted while it was at work on the machine %s, so it is not known what there is to %s. Refresh or deploy first. Nothing was done.", name, do), nil)
		}
	}
	// As before an apply: a run that changes machines must own the workspace.
	if err := l.session.reportAndWait(ctx, provision.Detail{Stage: provision.StageApply, Percent: new(0)}); err != nil {
		return err
	}
	atOnce := 1 // a template's own program is asked one after the other
	if l.by.trusted {
		atOnce = powersAtOnce
	}
	p := &powering{run: l, to: to, do: do, total: len(wanted)}
	slots := make(chan struct{}, atOnce)
	var group sync.WaitGroup
	for _, name := range wanted {
		slots <- struct{}{}
		if ctx.Err() != nil || p.over() {
			break
		}
		group.Go(func() {
			defer func() { <-slots }()
			p.machine(ctx, name)
		})
	}
	group.Wait()
	return p.outcome(ctx)
}

// rescues reports whether machines are to boot a rescue system, or to leave it.
func (l *linesRun) rescues() bool {
	return l.snapshot.Power == provision.PowerRescue || l.snapshot.Power == provision.PowerUnrescue
}

// powersAtOnce is how many machines of pools are started or stopped at a time: a machine may
// take a minute to shut down, and a class has twenty.
const powersAtOnce = 20

// powering is the start, stop, restart or rescue of a run's machines. One that fails keeps no other
// from it.
type powering struct {
	run   *linesRun
	to    reporter
	do    provision.Power
	total int

	mu     sync.Mutex // of the state as well
	done   int        // well or not
	failed []error
	lost   bool // something could not be recorded, so nothing more may be done
}

func (p *powering) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// machine does it to one of them.
func (p *powering) machine(ctx context.Context, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := *p.run // what is kept of a conversation is this machine's alone
	l.percents, l.making, l.doing, l.labels, l.steps = map[string]int{}, map[string]bool{}, map[string]string{}, maps.Clone(l.labels), newSteps(p.to)
	known := l.state.Named(name)
	if known == nil { // the program has said of it meanwhile that it is gone
		p.done++
		p.failed = append(p.failed, fmt.Errorf("%s the machine %s: it is gone", p.do, name))
		return
	}
	m := l.recorded(known.ID)
	event := provision.Event{Kind: "resource_started", Address: machines.Address(name), Action: string(p.do), At: time.Now()}
	p.to.on(event, percentOf(p.done, p.total))
	began, told := event.At, false
	h := l.handlers(ctx, l.noEvent)
	record, output, state := h.Machine, h.Output, h.State
	h.Intent = nil
	h.Machine = func(now messages.Machine) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		told = told || now.ID == m.ID
		return record(now)
	}
	h.Output = func(o messages.Output) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		return output(o)
	}
	h.State = func(text json.RawMessage) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		return state(text)
	}
	becomes := messages.StatusRunning
	if p.do == provision.PowerStop {
		becomes = messages.StatusStopped
	}
	if err := p.rescues(known); err != nil {
		p.done++
		p.lost = true
		p.failed = append(p.failed, fmt.Errorf("%s the machine %s: %w", p.do, name, err))
		return
	}
	request := &messages.Power{Work: l.work(), Machine: m.ID, Action: messages.PowerAction(p.do)}
	p.mu.Unlock()
	_, err := l.talk(ctx, request, h)
	p.mu.Lock()
	if !told {
		if m.Status = becomes; err != nil { // it may have been done all the same
			m.Status = messages.StatusUnknown
		}
		err = errors.Join(err, l.settle(m.Machine))
	}
	if now := l.state.Find(m.ID); err == nil && p.do == provision.PowerUnrescue {
		now.LeaveRescue()
		err = l.settle(now.Machine)
	} else if err == nil && now.Status != becomes && !now.Unfinished && !l.rescues() {
		err = fmt.Errorf("the provisioner says that it is done, and that the machine is %s", now.Status)
	}
	p.done++
	event.Kind, event.At, event.Seconds = "resource_finished", time.Now(), time.Since(began).Seconds()
	if err != nil {
		event.Kind, event.Message = "resource_failed", l.log.MaskString(oneLine(reason(err)))
	}
	p.to.on(event, percentOf(p.done, p.total))
	if err != nil {
		_, lost := errors.AsType[*notRecordedError](err)
		p.lost = p.lost || lost
		p.failed = append(p.failed, fmt.Errorf("%s the machine %s: %w", p.do, name, err))
		if p.total > 1 {
			l.log.System("%s: %s", machines.Address(name), oneLine(reason(err)))
		}
		return
	}
	l.log.System("%s: %s done, it is %s now.", machines.Address(name), p.do, l.state.Find(m.ID).Status)
}

// rescues records that a machine is about to boot a rescue system, from when on it can be told to
// leave that, whatever becomes of the run. The caller holds the lock.
func (p *powering) rescues(known *machines.Machine) error {
	if p.do != provision.PowerRescue || known.Rescued {
		return nil
	}
	known.Rescued = true
	return p.run.store()
}

// outcome is how the whole went.
func (p *powering) outcome(ctx context.Context) error {
	switch {
	case p.done < p.total && !p.lost, ctx.Err() != nil && len(p.failed) > 0:
		return provision.Fail(provision.CodeCancelled, fmt.Sprintf("Interrupted after %d of %d machines.", p.done-len(p.failed), p.total), context.Cause(ctx))
	case len(p.failed) == 0:
		return nil
	case len(p.failed) == 1:
		return failedAs(provision.CodeApplyFailed, p.failed[0])
	}
	return provision.Fail(provision.CodeApplyFailed, fmt.Sprintf("%d of %d machines failed: %s", len(p.failed), p.total, sentence(p.failed[0].Error())+" The log has the others."), errors.Join(p.failed...))
}

// noEvent drops events, for requests that have none or whose caller reports them.
func (*linesRun) noEvent(string, string, string) {}

// adopt has the program asked again for machines that it finds as they should be and that
// nothing is recorded of: a run was ended between their making and its report.
func (l *linesRun) adopt() {
	for _, m := range l.state.Machines {
		planned := slices.ContainsFunc(l.plan.Changes, func(c machines.Change) bool { return c.Machine == m.ID })
		targets := names(l.snapshot.Targets)
		if m.Intent == nil || planned || len(targets) > 0 && !slices.Contains(targets, m.Wanted.Name) {
			continue
		}
		change := machines.Change{Name: m.Wanted.Name, Change: messages.Change{
			Machine: m.ID, Action: messages.ActionCreate, Why: "a run was interrupted while it made this machine, and it is taken over if it exists",
		}}
		if !slices.ContainsFunc(l.plan.Wanted, func(w messages.Wanted) bool { return w.ID == m.ID }) {
			change.Action, change.Why = messages.ActionDestroy, "a run was interrupted while it changed this machine, and nobody wants it any more"
		}
		l.plan.Changes = append(l.plan.Changes, change)
	}
}

// failedAs gives an error that has none a code.
func failedAs(code provision.Code, err error) error {
	if failure := provision.AsFailure(err); failure.Code != provision.CodeInternal {
		return err
	}
	return provision.Fail(code, sentence(err.Error()), err)
}

// Detaches implements detacher.
func (l *linesRun) Detaches() bool { return l.describes.Detachable }

// Apply implements provisioner. Where this run's apply has begun already, it takes that up.
func (l *linesRun) Apply(ctx context.Context, to reporter) error {
	l.steps = newSteps(to)
	l.steps.declare(l.withCommands(l.file.Steps...))
	resumes := l.state.Begun(l.runID())
	if !resumes && l.detach() != nil {
		l.state.Run = &machines.Run{ID: l.runID()}
	}
	changes, rebuilds, total, done := []messages.Change{}, []string{}, 0, 0
	began, ended := map[string]time.Time{}, map[string]bool{}
	for _, c := range l.plan.Changes {
		if c.Machine != "" {
			total++
		}
		switch {
		case resumes && c.Machine != "" && slices.Contains(l.state.Run.Done, c.Machine):
			ended[c.Machine] = true
			done++
		case c.Rebuild:
			rebuilds = append(rebuilds, c.Machine)
		default:
			changes = append(changes, c.Change)
		}
	}
	event := func(kind, id, action string) {
		e := provision.Event{Kind: kind, Address: machines.Address(l.named(id).Name), Action: action, At: time.Now()}
		if kind == "resource_started" {
			began[id] = e.At
		} else if e.Seconds = time.Since(began[id]).Seconds(); !ended[id] { // destroyed and made again is one
			ended[id] = true
			done++
		}
		to.on(e, percentOf(done, total))
	}
	if resumes {
		l.log.System("The work that this run began is taken up again; %d of %d machines are done.", done, total)
		l.takeUp(event)
	}
	var err error
	if len(changes) > 0 {
		var request messages.Request = &messages.Apply{Work: l.work(), Plan: l.plan.Program, Changes: changes, Resume: resumes}
		if l.operation() == provision.OperationDestroy {
			request = &messages.Destroy{Work: l.work(), Plan: l.plan.Program, Changes: changes, Resume: resumes}
		}
		_, err = l.talk(ctx, request, l.handlers(ctx, event))
	}
	for _, id := range rebuilds {
		if err == nil {
			_, err = l.talk(ctx, &messages.Rebuild{Work: l.work(), Machine: id, Resume: resumes}, l.handlers(ctx, event))
		}
	}
	if errors.Is(err, errDetached) {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(l.doing)) {
		event("resource_failed", id, l.doing[id])
	}
	if len(l.failures) > 0 {
		if err != nil {
			l.log.System("%s", oneLine(sentence(reason(err))))
		}
		err = l.failures[0]
	}
	if err == nil {
		err = l.notDone()
	}
	if err == nil {
		err = l.asWanted()
	}
	if err == nil && len(l.state.Machines) == 0 && l.state.Outputs != nil {
		l.state.Outputs = nil
		err = l.store()
	}
	if err != nil {
		return failedAs(provision.CodeApplyFailed, err)
	}
	return nil
}

// takeUp goes on with what an earlier program has begun: with the machines as they are known
// now, and those that are being made.
func (l *linesRun) takeUp(event func(kind, id, action string)) {
	for i, wanted := range l.plan.Wanted {
		if known := l.state.Find(wanted.ID); known != nil {
			l.plan.Wanted[i].ExternalID = known.ExternalID
		}
	}
	for _, known := range l.state.Machines {
		if known.Intent != nil {
			l.doing[known.ID] = string(known.Intent.Action)
			event("resource_started", known.ID, l.doing[known.ID])
		}
	}
}

// detach is closed when the program of an apply is to leave its work going on; nil: it can't.
func (l *linesRun) detach() <-chan struct{} {
	if l.job.MaySetDown && l.Detaches() {
		return l.session.detach
	}
	return nil
}

// finished reports whether the run is done with a machine that is about to be settled.
func finished(known *machines.Machine, now messages.MachineStatus) bool {
	switch {
	case known == nil || known.Intent == nil:
		return false
	case known.Intent.Action == messages.ActionDestroy:
		return now == messages.StatusGone
	}
	return now == messages.StatusRunning || now == messages.StatusStopped || now == messages.StatusFailed
}

// asWanted records that the machines of the plan are as it wanted them: a change within a
// machine has no intent that would say so.
func (l *linesRun) asWanted() error {
	changed := false
	for _, c := range l.plan.Changes {
		if known := l.state.Find(c.Machine); known != nil && c.Action == messages.ActionChange {
			l.becomes(known, l.plan.Of(c))
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return l.store()
}

// destroys reports whether the plan is to leave no machine where this one is.
func (l *linesRun) destroys(id string) bool {
	return slices.ContainsFunc(l.plan.Changes, func(c machines.Change) bool { return c.Machine == id && c.Action == messages.ActionDestroy })
}

// named is the machine of an id, as the plan has it.
func (l *linesRun) named(id string) messages.Wanted {
	return l.plan.Of(machines.Change{Change: messages.Change{Machine: id}})
}

// errDetached is the error of a request whose work continues without the program.
var errDetached = errors.New("the provisioner has detached, and its work continues without it")

// handlers record what the program tells of machines, outputs and its state, and tell what is
// being done to which machine.
func (l *linesRun) handlers(ctx context.Context, event func(kind, id, action string)) protocol.Handlers {
	return protocol.Handlers{
		Intent: func(limited context.Context, i messages.Intent) error {
			wanted := l.named(i.Machine)
			if _, known := l.doing[i.Machine]; !known {
				l.doing[i.Machine] = string(i.Action)
				event("resource_started", i.Machine, string(i.Action))
			}
			if i.Action != messages.ActionDestroy {
				err := l.meanwhile(func() error { return l.commandsBefore(ctx, wanted, l.steps) })
				if l.failed(wanted.Name, err) {
					return err
				}
				l.making[i.Machine] = true
			}
			wanted.ExternalID = cmp.Or(i.ExternalID, wanted.ExternalID)
			return l.intendTo(limited, wanted, i)
		},
		Machine: func(m messages.Machine) error {
			was := l.recorded(m.ID)
			switch known := l.state.Find(m.ID); {
			case known == nil && m.Status != messages.StatusGone: // it exists, and a run has not heard of it
				l.state.Intend(l.named(m.ID), messages.Intent{})
			case known != nil && m.Status == messages.StatusGone && known.Intent == nil:
				l.log.System("The provisioner says that %s is gone, and nothing was to be done to it: it is recorded as unknown.", machines.Address(known.Wanted.Name))
				m.Status = messages.StatusUnknown
			}
			refused := len(m.Credentials) > 0 && l.by.noCredentials
			if refused {
				m.Credentials = nil
				if l.making[m.ID] {
					m.Status = messages.StatusFailed
				}
			}
			if finished(l.state.Find(m.ID), m.Status) && (m.Status != messages.StatusGone || l.destroys(m.ID)) {
				l.state.Run.Finish(m.ID)
			}
			if err := l.settle(m); err != nil {
				return err
			}
			if refused {
				return errCredentials
			}
			action, known := l.doing[m.ID]
			if known && l.making[m.ID] && (m.Status == messages.StatusRunning || m.Status == messages.StatusStopped) {
				err := l.meanwhile(func() error { return l.commandsAfter(ctx, m, l.steps) })
				if l.failed(l.named(m.ID).Name, err) {
					m.Status = messages.StatusFailed
				}
			}
			if known && m.Status != messages.StatusCreating {
				kind := "resource_finished"
				if m.Status == messages.StatusFailed {
					kind = "resource_failed"
				}
				event(kind, m.ID, action)
				delete(l.doing, m.ID)
			}
			return l.reportFound(was, m)
		},
		Output: func(o messages.Output) error {
			if l.state.Outputs == nil {
				l.state.Outputs = map[string]messages.Output{}
			}
			l.state.Outputs[o.Name] = o
			return l.store()
		},
		State: func(state json.RawMessage) error {
			l.state.Program = state
			return l.store()
		},
	}
}

// reportFound reports that another agent would find what was intended for a machine, which was as
// recorded before: all of it is done, or what is created is there and bears its mark. While it
// isn't reported, nobody takes the run up should this agent be lost.
func (l *linesRun) reportFound(was *machines.Machine, m messages.Machine) error {
	if l.detach() == nil || was == nil || was.Intent == nil {
		return nil
	}
	if now := l.state.Find(was.ID); now != nil && now.Intent != nil &&
		(now.Intent.Action != messages.ActionCreate || now.Unfinished || m.ExternalID == "" || now.Status != messages.StatusCreating) {
		return nil
	}
	return l.session.report(provision.Detail{Events: []provision.Event{{Kind: "machine_found", Address: machines.Address(was.Wanted.Name), Message: was.ID, At: time.Now()}}})
}

// meanwhile does something that is not of the program's time.
func (l *linesRun) meanwhile(do func() error) error {
	l.pause()
	defer l.resume()
	return do()
}

// failed notes that commands around a machine's making have failed, if they have.
func (l *linesRun) failed(name string, err error) bool {
	if err == nil {
		return false
	}
	l.log.System("%s: %s", machines.Address(name), oneLine(reason(err)))
	l.failures = append(l.failures, fmt.Errorf("the machine %s: %w", name, err))
	return true
}

// notDone names the machines that are not as the plan wanted them, whatever the program
// says of the whole.
func (l *linesRun) notDone() error {
	var missing []string
	for _, c := range l.plan.Changes {
		if c.Machine == "" {
			continue
		}
		m := l.state.Find(c.Machine)
		destroyed := c.Action == messages.ActionDestroy
		if destroyed != (m == nil) || m != nil && (m.InDoubt() || m.Status == messages.StatusFailed || m.Status == messages.StatusCreating) {
			missing = append(missing, c.Address())
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("the provisioner says that all is done, and that is not so for %s; deploy again", strings.Join(missing, ", "))
}

// talk has the program carry out a request. Its log, its steps and what it writes to stderr
// are in the run's log.
func (l *linesRun) talk(ctx context.Context, request messages.Request, h protocol.Handlers) (messages.Result, error) {
	clear(l.percents) // what an earlier request has told of steps is not this one's
	clear(l.making)
	for id, action := range l.doing { // what is taken up
		l.making[id] = action != string(messages.ActionDestroy)
	}
	log := l.log
	// A plan makes nothing. Every other request can be answered with credentials.
	out := &held{log: log, open: request.Type() == "plan" || l.by.noCredentials || l.by.trusted}
	ran, err := l.by.start(out.stream(provision.Stderr))
	if err != nil {
		return messages.Result{}, l.cannotStart(err)
	}
	if h.Intent != nil { // it begins something
		h.Detach = l.detach()
	}
	if h.Detach != nil {
		var stop context.CancelFunc
		ctx, stop = l.session.unlessAgentGone(ctx)
		defer stop()
	}
	limited, cancel, pause, resume := timelimit.Pausable(ctx, l.by.timeout)
	defer cancel()
	l.pause, l.resume = pause, resume
	h.Mask = func(secrets []string) { log.Mask(secrets...) }
	h.Log = func(line messages.Log) {
		if line.Level == messages.LevelWarn || line.Level == messages.LevelError {
			line.Message = string(line.Level) + ": " + line.Message
		}
		_, _ = out.stream(provision.Stdout).Write([]byte(line.Message + "\n")) // the log keeps its own errors
	}
	h.Step = func(step messages.Step) {
		if step.Label != "" {
			l.labels[step.ID] = step.Label
		}
		about := ""
		if m := l.named(step.Machine); m.Name != "" {
			about = m.Name + ": "
		}
		label, at := cmp.Or(l.labels[step.ID], step.ID), step.Machine+" "+step.ID
		if told, known := l.percents[at]; !known || told != int(step.Percent) {
			l.percents[at] = int(step.Percent)
			_, _ = fmt.Fprintf(out.stream(provision.Stdout), "%s (%d %%)\n", oneLine(about+label), int(step.Percent)) // the log keeps its own errors
			if l.steps != nil {
				if !out.open {
					label = l.declaredLabel(step.ID)
				}
				l.steps.reach(machines.Address(l.named(step.Machine).Name), step.ID, log.MaskString(oneLine(label)), int(step.Percent))
			}
		}
	}
	outcome, err := protocol.Talk(limited, ran.Program, request, h)
	exit := ran.end(!endsByItself(err))
	detached := err == nil && outcome.Result.Code == messages.CodeDetached
	if l.steps != nil && !detached {
		l.steps.endAll(err == nil && outcome.Result.OK)
	}
	if err := l.letOut(out); err != nil {
		return outcome.Result, err
	}
	if err = outcome.Check(exit); err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("%s %w", l.by.name, timelimit.Why(limited, err))
		}
		return outcome.Result, err
	}
	switch r := outcome.Result; {
	case detached:
		return r, errDetached
	case r.Code == messages.CodeCancelled && limited.Err() != nil && ctx.Err() == nil: // it was, for its time was over
		return r, fmt.Errorf("%s %w", l.by.name, context.Cause(limited))
	case !r.OK:
		text := fmt.Sprintf("the provisioner could not carry out %s (%s)", request.Type(), cmp.Or(r.Code, messages.CodeFailed))
		if r.Message != "" {
			text += ": " + r.Message
		}
		if r.Retry {
			text = sentence(text) + " It may work later: deploy again"
		}
		if code := provision.Code(r.Code); l.by.trusted && slices.Contains(provision.Codes, code) { // this agent's own
			return r, provision.Fail(code, sentence(cmp.Or(r.Message, text)), nil)
		}
		return r, fmt.Errorf("%s", text)
	case r.Status == messages.ResultPartial:
		return r, fmt.Errorf("the machines exist, but not all stages are done (done: %v)", r.StagesCompleted)
	}
	return outcome.Result, nil
}

// declaredLabel is what the template calls a step, else its id. It is shown at once, which the
// program's own words must not be while a password in them can't be masked yet.
func (l *linesRun) declaredLabel(id string) string {
	for _, declared := range l.file.Steps {
		if declared.ID == id {
			return declared.Label
		}
	}
	return id
}

// letOut shows what a program has written for people once all credentials are known: those of
// a machine that it was allowed to make come with the machine.
func (l *linesRun) letOut(out *held) error {
	for _, id := range slices.Sorted(maps.Keys(l.making)) {
		if m := l.state.Find(id); m != nil && m.Intent != nil {
			return l.withhold(out, id)
		}
	}
	out.release()
	return nil
}

// Result implements provisioner.
func (l *linesRun) Result(context.Context) results { return l.found() }
