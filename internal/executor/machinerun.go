package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/managedstate"
	"github.com/tendril-run/tendril/internal/once"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/terraform"
	"github.com/tendril-run/tendril/internal/tfvars"
	"github.com/tendril-run/tendril/internal/timelimit"
	messages "github.com/tendril-run/tendril/provisioner"
)

// machineRun carries out a template whose machines a script makes, one at a time.
type machineRun struct {
	given
	file     *templatefile.File
	programs programs
	template *tfvars.Template
	values   map[string]json.RawMessage // of the variables
	typed    map[string]cty.Value       // the same; sensitive ones are marked
	wanted   []messages.Wanted
	hidden   map[string]bool // paths of settings that are sensitive

	state *machines.State
	// resumes says that what was interrupted can be asked for again.
	resumes bool
	plan    *machines.Plan
	// engine is how plans and runs name what makes the machines.
	engine string
	// inPlace and firstStart are as in machines.Asked.
	inPlace    []string
	firstStart string
	// ssh are the keys of the machines that this run makes and signs in to, by id.
	ssh map[string]*machines.SSHKeys
	// takesOver says that what exists is recorded, and nothing made.
	takesOver bool
	// pooled says that machines are made in pools: what is sensitive of their settings is hidden as
	// deep as it is, and no variables are recorded with them.
	pooled bool
	// lacks reports whether an action that the run has is none of this machine's; nil: all are.
	lacks func(messages.Wanted, provision.MachineAction) bool
	// compares says that a program finds what differs, and not what is recorded.
	compares bool
	// base is the plan as it is stored, and applied.
	base []byte
}

// Validate implements provisioner.
func (m *machineRun) Validate(plain, sealed map[string]json.RawMessage) (err error) {
	if m.template, err = tfvars.Load(m.dir, m.kind); err != nil {
		return err
	}
	m.tellVariables(m.template)
	given := tfvars.Given{Plain: plain, Sealed: sealed, PlainSensitive: m.job.Settings.Policy.PlainSensitive}
	rendered, err := m.template.Render(given)
	if err != nil {
		return err
	}
	m.tellRendered(rendered)
	values, err := m.template.Values(given)
	if err != nil {
		return err
	}
	declared, err := m.template.Declared()
	if err != nil {
		return err
	}
	if err := m.file.CheckVariables(declared); err != nil {
		return err
	}
	if err := templatefile.CheckValues(m.template.Validations(), values); err != nil {
		return err
	}
	m.values = map[string]json.RawMessage{}
	for name, value := range values {
		value, _ = value.UnmarkDeep()
		if m.values[name], err = ctyjson.Marshal(value, value.Type()); err != nil {
			return fmt.Errorf("write the variable %s as JSON: %w", name, err)
		}
	}
	wanted, err := m.file.Machines(values)
	if err != nil {
		return err
	}
	m.typed, m.hidden = values, map[string]bool{}
	for _, w := range wanted {
		machine, err := m.want(w)
		if err != nil {
			return err
		}
		m.wanted = append(m.wanted, machine)
	}
	if !m.job.Settings.State.MayBeManaged() || m.job.ManagedState == nil {
		return provision.Fail(provision.CodeStateFailed,
			"This template's machines are recorded in a managed state, and this agent keeps states in files: set state.default = \"managed\" in its configuration (docs/CONFIGURATION.md, state).", nil)
	}
	if m.managed, err = serveState(m.job, m.log); err != nil {
		return err
	}
	m.state, err = machines.Read(m.managed.State())
	if errors.Is(err, machines.ErrForeign) {
		return provision.Fail(provision.CodeStateInvalid,
			"The workspace's state was made by a template of another kind. Destroy what it records with that template first, or deploy this one to another workspace.", err)
	}
	if err != nil {
		return provision.Fail(provision.CodeStateInvalid, err.Error(), err)
	}
	m.log.Mask(m.state.Secrets()...)
	m.mark = func(machine string) string {
		if known := m.state.Named(machine); known != nil {
			return known.ID
		}
		return ""
	}
	m.engine = string(m.file.Kind)
	return nil
}

