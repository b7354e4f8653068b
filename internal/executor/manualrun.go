package executor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/provision"
	messages "github.com/tendril-run/tendril/provisioner"
)

// manualRun carries out a template whose work a person does. The first run plans, asks,
// and ends; the one after the answer records it. So nothing waits in a process, and the
// state is written by an agent alone.
type manualRun struct {
	*machineRun
	answer *provision.Input // nil: nobody was asked yet
	// instructions are what the person reads, and work is their digest.
	instructions, work string
}

// workAddress is where a plan names what a person does beside making machines.
const workAddress = "manual.work"

// maxAsked is how many machines a person is asked for at once.
const maxAsked = 500

// Locate implements provisioner: there is no program.
func (m *manualRun) Locate(context.Context) (provision.Detail, error) {
	var err error
	if m.instructions, err = m.file.Instructions(m.dir, m.typed); err != nil {
		return provision.Detail{}, err
	}
	sum := sha256.Sum256([]byte(m.instructions))
	m.work, m.resumes = hex.EncodeToString(sum[:]), true
	m.state.Actions = []provision.MachineAction{provision.MachineDestroys, provision.MachineRebuilds}
	m.log.System("Carried out by a person.")
	return provision.Detail{Engine: m.engine}, nil
}

// Plan implements provisioner.
func (m *manualRun) Plan(context.Context) (planned, error) {
	if m.operation() == provision.OperationRefresh {
		return planned{}, provision.Fail(provision.CodeOperationRefused, "What a person has made by hand can't be asked how it has changed. Nothing was checked.", nil)
	}
	if err := m.compare(); err != nil {
		return planned{}, err
	}
	if len(m.snapshot.Targets) == 0 {
		m.compareWork()
	}
	return m.planned()
}

// compareWork plans the work beside the machines: where its instructions are others than
// the last that were carried out, and where an output is missing.
func (m *manualRun) compareWork() {
	action, why := messages.ActionNone, ""
	switch {
	case m.operation() == provision.OperationDestroy && (m.state.Work != "" || len(m.state.Outputs) > 0):
		action = messages.ActionDestroy
	case m.operation() == provision.OperationDestroy:
	case m.state.Work == "":
		action = messages.ActionCreate
	case m.state.Work != m.work:
		action, why = messages.ActionChange, "the instructions are others than the last that were carried out"
	default:
		for _, output := range m.file.Manual.Outputs {
			if was, known := m.state.Outputs[output.Name]; !known || was.Sensitive != output.Sensitive {
				action, why = messages.ActionChange, "the output "+output.Name+" is to be filled in"
				break
			}
		}
	}
	if action != messages.ActionNone {
		m.plan.Changes = append(m.plan.Changes, machines.Change{Change: messages.Change{Resource: workAddress, Action: action, Why: why}})
	}
}

// asksOutputs reports whether the outputs are asked for: all of them, unless the run is for
// some machines alone or undoes everything.
func (m *manualRun) asksOutputs() bool {
	return m.operation() != provision.OperationDestroy && len(m.snapshot.Targets) == 0
}

// Recall implements provisioner. An answer that can't be recorded is told before anything is.
func (m *manualRun) Recall(ctx context.Context) (planned, error) {
	if m.answer != nil {
		for name := range m.answer.Machines {
			if _, err := m.credentials(name); err != nil {
				return planned{}, err
			}
		}
	}
	return m.machineRun.Recall(ctx)
}

// Ask implements asker.
func (m *manualRun) Ask() (provision.InputRequest, error) {
	request := provision.InputRequest{
		Instructions: m.instructions, Destroys: m.operation() == provision.OperationDestroy,
		Outputs: []provision.InputOutput{}, Machines: []provision.InputMachine{}, ExpiresSeconds: int(m.file.Manual.Expires / time.Second),
	}
	if m.asksOutputs() {
		for _, o := range m.file.Manual.Outputs {
			request.Outputs = append(request.Outputs, provision.InputOutput{Name: o.Name, Type: o.Type, Description: o.Description, Sensitive: o.Sensitive})
		}
	}
	for _, change := range m.plan.Changes {
		if change.Machine == "" || change.Action == messages.ActionNone {
			continue
		}
		w := m.plan.Of(change)
		asked := provision.InputMachine{
			Name: w.Name, Action: string(change.Action), Pool: w.Pool, Image: w.Image, Address: w.Address, Cores: w.Cores, Memory: w.Memory, Disk: w.Disk,
		}
		if known := m.state.Find(change.Machine); known != nil {
			asked.Known = &provision.InputFacts{ExternalID: known.ExternalID, Address: known.Address, Addresses: known.Addresses, SSHPort: known.SSHPort}
		}
		request.Machines = append(request.Machines, asked)
	}
	if len(request.Machines) > maxAsked {
		return request, provision.Fail(provision.CodePlanFailed, fmt.Sprintf(
			"A person would have to see to %d machines, and at most %d can be asked for at once. Narrow the run to some of them (targets).", len(request.Machines), maxAsked), nil)
	}
	m.log.System("%s are for a person to do: the run's page shows the instructions, and takes the answer (or: trellis input).", counted(len(m.plan.Changes), "change"))
	return request, nil
}

