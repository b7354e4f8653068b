package executor

import (
	"context"
	"encoding/json"

	"github.com/tendril-run/tendril/internal/provision"
)

// provisioner is one way to turn a checked-out template into infrastructure.
// Its methods are called once each, in this order, and not after one failed.
// They end soon after ctx does.
type provisioner interface {
	// Validate checks the template and the variables without running anything
	// of the template.
	Validate(vars map[string]json.RawMessage) error
	// Locate finds the program that does the work; what it returns is reported.
	Locate(ctx context.Context) (provision.Detail, error)
	// Prepare fetches what the template needs (init).
	Prepare(ctx context.Context) error
	// Plan says what would be done. Nothing is changed.
	Plan(ctx context.Context) (planned, error)
	// Apply does exactly what was planned, and reports resources as they change.
	Apply(ctx context.Context, on func(provision.Event, int)) (map[string]provision.Output, error)
}

// planned is what a plan came to.
type planned struct {
	summary provision.PlanSummary
	// changes is whether there is anything to apply, outputs included.
	changes bool
	// outputs as they are now, for when there is nothing to apply.
	outputs map[string]provision.Output
}