// want is a machine of the template as provisioners are told of it.
func (m *machineRun) want(w templatefile.Machine) (messages.Wanted, error) {
	wanted := messages.Wanted{
		Name: w.Name, Pool: w.Pool, Image: w.Image, Address: w.Address,
		Cores: w.Cores, Memory: w.Memory, Disk: w.Disk, Labels: w.Labels,
	}
	for kind, options := range w.Options {
		text, err := ctyjson.Marshal(options.Value, options.Value.Type())
		if err != nil {
			return wanted, fmt.Errorf("write the settings %s as JSON: %w", kind, err)
		}
		if wanted.Settings == nil {
			wanted.Settings = map[string]json.RawMessage{}
		}
		wanted.Settings[kind] = text
		for _, path := range options.Sensitive {
			switch {
			case len(path) == 0:
			case m.pooled && len(path) > 1 && memberOf(path[1]) != "":
				m.hidden[kind+memberOf(path[0])+memberOf(path[1])] = true
			default: // the member that it is in is hidden whole
				m.hidden[kind+memberOf(path[0])] = true
			}
		}
	}
	return wanted, nil
}

// Locate implements provisioner.
func (m *machineRun) Locate(context.Context) (provision.Detail, error) {
	if err := m.locate(); err != nil {
		return provision.Detail{}, err
	}
	m.resumes = m.file.Script.Idempotent
	m.state.Actions = []provision.MachineAction{provision.MachineDestroys, provision.MachineRebuilds}
	m.log.System("Carried out by the template's script.")
	return provision.Detail{Engine: m.engine, EngineVersion: "once"}, nil
}

func (m *machineRun) locate() error {
	credentials, err := writeCredentials(m.job.Credentials, m.files.secrets)
	if err != nil {
		return err
	}
	for _, command := range m.commands() {
		if err := m.allowed(command); err != nil {
			return err
		}
	}
	m.programs = programs{
		task: m.task, dir: m.dir, confine: m.id.Confine,
		env: slices.Concat(os.Environ(), credentials, []string{
			dataVariable + m.files.data, // by which the agent finds what a killed run has left running
			"TMPDIR=" + m.files.temp,
			"TENDRIL_WORKSPACE=" + m.job.Assignment.Workspace,
		}),
	}
	if m.job.Check == nil {
		m.programs.env = append(m.programs.env, "TENDRIL_RUN="+m.job.Assignment.ProvisionID.String())
	}
	return nil
}

func (m *machineRun) commands() [][]string {
	var all [][]string
	if s := m.file.Script; s != nil {
		all = [][]string{s.Command, s.Provision, s.Terminate, s.HealthCheck}
	}
	if m.job.Check != nil {
		all = append(all, m.file.Health.Command)
	}
	return slices.DeleteFunc(all, func(c []string) bool { return len(c) == 0 })
}

// allowed fails unless the agent's policy lets a command run. Programs of the template
// itself run as all of its code does.
func (m *machineRun) allowed(command []string) error {
	if !filepath.IsAbs(command[0]) || slices.Contains(m.job.Settings.Policy.Programs, command[0]) {
		return nil
	}
	return provision.Fail(provision.CodePolicyRefused, fmt.Sprintf(
		"This template runs %s, which this agent's policy does not allow: policy.programs in its configuration lists what templates may run outside of their own directory.", command[0]), nil)
}

// Prepare implements provisioner.
func (m *machineRun) Prepare(context.Context) error { return nil }

// Plan implements provisioner.
func (m *machineRun) Plan(context.Context) (planned, error) {
	if m.operation() == provision.OperationRefresh {
		return planned{}, provision.Fail(provision.CodeOperationRefused,
			"A script that is asked once can't say how its machines have changed outside. Nothing was checked.", nil)
	}
	if err := m.compare(); err != nil {
		return planned{}, err
	}
	return m.planned()
}

// compare compares what the template wants with what the state records.
func (m *machineRun) compare() (err error) {
	wanted := m.wanted
	if m.operation() == provision.OperationDestroy {
		wanted = nil
	}
	m.plan, err = machines.NewPlan(m.state, machines.Asked{
		Wanted: wanted, Sensitive: m.hidden, Resumes: m.resumes, InPlace: m.inPlace, FirstStart: m.firstStart,
		Targets: names(m.snapshot.Targets), Replace: names(m.snapshot.Replace),
	})
	return err
}