// Apply implements provisioner: it records what the person has answered.
func (m *manualRun) Apply(_ context.Context, to reporter) error {
	total, done := len(m.plan.Changes), 0
	for _, change := range m.plan.Changes {
		event := provision.Event{Kind: "resource_started", Address: change.Address(), Action: string(change.Action), At: time.Now()}
		to.on(event, percentOf(done, total))
		recorded, err := m.record(change)
		event.Kind, event.At = "resource_finished", time.Now()
		switch {
		case err != nil:
			return err
		case !recorded:
			event.Kind, event.Message = "resource_failed", "it was not done"
		default:
			done++
		}
		to.on(event, percentOf(done, total))
	}
	switch {
	case m.asksOutputs():
		m.recordOutputs()
	case m.operation() == provision.OperationDestroy && m.answer.Done && len(m.state.Machines) == 0:
		m.state.Work, m.state.Outputs = "", nil
	}
	if err := m.store(); err != nil {
		return fmt.Errorf("record what the person has answered: %w", err)
	}
	m.log.Mask(m.state.Secrets()...)
	if !m.answer.Done {
		return provision.Fail(provision.CodeManualFailed, fmt.Sprintf("The work could not be done: %s", sentence(m.answer.Reason)), nil)
	}
	return nil
}

// record takes over what the answer says of one change, and reports whether it was made.
func (m *manualRun) record(change machines.Change) (bool, error) {
	if change.Machine == "" { // the work itself
		if m.answer.Done {
			m.state.Work = m.work
		}
		return m.answer.Done, nil
	}
	wanted := m.plan.Of(change)
	if change.Action == messages.ActionDestroy {
		if m.answer.Done {
			m.state.Settle(messages.Machine{ID: change.Machine, Status: messages.StatusGone})
		}
		return m.answer.Done, nil
	}
	facts, told := m.answer.Machines[wanted.Name]
	if !told {
		if m.answer.Done { // SQL has refused it
			return false, errors.New("the answer does not say where the machine " + wanted.Name + " is")
		}
		return false, nil
	}
	credentials, err := m.credentials(wanted.Name)
	if err != nil {
		return false, err
	}
	if !m.answer.Done && m.state.Find(wanted.ID) != nil {
		return false, nil // it is as it was
	}
	wanted.ExternalID = ""
	m.state.Intend(wanted, messages.Intent{ID: wanted.ID, Machine: wanted.ID, Action: change.Action})
	known := m.state.Find(wanted.ID)
	known.Config, known.Hidden = m.config(wanted), slices.Sorted(maps.Keys(m.hidden))
	now := messages.Machine{
		ID: wanted.ID, ExternalID: cmp.Or(facts.ExternalID, facts.Address), Address: facts.Address, Addresses: facts.Addresses, SSHPort: facts.SSHPort,
		Status: messages.StatusRunning, Credentials: credentials,
	}
	if !m.answer.Done {
		now.Status = messages.StatusFailed
	}
	m.state.Settle(now)
	return m.answer.Done, nil
}

// credentials are those that the answer has for a machine; nil: none.
func (m *manualRun) credentials(name string) (map[string]string, error) {
	value, told := m.job.SealedInput[provision.SealedMachine(name)]
	if !told {
		return nil, nil
	}
	var credentials map[string]string
	if err := json.Unmarshal(value, &credentials); err != nil {
		return nil, provision.Fail(provision.CodeSealedInvalid, fmt.Sprintf("The credentials of the machine %s must be an object of texts, such as {\"root_password\": \"…\"}.", name), err)
	}
	return credentials, nil
}

// recordOutputs takes over the outputs of the answer.
func (m *manualRun) recordOutputs() {
	outputs := map[string]messages.Output{}
	for _, o := range m.file.Manual.Outputs {
		value, told := m.answer.Outputs[o.Name]
		if o.Sensitive {
			value, told = m.job.SealedInput[provision.SealedOutput(o.Name)]
		}
		was, known := m.state.Outputs[o.Name]
		switch {
		case told:
			outputs[o.Name] = messages.Output{Name: o.Name, Value: value, Sensitive: o.Sensitive}
		case known:
			outputs[o.Name] = was
		}
	}
	m.state.Outputs = outputs
}
