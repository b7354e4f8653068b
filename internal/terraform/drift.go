package terraform

import (
	"slices"
	"strings"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

// Drift lists what a plan found to have changed outside the engine; empty but
// not nil where nothing has. Actions are update, delete and, for what is there
// again, create.
func Drift(plan *tfjson.Plan) []provision.PlannedChange {
	drift := []provision.PlannedChange{}
	for _, change := range plan.ResourceDrift {
		if change == nil || change.Change == nil || change.Mode == tfjson.DataResourceMode {
			continue
		}
		var action string
		switch actions := change.Change.Actions; {
		case actions.Update():
			action = "update"
		case actions.Delete():
			action = "delete"
		case actions.Create():
			action = "create"
		default:
			continue
		}
		drifted := plannedChange(change, action)
		if len(drift) < provision.MaxPlanResources {
			describeChange(&drifted, change.Change)
		}
		drift = append(drift, drifted)
	}
	return drift
}

// Unmatched returns those of the addresses at which a plan knows nothing: no
// resource, and no module or resource with any instance. The engine says nothing
// of a target or a replacement that is a slip of the pen.
func Unmatched(plan *tfjson.Plan, addresses []string) []string {
	var known []string
	for _, change := range plan.ResourceChanges {
		if change != nil {
			known = append(known, change.Address, change.PreviousAddress)
		}
	}
	if plan.PriorState != nil && plan.PriorState.Values != nil { // data sources
		known = addAddresses(known, plan.PriorState.Values.RootModule)
	}
	return slices.DeleteFunc(slices.Clone(addresses), func(address string) bool {
		return slices.ContainsFunc(known, func(at string) bool {
			rest, within := strings.CutPrefix(at, address)
			return within && (rest == "" || rest[0] == '.' || rest[0] == '[')
		})
	})
}

func addAddresses(known []string, module *tfjson.StateModule) []string {
	if module == nil {
		return known
	}
	for _, resource := range module.Resources {
		if resource != nil {
			known = append(known, resource.Address)
		}
	}
	for _, child := range module.ChildModules {
		known = addAddresses(known, child)
	}
	return known
}