func (m *machineRun) planned() (_ planned, err error) {
	if m.base, err = json.Marshal(m.plan); err != nil {
		return planned{}, fmt.Errorf("write the plan: %w", err)
	}
	summary := m.plan.Summary()
	m.print(summary)
	if m.operation() == provision.OperationApply && m.recordWanted() && summary.Empty() {
		if err := m.store(); err != nil {
			return planned{}, fmt.Errorf("record what is wanted of the machines: %w", err)
		}
	}
	p := planned{summary: summary, changes: !summary.Empty(), found: m.found(), room: int64(4 * len(m.base))}
	if len(m.job.Settings.Policy.Hook) > 0 {
		p.json, err = m.forHook()
	}
	return p, err
}

// recordWanted records what the template wants of machines that need no change for it, and
// reports whether that is anything new: other labels make no machine another one, and a program
// that compares finds what an interrupted run has changed already.
func (m *machineRun) recordWanted() (changed bool) {
	targets := names(m.snapshot.Targets)
	for _, wanted := range m.plan.Wanted {
		known := m.state.Find(wanted.ID)
		if known == nil {
			continue
		}
		was := asJSON(known.Wanted)
		touched := len(targets) > 0 && !slices.Contains(targets, wanted.Name) ||
			slices.ContainsFunc(m.plan.Changes, func(c machines.Change) bool { return c.Machine == wanted.ID })
		if m.compares && !touched && !known.InDoubt() {
			m.becomes(known, wanted)
		}
		known.Wanted.Labels = wanted.Labels
		changed = changed || !bytes.Equal(was, asJSON(known.Wanted))
	}
	return changed
}

// becomes records that a machine is as it is wanted now.
func (m *machineRun) becomes(known *machines.Machine, wanted messages.Wanted) {
	known.Wanted, known.Config, known.Hidden = wanted, m.config(wanted), slices.Sorted(maps.Keys(m.hidden))
}

func asJSON(wanted messages.Wanted) []byte {
	text, _ := json.Marshal(wanted) // it came as JSON
	return text
}

// print shows the plan in the log, with the signs that Terraform's users know.
func (m *machineRun) print(s provision.PlanSummary) {
	signs := map[string]string{"create": "+", "update": "~", "replace": "-/+", "delete": "-"}
	value := func(a provision.AttributeChange, json json.RawMessage) string {
		switch {
		case a.Sensitive:
			return "(sensitive)"
		case len(json) == 0 || string(json) == "null":
			return "(none)"
		}
		return string(json)
	}
	for _, change := range s.Resources {
		why := ""
		if change.Reason != "" {
			why = " (" + change.Reason + ")"
		}
		m.log.System("%3s %s", signs[change.Action], oneLine(change.Address+why))
		for _, a := range change.Attributes {
			if !a.Sensitive && (len(a.Before) == 0 || string(a.Before) == "null") {
				m.log.System("      %s", oneLine(a.Path+" = "+value(a, a.After)))
				continue
			}
			m.log.System("      %s", oneLine(a.Path+" = "+value(a, a.Before)+" -> "+value(a, a.After)))
		}
	}
	if !s.Empty() {
		m.log.System("Plan: %d to create, %d to change, %d to replace, %d to destroy.", s.Add, s.Change, s.Replace, s.Destroy)
	}
}

// forHook is the plan as policy hooks read Terraform's, as far as that has names for it.
func (m *machineRun) forHook() ([]byte, error) {
	type change struct {
		Address string         `json:"address"`
		Type    string         `json:"type"`
		Name    string         `json:"name"`
		Change  map[string]any `json:"change"`
	}
	actions := map[messages.Action][]string{
		messages.ActionCreate: {"create"}, messages.ActionChange: {"update"},
		messages.ActionReplace: {"delete", "create"}, messages.ActionDestroy: {"delete"},
	}
	changes := []change{}
	for _, c := range m.plan.Changes {
		var before, after any
		if known := m.state.Find(c.Machine); known != nil {
			before = attributesOf(known.Wanted)
		}
		if c.Action != messages.ActionDestroy {
			after = attributesOf(m.plan.Of(c))
		}
		kind := "machine"
		if c.Machine == "" {
			kind = "work"
		}
		changes = append(changes, change{c.Address(), kind, c.Name, map[string]any{"actions": actions[c.Action], "before": before, "after": after}})
	}
	variables := map[string]any{}
	for name, value := range m.values {
		variables[name] = map[string]any{"value": value}
	}
	text, err := json.Marshal(map[string]any{"format_version": "1.0", "tendril_provisioner": m.engine, "resource_changes": changes, "variables": variables})
	if err != nil {
		return nil, fmt.Errorf("write the plan for the policy hook: %w", err)
	}
	return text, nil
}

