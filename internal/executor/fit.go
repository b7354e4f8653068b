package executor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"github.com/tendril-run/tendril/internal/provision"
)

// How much of a report its largest part may take, in bytes as the database
// measures them.
const (
	// fitLimit leaves room for what masking makes longer, and for the rest.
	fitLimit = provision.MaxDetail - 128<<10
	// planLimit is less than a report holds: a plan is read by people, and with
	// every look at its provision.
	planLimit = 256 << 10
)

// fitPlan cuts the list of changes to what a report may hold, attributes before
// changes. The counts stay.
func fitPlan(plan *provision.PlanSummary) {
	room := planLimit
	for i, change := range plan.Resources {
		change.Attributes, change.Truncated = nil, change.Truncated+len(change.Attributes)
		if room -= sizeOf(change); room < 0 {
			plan.Truncated += len(plan.Resources) - i
			plan.Resources = plan.Resources[:i]
			break
		}
	}
	room = max(room, 0)
	for i := range plan.Resources {
		change := &plan.Resources[i]
		size := len(`"attributes": `) + sizeOf(change.Attributes)
		if size > room {
			change.Truncated += len(change.Attributes)
			change.Attributes = nil
			continue
		}
		room -= size
	}
}

// fitDrift cuts a list of changes to what a report may hold, and to how many a
// workspace keeps.
func fitDrift(drift []provision.PlannedChange) []provision.PlannedChange {
	summary := provision.PlanSummary{Resources: drift[:min(len(drift), provision.MaxPlanResources)]}
	fitPlan(&summary)
	return summary.Resources
}

// fitList cuts a list to what a report may hold, and returns how many there was no
// room for.
func fitList[T any](list []T) (fitting []T, omitted int) {
	room := fitLimit
	for i, item := range list {
		if room -= sizeOf(item); room < 0 {
			return list[:i], len(list) - i
		}
	}
	return list, 0
}

// sizeOf is how long a part of a report is as JSON in the database, which puts a
// space after each comma and colon, with the comma that follows it.
func sizeOf(part any) int {
	encoded, err := json.Marshal(part)
	if err != nil { // of plain structures: cannot happen
		return provision.MaxDetail
	}
	return len(encoded) + bytes.Count(encoded, []byte(",")) + bytes.Count(encoded, []byte(":")) + len(", ")
}

// fitOutputs drops the largest values until the rest fits into a report, and
// returns the names of the outputs concerned. Their types stay.
func fitOutputs(outputs map[string]provision.Output) (dropped []string) {
	room := fitLimit
	for name, o := range outputs {
		room -= sizeOf(name) + sizeOf(o)
	}
	largest := slices.SortedFunc(maps.Keys(outputs), func(a, b string) int {
		return cmp.Compare(valueSize(outputs[b]), valueSize(outputs[a]))
	})
	for _, name := range largest {
		if room >= 0 {
			break
		}
		o := outputs[name]
		before := sizeOf(o)
		o.Value, o.Sealed, o.Omitted = nil, "", true
		outputs[name] = o
		room += before - sizeOf(o)
		dropped = append(dropped, name)
	}
	return dropped
}

func valueSize(o provision.Output) int { return len(o.Value) + len(o.Sealed) }
