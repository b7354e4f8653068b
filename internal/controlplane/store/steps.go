package store

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
)

// Step is one step of a run, or of one machine in it, as its template or its provisioner
// names it.
type Step struct {
	// Machine is the address of the machine that it is of; "" for a step of the run itself.
	Machine string
	ID      string
	Label   string
	// State is waiting, running, done or failed.
	State     string
	StartedAt *time.Time
	EndedAt   *time.Time
	// Percent is how much of a running one is done; nil: not known.
	Percent *int
}

// mostStepEvents bounds what is read to tell the steps of a run; what comes behind is left out.
const mostStepEvents = 20_000

// steps reads the steps of a run, which may have ended.
func (s *Store) steps(ctx context.Context, id uuid.UUID, running []provision.Running, over *time.Time) ([]Step, error) {
	events, err := rows[Event](ctx, s, "read the steps", `
		SELECT id, kind, at, detail FROM public.provision_events
		WHERE provision_id = $1 AND kind IN ('step_declared', 'step_started', 'step_finished', 'step_failed') ORDER BY id LIMIT $2`, id, mostStepEvents)
	if err != nil {
		return nil, err
	}
	return stepsOf(events, running, over), nil
}

// stepsOf puts together what events say of steps: those of a machine one after the other, in
// the order in which the machines began, and of each the declared ones that are still to come.
// In a run that is over nothing goes on: who was killed has not told the end of its step.
func stepsOf(events []Event, running []provision.Running, over *time.Time) []Step {
	var declared []Step
	var machines []string
	began := map[string][]Step{} // by machine
	for _, event := range events {
		var e struct{ Address, Action, Message string }
		if json.Unmarshal(event.Detail, &e) != nil {
			continue
		}
		if event.Kind == "step_declared" {
			declared = append(declared, Step{ID: e.Action, Label: e.Message, State: "waiting"})
			continue
		}
		if !slices.Contains(machines, e.Address) {
			machines = append(machines, e.Address)
		}
		at := slices.IndexFunc(began[e.Address], func(s Step) bool { return s.ID == e.Action && s.EndedAt == nil })
		if at < 0 {
			at = len(began[e.Address])
			began[e.Address] = append(began[e.Address], Step{Machine: e.Address, ID: e.Action, Label: cmp.Or(e.Message, e.Action), State: "running", StartedAt: &event.At})
		}
		switch step := &began[e.Address][at]; event.Kind {
		case "step_finished":
			step.State, step.EndedAt = "done", &event.At
		case "step_failed":
			step.State, step.EndedAt = "failed", &event.At
		}
	}
	if len(machines) == 0 {
		return declared
	}
	var all []Step
	for _, machine := range machines {
		for i, step := range began[machine] {
			if over != nil && step.State == "running" {
				began[machine][i].State, began[machine][i].EndedAt = "failed", over
				continue
			}
			if at := slices.IndexFunc(running, func(r provision.Running) bool { return r.Address == machine }); at >= 0 && step.State == "running" {
				began[machine][i].Percent = running[at].Percent
			}
		}
		all = append(all, began[machine]...)
		for _, step := range declared {
			if !slices.ContainsFunc(began[machine], func(s Step) bool { return s.ID == step.ID }) {
				step.Machine = machine
				all = append(all, step)
			}
		}
	}
	return all
}

// tellsSteps reports whether a run is carried out by something whose steps are told, which
// Terraform's are not.
func (p Provision) tellsSteps() bool {
	return p.Engine != nil && *p.Engine != "terraform" && *p.Engine != "tofu"
}