func attributesOf(w messages.Wanted) map[string]any {
	return map[string]any{
		"name": w.Name, "pool": w.Pool, "image": w.Image, "cores": w.Cores, "memory": w.Memory, "disk": w.Disk,
		"address": w.Address, "labels": w.Labels, "settings": w.Settings,
	}
}

// Recall implements provisioner.
func (m *machineRun) Recall(context.Context) (planned, error) {
	var err error
	if m.plan, err = machines.ReadPlan(m.approved.Plan, m.state, m.runID()); errors.Is(err, machines.ErrStale) {
		return planned{}, provision.Fail(provision.CodePlanStale, "The machines of this workspace have changed since the plan was made. Nothing was changed: plan again.", err)
	} else if err != nil {
		return planned{}, planbundle.Invalid(err.Error(), err)
	}
	return m.planned()
}

// Save implements provisioner.
func (m *machineRun) Save() (planbundle.Bundle, error) {
	return planbundle.Bundle{Engine: m.engine, EngineVersion: "once", State: "the managed state", Plan: m.base}, nil
}

// Apply implements provisioner. A machine that failed does not keep the others from being
// made, for one has nothing to do with the other.
func (m *machineRun) Apply(ctx context.Context, to reporter) error {
	s := newSteps(to)
	if len(m.file.Before)+len(m.file.After) > 0 {
		s.declare(m.withCommands(stepMake))
	}
	total, done := len(m.plan.Changes), 0
	var failed []error
	for _, change := range m.plan.Changes {
		if change.Action == messages.ActionNone {
			total--
			continue
		}
		if ctx.Err() != nil {
			failed = append(failed, provision.Fail(provision.CodeApplyFailed, fmt.Sprintf(
				"Interrupted after %d of %d machines. What was done is in the state; deploy again to finish.", done, total), context.Cause(ctx)))
			break
		}
		event := provision.Event{Kind: "resource_started", Address: change.Address(), Action: string(change.Action), At: time.Now()}
		to.on(event, percentOf(done, total))
		began := event.At
		err := m.carryOut(ctx, change, s)
		event.At, event.Seconds = time.Now(), time.Since(began).Seconds()
		if err != nil {
			event.Kind, event.Message = "resource_failed", m.log.MaskString(oneLine(reason(err)))
			failed = append(failed, fmt.Errorf("the machine %s: %w", change.Name, err))
			m.log.System("%s: %s", change.Address(), oneLine(reason(err)))
		} else {
			event.Kind = "resource_finished"
			done++
		}
		to.on(event, percentOf(done, total))
		if _, lost := errors.AsType[*notRecordedError](err); lost {
			break // nothing may be done that is not recorded
		}
	}
	switch len(failed) {
	case 0:
		return nil
	case 1:
		failure := provision.AsFailure(failed[0])
		if failure.Code == provision.CodeInternal {
			return provision.Fail(provision.CodeApplyFailed, sentence(failed[0].Error()), failed[0])
		}
		return failed[0]
	}
	return provision.Fail(provision.CodeApplyFailed, fmt.Sprintf("%d of %d machines failed: %s", len(failed), total, sentence(failed[0].Error())+" The log has the others."), errors.Join(failed...))
}

func percentOf(done, total int) int { return done * 100 / max(1, total) }

// carryOut does one change. What there is to know afterwards is in the state before it
// returns, whatever became of it.
func (m *machineRun) carryOut(ctx context.Context, change machines.Change, s *steps) error {
	wanted := m.plan.Of(change)
	if change.Action == messages.ActionReplace || change.Action == messages.ActionDestroy {
		if err := m.destroy(ctx, wanted); err != nil || change.Action == messages.ActionDestroy {
			return err
		}
		wanted.ExternalID = ""
	}
	return m.create(ctx, wanted, s)
}

// notRecordedError is the error of a state, or an intent, that could not be stored.
type notRecordedError struct{ error }

func (n *notRecordedError) Unwrap() error { return n.error }

