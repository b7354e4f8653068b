package executor

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/tendril-run/tendril/internal/isolation"
	"github.com/tendril-run/tendril/internal/planbundle"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/templatefile"
)

// provisioner is one way to turn a checked-out template into infrastructure.
// Its methods up to Apply are called once each, in this order, and not after one
// failed. They end soon after ctx does.
type provisioner interface {
	// Validate checks the template and the variables without running anything
	// of the template. The sealed variables are here as opened.
	Validate(plain, sealed map[string]json.RawMessage) error
	// Locate finds the program that does the work; what it returns is reported.
	Locate(ctx context.Context) (provision.Detail, error)
	// Prepare fetches what the template needs (init).
	Prepare(ctx context.Context) error
	// Plan says what the operation would do. Nothing is changed.
	Plan(ctx context.Context) (planned, error)
	// Recall says, in place of Plan, what the plan would do that was approved.
	Recall(ctx context.Context) (planned, error)
	// Save returns the plan for the time until it is approved, with what of it the
	// engine knows.
	Save() (planbundle.Bundle, error)
	// Apply does exactly what was planned, and reports resources as they change.
	Apply(ctx context.Context, to reporter) error
	// Result says what there is after Apply, and after one that failed what
	// exists by then.
	Result(ctx context.Context) results

	// Close lets go what it keeps from being removed from the caches. Nothing of
	// it runs any more.
	Close()
}

// given is what a provisioner has of its run.
type given struct {
	*task
	dir      string // the template's
	kind     string // terraform or tofu: whose files of the template are read
	files    workDir
	id       *isolation.Identity
	checkout *checkout
	approved *planbundle.Bundle // the plan to apply; nil: none is approved yet
	// gitHelper is the argv that reaches githelper.Main.
	gitHelper []string
	managed   *managedState // once it is served; nil: the state is elsewhere
}

// stopServing ends what serves the managed state.
func (g *given) stopServing() {
	if g.managed != nil {
		g.managed.Close()
	}
}

// stateKeeper is a provisioner whose engine stores the state itself, and may fail to:
// Terraform's alone.
type stateKeeper interface {
	// KeepState looks, after a failed Apply, for a state that could not be
	// stored, and has it among the kept states when it returns true without an
	// error. The room is what was reserved for it.
	KeepState(room reservedSpace) (left bool, err error)
	// StoreState stores a kept state. It may be called after Prepare, at any
	// time and any number of times. again is whether another try may help.
	StoreState(ctx context.Context, path string) (again bool, err error)
}

// powerSwitch is a provisioner that can start, stop and restart machines.
type powerSwitch interface {
	// Power does to the machines that the snapshot targets what it says of their power,
	// in place of a plan, and reports them as they change.
	Power(ctx context.Context, to reporter) error
}

// asker is a provisioner whose plan a person carries out.
type asker interface {
	// Ask says what the person is to do. It is called after Plan or Recall, and Apply only
	// once the job has the answer.
	Ask() (provision.InputRequest, error)
}

// detacher is a provisioner whose work may continue without it.
type detacher interface {
	// Detaches reports whether it does. Apply returns errDetached then, soon after it was
	// asked to detach, and another agent calls Recall and Apply to take the work up. It is
	// called after Plan or Recall.
	Detaches() bool
}

// ownEngine reports whether what made a plan keeps its state as a record of machines:
// everything but Terraform does.
func ownEngine(name string) bool {
	return slices.Contains([]templatefile.Kind{templatefile.ByScript, templatefile.ByHand, templatefile.ByMachine}, templatefile.Kind(name))
}

// reporter is told what becomes of resources, with how much of the whole is done, in percent;
// and of steps, with how much is done of the one that a machine or the run itself is in.
type reporter interface {
	on(event provision.Event, percent int)
	step(event provision.Event)
	stepPercent(address string, percent int)
}

// planned is what a plan came to.
type planned struct {
	summary provision.PlanSummary
	// changes is whether there is anything to apply, outputs included.
	changes bool
	// room is how many bytes the state may have after the apply, as a guess.
	room int64
	// json is all of the plan for the policy hook, secrets included; nil where
	// there is no hook.
	json []byte
	// found is what there is now, for when there is nothing to apply, and after a refresh.
	found results
	// drift is what has changed outside, of the operation refresh alone.
	drift []provision.PlannedChange
}

// results is what there is after a run: nil where that is not known.
type results struct {
	outputs   map[string]provision.Output
	resources []provision.Resource
	machines  []provision.Machine // nil says nothing of them
}

// resultPatience is how long a backend may take to say what it has stored.
const resultPatience = time.Minute
