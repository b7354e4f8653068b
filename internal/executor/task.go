package executor

import (
	"errors"
	"slices"
	"time"

	"filippo.io/age"

	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/spool"
	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/terraform"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// task is what a run is to do and whom it tells: what all that works on it knows.
type task struct {
	session  *session
	log      *spool.Writer
	job      job.Job
	snapshot provision.Snapshot
	commit   string               // of the template, once it is checked out
	about    *provision.About     // what the template says of itself, once that is read
	health   *templatefile.Health // how its machines are checked; nil: they are not
	// mark is the id of a machine by its name, "" where there is none; nil: machines have none.
	mark func(machine string) string
}

func (t *task) operation() provision.Operation { return t.job.Assignment.Operation }

// replacesState reports whether the run puts another state in the stored one's place.
func (t *task) replacesState() bool {
	return t.operation() == provision.OperationState && t.snapshot.State != nil &&
		(t.snapshot.State.Command == "push" || t.snapshot.State.Command == "rollback")
}

// adopts reports whether the run takes over the state of the template's backend.
func (t *task) adopts() bool {
	return t.operation() == provision.OperationState && t.snapshot.State != nil && t.snapshot.State.Command == "adopt"
}

// plans reports whether the operation makes a plan, which notices that an
// earlier run's init does not serve it.
func (t *task) plans() bool {
	return !slices.Contains([]provision.Operation{provision.OperationUnlock, provision.OperationState, provision.OperationPower}, t.operation())
}

// variablesLimit is how much of a report the declared variables may take, in
// bytes.
const variablesLimit = 256 << 10

// tellVariables tells what a version declares that nobody in the organisation
// has used yet: nothing else may have looked at it. A run does not fail for it.
func (t *task) tellVariables(template *tfvars.Template) {
	if t.job.Assignment.PinnedCommit != "" {
		return
	}
	declared, err := template.Declared()
	if err == nil {
		err = t.session.report(provision.Detail{Variables: tfvars.Fit(declared, variablesLimit), About: t.about})
	}
	if err != nil {
		t.log.System("What the template declares could not be recorded: %v", err)
	}
}

// tellRendered masks the secrets among a run's variables, and tells what is to be known of
// them.
func (t *task) tellRendered(rendered tfvars.Rendered) {
	t.log.Mask(rendered.Sensitive...)
	for _, name := range rendered.Unmaskable {
		t.log.System("Warning: the sensitive variable %s is shorter than %d characters and cannot be masked in this log.", name, tfvars.MinSecret)
	}
	for _, warning := range rendered.Warnings {
		t.log.System("Warning: %s", warning)
	}
}

// outputs reports what there is, in one report where it fits into one. A report
// that is larger than the database takes must not fail an apply that has succeeded.
func (t *task) outputs(found results) error {
	for _, name := range fitOutputs(found.outputs) {
		t.log.System("The output %s is too large to be recorded; it is in the state.", name)
	}
	detail := provision.Detail{Stage: provision.StageOutputs, Percent: new(100), Outputs: found.outputs}
	exist := t.listed(found)
	all := detail
	all.Resources, all.ResourcesOmitted = exist.Resources, exist.ResourcesOmitted
	all.Machines, all.MachinesOmitted = exist.Machines, exist.MachinesOmitted
	err := t.session.report(all)
	if !tooLarge(err) {
		return err
	}
	if err = t.session.report(detail); tooLarge(err) {
		t.log.System("The outputs are too large to be recorded (%v); they are in the state.", err)
		detail.Outputs = nil
		err = t.session.report(detail)
	}
	t.report(exist)
	return err
}

func tooLarge(err error) bool {
	_, large := errors.AsType[*spool.TooLargeError](err)
	return large
}

// exists reports what exists in the workspace, where that is known.
func (t *task) exists(found results) { t.report(t.listed(found)) }

// listed is what of the resources and machines goes into reports.
func (t *task) listed(found results) (exist provision.Detail) {
	exist.Resources, exist.ResourcesOmitted = fitList(found.resources)
	if exist.ResourcesOmitted > 0 {
		t.log.System("Of the %d resources of this workspace, %d are recorded; there is no room for more. All are in the state.", len(found.resources), len(exist.Resources))
	}
	if exist.Machines, exist.MachinesOmitted = fitList(t.checked(found.machines)); exist.MachinesOmitted > 0 {
		t.log.System("Of the %d machines of this workspace, %d are listed; there is no room for more. All are in the state.", len(found.machines), len(exist.Machines))
	}
	return exist
}

// checked gives machines the check of their template. It asks the address that they are
// reached at; one without an address only a command can ask.
func (t *task) checked(listed []provision.Machine) []provision.Machine {
	h := t.health
	if h == nil {
		return listed
	}
	listed = slices.Clone(listed)
	made := max(time.Now().UnixMilli(), t.job.ChecksAfter+1)
	for i, m := range listed {
		target := ""
		if len(m.IPAddresses) > 0 {
			target = m.IPAddresses[0]
		} else if !h.ByCommand() {
			continue
		}
		check := provision.HealthCheck{
			Kind: "tcp", Target: target, Port: h.TCP, Interval: int(h.Interval.Seconds()), Timeout: int(h.Timeout.Seconds()),
			HealthyAfter: h.HealthyAfter, UnhealthyAfter: h.UnhealthyAfter,
		}
		switch {
		case h.HTTP != "":
			check.Kind, check.Port, check.Path = "http", h.Port, h.HTTP
		case h.SSH > 0:
			check.Kind, check.Port = "ssh", h.SSH
		case h.ByCommand():
			check.Kind, check.Port, check.Command = provision.CheckCommand, m.SSHPort, t.commandCheck(m, made)
		}
		listed[i].Check = &check
	}
	return listed
}

// commandCheck is what the template's command needs to ask how a machine is.
func (t *task) commandCheck(m provision.Machine, made int64) *provision.CommandCheck {
	ts := t.snapshot.TemplateSource
	c := &provision.CommandCheck{
		Repo: ts.Repo, Version: ts.Version, Path: ts.Path, Commit: t.commit,
		Workspace: t.job.Assignment.Workspace, ExternalID: m.ExternalID, Pool: m.Pool, Made: made,
	}
	if t.mark != nil {
		c.ID = t.mark(m.Name)
	}
	return c
}

// report reports resources and machines, each in a report of its own. What cannot be
// recorded does not change how a run ends: the state has it.
func (t *task) report(exist provision.Detail) {
	for _, part := range []provision.Detail{
		{Resources: exist.Resources, ResourcesOmitted: exist.ResourcesOmitted},
		{Machines: exist.Machines, MachinesOmitted: exist.MachinesOmitted},
	} {
		if part.Resources == nil && part.Machines == nil {
			continue
		}
		if err := t.session.report(part); err != nil {
			t.log.System("What exists in this workspace could not be recorded (%v); it is in the state.", err)
		}
	}
}

// machinesIn are the machines that a template says in its outputs; nil where nothing can be
// told from them. exist are the resources that there are: what a machine is made of is gone
// with it, although a state keeps outputs that a run of targets has left alone.
func (t *task) machinesIn(outputs map[string]provision.Output, targets []string, exist []provision.Resource) []provision.Machine {
	output, says := outputs[machines.Output]
	switch {
	case !says && len(targets) > 0: // a plan of targets leaves outputs out
		return nil
	case !says:
		return []provision.Machine{} // what it has said before is gone
	case output.Sensitive:
		// As they were, and not gone: nothing says that they are.
		t.log.System("Warning: the output machines is sensitive, and everyone who can see a workspace sees its machines: those that are listed stay as they were, and new ones are not listed. Leave secrets out of the output, and sensitive = true.")
		return nil
	case output.Value == nil:
		return nil
	}
	listed, wrong := machines.FromOutput(output.Value)
	const most = 10
	for i, err := range wrong {
		if i == most {
			t.log.System("Warning: %d more machines in the output machines are wrong.", len(wrong)-most)
			break
		}
		t.log.System("Warning: the output machines: %v.", err)
	}
	for i := range listed {
		if listed[i].Address != "" { // by which a plan can be narrowed to it
			listed[i].Actions = []provision.MachineAction{provision.MachineDestroys, provision.MachineRebuilds, provision.MachineRefreshes}
		}
	}
	return slices.DeleteFunc(listed, func(m provision.Machine) bool {
		return m.Address != "" && !slices.ContainsFunc(exist, func(r provision.Resource) bool { return r.Address == m.Address })
	})
}

// requester is to whom sensitive outputs are sealed: the agent says so, by its
// policy, and not the snapshot, which is a row. Nil is for nobody; why says why that
// is, where the snapshot names somebody.
func (t *task) requester() (to age.Recipient, why string) {
	if t.job.Requester == "" {
		return nil, t.job.RequesterRefused
	}
	to, err := seal.ParseRecipient(t.job.Requester)
	if err != nil {
		return nil, err.Error()
	}
	return to, ""
}

// outputsFor makes of outputs what may be recorded: a sensitive one leaves this
// process sealed to the requester, or not at all. In the others known secrets
// are masked like anywhere else: an output that is not sensitive is what the
// template's author chose to show, and no choice to show somebody's sealed value.
func (t *task) outputsFor(values map[string]terraform.OutputValue) map[string]provision.Output {
	requester, why := t.requester()
	outputs := make(map[string]provision.Output, len(values))
	for name, value := range values {
		output := provision.Output{Type: value.Type, Sensitive: value.Sensitive}
		switch {
		case value.Value == nil: // not known
		case !value.Sensitive && value.Recordable():
			output.Value = value.Value
		case !value.Sensitive:
			output.Omitted = true
			t.log.System("The output %s holds a number or a nesting that the database does not take; it is in the state.", name)
		case requester != nil:
			sealed, err := seal.Armoured(requester, value.Value)
			if err != nil {
				t.log.System("Warning: the output %s could not be sealed for the requester: %v.", name, err)
			}
			output.Sealed = sealed
		case why != "": // an apply does not fail for it
			t.log.System("Warning: sensitive outputs of this run are not recorded, they are in the state: %s.", why)
			why = ""
		}
		outputs[name] = output
	}
	return outputs
}