// intend records what is about to be done: on this agent's disk, and in the database.
// Nothing is done before.
func (m *machineRun) intend(ctx context.Context, wanted messages.Wanted, action messages.Action) error {
	return m.intendTo(ctx, wanted, messages.Intent{ID: wanted.ID, Machine: wanted.ID, Action: action, ExternalID: wanted.ExternalID, Name: wanted.Name})
}

func (m *machineRun) intendTo(ctx context.Context, wanted messages.Wanted, intent messages.Intent) error {
	was := m.recorded(wanted.ID)
	m.state.Intend(wanted, intent)
	if known := m.state.Find(wanted.ID); intent.Action != messages.ActionDestroy {
		known.Config, known.Hidden = m.config(wanted), slices.Sorted(maps.Keys(m.hidden))
		known.SSH = m.ssh[wanted.ID]
		known.Importing = m.takesOver
		known.Unfinished = !m.takesOver && (len(m.file.After) > 0 && !m.file.SkipAfter || m.file.InMachine != nil)
	}
	err := m.store()
	if err == nil {
		// What stands behind a state goes to the database when that is stored.
		err = m.session.reportAndWait(ctx, provision.Detail{Events: []provision.Event{{
			Kind: "machine_intent", Address: machines.Address(wanted.Name), Action: string(intent.Action), Message: wanted.ID, At: time.Now(),
		}}})
	}
	if err != nil {
		m.state.Restore(wanted.ID, was) // nothing was done to it
		return &notRecordedError{fmt.Errorf("nothing was done to it, for what was to be done could not be recorded: %w", errors.Join(err, m.store()))}
	}
	return nil
}

// recorded is what is recorded of a machine, as it is now; nil: nothing.
func (m *machineRun) recorded(id string) *machines.Machine {
	known := m.state.Find(id)
	if known == nil {
		return nil
	}
	copied := *known
	return &copied
}

// runID names the run to programs, and in the state.
func (m *machineRun) runID() string { return m.job.Assignment.ProvisionID.String() }

func (m *machineRun) store() error {
	if !m.state.Begun(m.runID()) {
		m.state.Run = nil // of an earlier one nothing can be taken up any more
	}
	text, err := m.state.Next()
	if err != nil {
		return err
	}
	return m.managed.save(text, managedstate.Header{Version: machines.Version, Serial: m.state.Serial, Lineage: m.state.Lineage})
}

// settle records what a machine is now.
func (m *machineRun) settle(now messages.Machine) error {
	m.state.Settle(now)
	if err := m.store(); err != nil {
		return &notRecordedError{fmt.Errorf("what became of it could not be recorded: %w", err)}
	}
	return nil
}

func (m *machineRun) create(ctx context.Context, wanted messages.Wanted, s *steps) (err error) {
	address := machines.Address(wanted.Name)
	before := m.recorded(wanted.ID)
	if err := m.commandsBefore(ctx, wanted, s); err != nil {
		return err
	}
	if err := m.intend(ctx, wanted, messages.ActionCreate); err != nil {
		return err
	}
	if len(m.file.Before)+len(m.file.After) > 0 {
		s.reach(address, stepMake.ID, stepMake.Label, 0)
		defer func() { s.end(address, err == nil) }()
	}
	request := once.ProvisionOf(wanted)
	request.InstanceConfig = m.config(wanted)
	answer, err := m.ask(ctx, m.file.Script.Provision, request, environmentOf(wanted))
	if err != nil {
		// It may exist. The intent stays, and the next plan says what to do.
		return err
	}
	if r := answer.Response; r.Instance != nil && m.file.Script.NoCredentials {
		now := r.Instance.Machine(wanted.ID, wanted.Name)
		if len(now.Credentials) > 0 { // its log has been shown as it was
			now.Status, now.Credentials = messages.StatusFailed, nil
			return errors.Join(m.settle(now), errCredentials)
		}
	}
	if r := answer.Response; !r.Success {
		now := messages.Machine{ID: wanted.ID, Status: messages.StatusGone} // it says that there is none
		switch {
		case r.Instance != nil && r.Instance.ExternalID != "": // it has made one all the same
			now = r.Instance.Machine(wanted.ID, wanted.Name)
			now.Status = messages.StatusFailed
		case before != nil: // an earlier run may have made it: that it can't be reached now does not end it
			now.Status = messages.StatusUnknown
		}
		return errors.Join(m.settle(now), scriptFailed("make", r))
	}
	now := answer.Response.Instance.Machine(wanted.ID, wanted.Name)
	if answer.Response.Status == messages.ResultPartial {
		now.Status = messages.StatusFailed
		return errors.Join(m.settle(now), fmt.Errorf("it exists, but not all of its stages are done (done: %v). The next deploy replaces it", answer.Response.StagesCompleted))
	}
	if err := m.settle(now); err != nil {
		return err
	}
	m.log.System("%s is made: %s %s", address, now.ExternalID, now.Address)
	return m.commandsAfter(ctx, now, s)
}

