package executor

import (
	"cmp"
	"maps"
	"slices"

	"github.com/tendril-run/tendril/internal/provision"
)

// fitLimit is how much of a report its largest part may take, in bytes: half
// of what the database takes, which leaves room for escaping.
const fitLimit = provision.MaxDetail / 2

// fitPlan cuts the list of changes to what a report may hold. The counts stay.
func fitPlan(plan *provision.PlanSummary) {
	size := 0
	for i, change := range plan.Resources {
		size += len(change.Address) + len(change.Action) + 32 // quotes and names
		if size > fitLimit {
			plan.Truncated += len(plan.Resources) - i
			plan.Resources = plan.Resources[:i]
			return
		}
	}
}

// fitDrift cuts a list of changes to what a report may hold, and to how many a
// workspace keeps.
func fitDrift(drift []provision.PlannedChange) []provision.PlannedChange {
	summary := provision.PlanSummary{Resources: drift[:min(len(drift), provision.MaxPlanResources)]}
	fitPlan(&summary)
	return summary.Resources
}

// fitOutputs drops the largest values until the rest fits into a report, and
// returns the names of the outputs concerned. Their types stay.
func fitOutputs(outputs map[string]provision.Output) (dropped []string) {
	size := 0
	for name, o := range outputs {
		size += len(name) + len(o.Type) + len(o.Value) + 64 // quotes and names
	}
	largest := slices.SortedFunc(maps.Keys(outputs), func(a, b string) int {
		return cmp.Compare(len(outputs[b].Value), len(outputs[a].Value))
	})
	for _, name := range largest {
		if size <= fitLimit {
			break
		}
		o := outputs[name]
		size -= len(o.Value)
		o.Value, o.Omitted = nil, true
		outputs[name] = o
		dropped = append(dropped, name)
	}
	return dropped
}
