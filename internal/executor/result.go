package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"filippo.io/age"

	"github.com/tendril-run/tendril/internal/logstream"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/terraform"
)

// results is what there is after a run: nil where that is not known.
type results struct {
	outputs   map[string]provision.Output
	resources []provision.Resource
}

// resultPatience is how long a backend may take to say what it has stored.
const resultPatience = time.Minute

// result asks what there is after an apply, also of a run that is being stopped,
// within its grace.
func (r *provisionRun) result(p provisioner) results {
	limited, cancel := context.WithTimeout(r.session.grace, resultPatience)
	defer cancel()
	return p.Result(limited)
}

// outputs reports what there is. A report that is larger than the database takes
// must not fail an apply that has succeeded.
func (r *provisionRun) outputs(found results) error {
	for _, name := range fitOutputs(found.outputs) {
		r.log.System("The output %s is too large to be recorded; it is in the state.", name)
	}
	detail := provision.Detail{Stage: provision.StageOutputs, Percent: new(100), Outputs: found.outputs}
	err := r.session.report(detail)
	if _, large := errors.AsType[*logstream.TooLargeError](err); large {
		r.log.System("The outputs are too large to be recorded (%v); they are in the state.", err)
		detail.Outputs = nil
		err = r.session.report(detail)
	}
	r.resources(found.resources)
	return err
}

// resources reports what exists in the workspace. What cannot be recorded does
// not change how a run ends: the state has it.
func (r *provisionRun) resources(exist []provision.Resource) {
	if exist == nil {
		return
	}
	listed, omitted := fitResources(exist)
	if omitted > 0 {
		r.log.System("Of the %d resources of this workspace, %d are recorded; there is no room for more. All are in the state.", len(exist), len(listed))
	}
	if err := r.session.report(provision.Detail{Resources: listed, ResourcesOmitted: omitted}); err != nil {
		r.log.System("What exists in this workspace could not be recorded (%v); it is in the state.", err)
	}
}

// requester is to whom sensitive outputs are sealed: the agent says so, by its
// policy, and not the snapshot, which is a row. Nil is for nobody; why says why that
// is, where the snapshot names somebody.
func (r *provisionRun) requester() (to age.Recipient, why string) {
	if r.job.Requester == "" {
		return nil, r.job.RequesterRefused
	}
	to, err := seal.ParseRecipient(r.job.Requester)
	if err != nil {
		return nil, err.Error()
	}
	return to, ""
}

// outputsFor makes of outputs what may be recorded: a sensitive one leaves this
// process sealed to the requester, or not at all. In the others known secrets
// are masked like anywhere else: an output that is not sensitive is what the
// template's author chose to show, and no choice to show somebody's sealed value.
func (r *provisionRun) outputsFor(values map[string]terraform.OutputValue) map[string]provision.Output {
	requester, why := r.requester()
	outputs := make(map[string]provision.Output, len(values))
	for name, value := range values {
		output := provision.Output{Type: value.Type, Sensitive: value.Sensitive}
		switch {
		case value.Value == nil: // not known
		case !value.Sensitive && value.Recordable():
			output.Value = value.Value
		case !value.Sensitive:
			output.Omitted = true
			r.log.System("The output %s holds a number or a nesting that the database does not take; it is in the state.", name)
		case requester != nil:
			sealed, err := seal.Armoured(requester, value.Value)
			if err != nil {
				r.log.System("Warning: the output %s could not be sealed for the requester: %v.", name, err)
			}
			output.Sealed = sealed
		case why != "": // an apply does not fail for it
			r.log.System("Warning: sensitive outputs of this run are not recorded, they are in the state: %s.", why)
			why = ""
		}
		outputs[name] = output
	}
	return outputs
}

// Result implements provisioner.
func (t *terraformRun) Result(ctx context.Context) results {
	state, err := t.stateNow(ctx)
	if err != nil {
		// What the engine said knows no value of a sensitive output, and no
		// address of what is new.
		t.run.log.System("The state could not be read for what exists (%s): it is listed from what the engine said.", reason(err))
		found := results{resources: terraform.Resources(t.plan, t.applied)}
		if t.applied.Outputs != nil {
			t.runner.PrintOutputs(t.applied)
			found.outputs = t.run.outputsFor(t.applied.Outputs)
		}
		return found
	}
	t.run.log.Mask(state.Secrets...)
	if t.failed {
		return results{resources: terraform.ResourcesNow(t.plan, t.applied, state)}
	}
	t.runner.PrintOutputs(t.applied)
	return results{
		outputs:   t.run.outputsFor(terraform.OutputsNow(t.plan, state)),
		resources: state.Resources,
	}
}

// stateNow reads the state after an apply: what is kept, where it could not be
// stored.
func (t *terraformRun) stateNow(ctx context.Context) (terraform.State, error) {
	raw, err := t.rawState(ctx)
	if err != nil {
		return terraform.State{}, err
	}
	state, err := terraform.ReadState(raw, t.plan)
	if err == nil || !t.backend.local && t.run.managed == nil || t.run.session.unsaved {
		return state, err
	}
	// OpenTofu may have encrypted it.
	if raw, err = t.pullState(ctx); err != nil {
		return terraform.State{}, err
	}
	return terraform.ReadState(raw, t.plan)
}

func (t *terraformRun) rawState(ctx context.Context) ([]byte, error) {
	switch {
	case t.run.session.unsaved:
		kept, err := t.run.files.kept.list()
		if err == nil && len(kept) == 0 {
			err = fmt.Errorf("it is not stored")
		}
		if err != nil {
			return nil, err
		}
		return terraform.ReadStateFile(kept[len(kept)-1])
	case t.run.managed != nil:
		return t.run.managed.State(), nil
	case t.backend.local:
		state, err := terraform.ReadStateFile(t.backend.place)
		if errors.Is(err, os.ErrNotExist) { // nothing was ever created
			return nil, nil
		}
		return state, err
	default:
		// The one engine process that a run with a backend of its template's has
		// more: nothing else knows the values of sensitive outputs and what an
		// attribute is that was unknown before. Unlike show it starts no provider.
		return t.pullState(ctx)
	}
}

func (t *terraformRun) pullState(ctx context.Context) ([]byte, error) {
	return t.runner.StoredState(ctx, terraform.PushOptions{KillAfter: t.run.job.Settings.CancelGrace})
}