// errCredentials is the error of credentials from a script that makes none.
var errCredentials = errors.New(
	"it was made with credentials, which are not kept: credentials = false in tendril.hcl says that the script makes none, so its log was not searched for them. Take that out. The next deploy replaces the machine")

// commandsBefore runs the template's commands before a machine is made.
func (m *machineRun) commandsBefore(ctx context.Context, wanted messages.Wanted, s *steps) error {
	return m.commandsAround(ctx, wanted, s, stepBefore, m.file.Before, "the command %q before it is made: %w", environmentOf(wanted))
}

// commandsAfter runs them after it, and records the machine as it is now if they end well.
func (m *machineRun) commandsAfter(ctx context.Context, now messages.Machine, s *steps) error {
	known := m.recorded(now.ID)
	if known == nil || !known.Unfinished {
		return nil
	}
	environment := append(environmentOf(known.Wanted), "TENDRIL_EXTERNAL_ID="+now.ExternalID, "TENDRIL_ADDRESS="+now.Address)
	err := m.commandsAround(ctx, known.Wanted, s, stepAfter, m.file.After, "it exists, but the command %q after it failed: %w. The next deploy replaces it", environment)
	if err != nil {
		return err
	}
	m.state.Find(now.ID).Unfinished = false
	return m.settle(now)
}

func (m *machineRun) commandsAround(ctx context.Context, wanted messages.Wanted, s *steps, step templatefile.Step, lines []string, failed string, environment []string) (err error) {
	if len(lines) == 0 {
		return nil
	}
	address := machines.Address(wanted.Name)
	s.reach(address, step.ID, step.Label, 0)
	defer func() { s.end(address, err == nil) }()
	for _, line := range lines {
		if err := m.shell(ctx, line, environment); err != nil {
			return fmt.Errorf(failed, line, err)
		}
	}
	return nil
}

// The steps of a machine's making that the template's commands are, and a script is.
var (
	stepBefore = templatefile.Step{ID: "before", Label: "Commands before it is made"}
	stepMake   = templatefile.Step{ID: "make", Label: "Making the machine"}
	stepAfter  = templatefile.Step{ID: "after", Label: "Commands after it is made"}
)

// withCommands are steps with those of the template's commands around them.
func (m *machineRun) withCommands(making ...templatefile.Step) (all []templatefile.Step) {
	if len(m.file.Before) > 0 {
		all = append(all, stepBefore)
	}
	all = append(all, making...)
	if len(m.file.After) > 0 && !m.file.SkipAfter {
		all = append(all, stepAfter)
	}
	return all
}

// environmentOf is what a script's environment has of a machine.
func environmentOf(wanted messages.Wanted) []string {
	return []string{"TENDRIL_MACHINE=" + wanted.Name, "TENDRIL_MACHINE_ID=" + wanted.ID, "TENDRIL_POOL=" + wanted.Pool, "TENDRIL_ADDRESS=" + wanted.Address}
}

// commandTime is how long a command around a machine's making may take that is no script's.
const commandTime = 5 * time.Minute

func (m *machineRun) shell(ctx context.Context, line string, environment []string) error {
	limit := commandTime
	if m.file.Script != nil {
		limit = m.file.Script.Timeout
	}
	limited, cancel := timelimit.Context(m.session.grace, limit)
	defer cancel()
	return m.programs.shell(ctx, limited, line, environment...)
}

// destroy asks with what the machine was made from, whatever the template wants now.
func (m *machineRun) destroy(ctx context.Context, wanted messages.Wanted) error {
	was := m.recorded(wanted.ID)
	if was == nil {
		return nil
	}
	wanted = was.Wanted
	wanted.ExternalID = was.ExternalID
	if err := m.intend(ctx, wanted, messages.ActionDestroy); err != nil {
		return err
	}
	request := once.Request{Action: once.Terminate, ContractID: wanted.ID, ExternalID: wanted.ExternalID, InstanceConfig: was.Config}
	answer, err := m.ask(ctx, m.file.Script.Terminate, request, environmentOf(wanted))
	if err != nil {
		return err
	}
	if !answer.Response.Success { // it is as it was
		m.state.Restore(wanted.ID, was)
		return errors.Join(scriptFailed("destroy", answer.Response), m.store())
	}
	return m.settle(messages.Machine{ID: wanted.ID, Status: messages.StatusGone})
}

// config is what a script gets beside the size: the template's variables, and what the
// machine has for one kind of pool.
func (m *machineRun) config(wanted messages.Wanted) json.RawMessage {
	if m.pooled { // no script asks for it, and it would have the secrets of other machines
		return nil
	}
	all := maps.Clone(m.values)
	maps.Copy(all, wanted.Settings)
	text, err := json.Marshal(all)
	if err != nil {
		return json.RawMessage("{}") // of what was JSON there is no error
	}
	return text
}

func scriptFailed(what string, r once.Response) error {
	text := "the script could not " + what + " it"
	if r.Error != "" {
		text += ": " + r.Error
	}
	if r.RetryPossible {
		text += ". It may work later: deploy again"
	}
	return errors.New(text)
}

// ask runs a command once. When the run is to stop the script is interrupted, and what it
// still answers within the grace counts.
func (m *machineRun) ask(ctx context.Context, command []string, request once.Request, environment []string) (once.Answer, error) {
	making := request.Action == once.Provision
	out := &held{log: m.log, open: !making || m.file.Script.NoCredentials}
	ran, err := m.programs.start(command, out.stream(provision.Stderr), environment...)
	if err != nil {
		return once.Answer{}, fmt.Errorf("start %s: %w", command[0], err)
	}
	limited, cancel := timelimit.Context(m.session.grace, m.file.Script.Timeout)
	defer cancel()
	defer context.AfterFunc(ctx, ran.interrupt)()
	answer, err := once.Ask(limited, ran.Program, request, func(secrets []string) { m.log.Mask(secrets...) })
	// One that is still at work knows what it has made; one that wrote nonsense may.
	exit := ran.end(limited.Err() != nil)
	if answer.Answered {
		out.release()
	} else if err := m.withhold(out, request.ContractID); err != nil {
		return answer, err
	}
	if limited.Err() != nil && !answer.Answered {
		return answer, fmt.Errorf("%s %w; what it did is not known", command[0], timelimit.Why(limited, err))
	}
	return answer, answer.Check(exit)
}

// withhold takes what a program wrote for people that gave no answer about a machine into the
// state: a password that it has made may be in it, which can't be masked as nobody knows it.
func (m *machineRun) withhold(out *held, id string) error {
	text := out.withhold()
	if text == "" {
		return nil
	}
	known := m.state.Find(id)
	known.Withheld = text
	if err := m.store(); err != nil {
		return &notRecordedError{fmt.Errorf("what it wrote could not be recorded: %w", err)}
	}
	m.log.System("%s: what its program wrote is not shown, because there was no answer, and a password in it could not be masked. Read it with the machine's credentials (trellis machines reveal), or say credentials = false in tendril.hcl if the program makes none.",
		machines.Address(known.Wanted.Name))
	return nil
}

// Result implements provisioner.
func (m *machineRun) Result(context.Context) results { return m.found() }

func (m *machineRun) found() results {
	values := map[string]terraform.OutputValue{}
	for name, output := range m.state.Outputs {
		values[name] = terraform.OutputValue{Value: output.Value, Sensitive: output.Sensitive, Type: m.typeOf(name)}
	}
	return results{outputs: m.outputsFor(values), resources: m.state.Resources(m.engine), machines: m.listed()}
}

// listed are the machines as people see them, with what can be done to each.
func (m *machineRun) listed() []provision.Machine {
	listed := m.state.Listed()
	if m.lacks != nil {
		for i, known := range m.state.Machines {
			listed[i].Actions = slices.DeleteFunc(listed[i].Actions, func(a provision.MachineAction) bool { return m.lacks(known.Wanted, a) })
		}
	}
	return listed
}

// typeOf is the type of an output in Terraform's JSON notation; nil where only its program
// knows.
func (m *machineRun) typeOf(name string) json.RawMessage {
	if m.file.Manual != nil {
		for _, o := range m.file.Manual.Outputs {
			if o.Name == name {
				return json.RawMessage(`"` + o.Type + `"`)
			}
		}
	}
	return nil
}

// Close implements provisioner.
func (m *machineRun) Close() { m.stopServing() }

// Origin implements stateEditor.
func (m *machineRun) Origin() planbundle.Bundle {
	return planbundle.Bundle{Engine: m.engine, EngineVersion: "once", State: "the managed state"}
}

// PullState implements stateEditor.
func (m *machineRun) PullState(context.Context) ([]byte, error) {
	if state := m.managed.State(); len(state) > 0 {
		return state, nil
	}
	return nil, nil
}

// Recorded implements stateEditor.
func (m *machineRun) Recorded(context.Context) (results, error) {
	return results{resources: m.state.Resources(m.engine), machines: m.listed()}, nil
}

// Credentials implements credentialKeeper.
func (m *machineRun) Credentials(address string) (map[string]string, error) {
	known := m.state.Named(machines.Name(address))
	if known == nil {
		return nil, provision.Fail(provision.CodeStateFailed, fmt.Sprintf("The state has no machine %s.", address), nil)
	}
	credentials := known.AllCredentials()
	if len(credentials) == 0 {
		return nil, provision.Fail(provision.CodeStateFailed, fmt.Sprintf("The state has no credentials of %s: what made it gave none.", address), nil)
	}
	return credentials, nil
}

// HandedOut implements credentialKeeper.
func (m *machineRun) HandedOut() ([]provision.HandedOut, error) {
	all := m.state.HandedOut()
	if all == nil {
		return nil, provision.Fail(provision.CodeStateFailed, "The state has no credentials of any machine: what made them gave none.", nil)
	}
	return all, nil
}

// EditState implements stateEditor. It is for a person who knows what no program does:
// whether a machine exists that a killed run may have made.
func (m *machineRun) EditState(_ context.Context, c provision.StateCommand, _ []byte) error {
	switch c.Command {
	case "rm":
		for _, address := range c.Args {
			known := m.state.Named(machines.Name(address))
			if known == nil {
				return provision.Fail(provision.CodeStateFailed, fmt.Sprintf("The state has no machine %s. Nothing was changed.", address), nil)
			}
			m.state.Settle(messages.Machine{ID: known.ID, Status: messages.StatusGone})
		}
	case "import":
		name := machines.Name(c.Args[0])
		wanted, known := m.wantedOf(name), m.state.Named(name)
		switch {
		case known != nil && !known.InDoubt():
			return provision.Fail(provision.CodeStateFailed, fmt.Sprintf("The state has a machine %s already: %s. Nothing was changed.", name, known.ExternalID), nil)
		case known != nil:
			wanted, known.Unfinished = known.Wanted, false
		case wanted.Name == "":
			return provision.Fail(provision.CodeStateFailed, fmt.Sprintf("The template wants no machine %s. Nothing was changed.", name), nil)
		default:
			wanted.ID = uuid.NewString()
			m.state.Intend(wanted, messages.Intent{ID: wanted.ID, Machine: wanted.ID, Action: messages.ActionCreate})
		}
		m.state.Settle(messages.Machine{ID: wanted.ID, ExternalID: c.Args[1], Status: messages.StatusRunning})
	default:
		return provision.Fail(provision.CodeStateFailed, fmt.Sprintf("The state command %s is for Terraform's states; this one records machines.", c.Command), nil)
	}
	return m.store()
}

// wantedOf is the machine of that name that the template wants; of none it has no name.
func (m *machineRun) wantedOf(name string) messages.Wanted {
	for _, wanted := range m.wanted {
		if wanted.Name == name {
			return wanted
		}
	}
	return messages.Wanted{}
}

// memberOf is a step of a path as the plan names it.
func memberOf(step cty.PathStep) string {
	if attribute, is := step.(cty.GetAttrStep); is {
		return "." + attribute.Name
	}
	return ""
}

// names are the machines of addresses.
func names(addresses []string) []string {
	all := make([]string, len(addresses))
	for i, address := range addresses {
		all[i] = machines.Name(address)
	}
	return all
}
