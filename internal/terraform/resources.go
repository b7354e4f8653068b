package terraform

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

// Resources lists the managed resources that exist after an apply, sorted by
// address, where the state cannot be read: those before it, as the plan knows
// them, with what the apply says it changed.
func Resources(plan *tfjson.Plan, applied Applied) []provision.Resource {
	exist := make(map[string]provision.Resource)
	if plan.PriorState != nil && plan.PriorState.Values != nil {
		addResources(exist, plan.PriorState.Values.RootModule)
	}
	gone := make(map[string]bool)
	for _, change := range plan.ResourceChanges {
		// What is deposed goes without what has its address.
		if change != nil && change.Change != nil && change.DeposedKey == "" {
			actions := change.Change.Actions
			gone[change.Address] = actions.Delete() || actions.Replace()
		}
	}
	for _, address := range applied.Destroyed {
		if gone[address] {
			delete(exist, address)
		}
	}
	// After the destroyed ones: of a replacement both are said, in either
	// order, and the resource is there.
	addApplied(exist, plan, applied)
	return sortedResources(exist)
}

// ResourcesNow lists what exists after an apply that failed: what the state has,
// and what the apply says it made of which the state knows nothing. An engine
// that was killed has not stored what it did last.
func ResourcesNow(plan *tfjson.Plan, applied Applied, state State) []provision.Resource {
	said, exist := make(map[string]provision.Resource), make(map[string]provision.Resource)
	addApplied(said, plan, applied)
	for _, resource := range state.Resources {
		exist[resource.Address] = resource
	}
	for address, resource := range said {
		if _, known := exist[address]; !known {
			exist[address] = resource
		}
	}
	return sortedResources(exist)
}

// addApplied adds what an apply says it created or changed.
func addApplied(exist map[string]provision.Resource, plan *tfjson.Plan, applied Applied) {
	for _, change := range plan.ResourceChanges {
		if change == nil || change.DeposedKey != "" {
			continue
		}
		resource := provision.Resource{Address: change.Address, Type: change.Type, Provider: change.ProviderName, Status: statusCreated}
		id, ok := applied.Changed[change.Address]
		if slices.Contains(applied.Tainted, change.Address) {
			ok, resource.Status = true, statusTainted
		}
		if ok && (change.Change == nil || !marksIn(change.Change.AfterSensitive, "id")) {
			resource.ExternalID = id
		}
		if ok {
			exist[change.Address] = resource
		}
	}
}

func sortedResources(exist map[string]provision.Resource) []provision.Resource {
	resources := make([]provision.Resource, 0, len(exist))
	for _, resource := range exist {
		resources = append(resources, resource)
	}
	slices.SortFunc(resources, func(a, b provision.Resource) int { return cmp.Compare(a.Address, b.Address) })
	return resources
}

func addResources(exist map[string]provision.Resource, module *tfjson.StateModule) {
	if module == nil {
		return
	}
	for _, r := range module.Resources {
		if r == nil || r.Mode != tfjson.ManagedResourceMode || r.DeposedKey != "" {
			continue
		}
		var mask any
		unmarshalLoose(r.SensitiveValues, &mask)
		resource := describeResource(r.Address, r.Type, r.AttributeValues, func(name string) bool { return marksIn(mask, name) })
		resource.Provider = r.ProviderName
		if r.Tainted {
			resource.Status = statusTainted
		}
		exist[r.Address] = resource
	}
	for _, child := range module.ChildModules {
		addResources(exist, child)
	}
}

// unmarshalLoose decodes what may be missing or of another shape.
func unmarshalLoose(raw json.RawMessage, into any) {
	if len(raw) > 0 {
		_ = json.Unmarshal(raw, into) // another shape leaves the zero value
	}
}

// StoredState reads the state from where the backend keeps it, as text: empty
// where there is none. It takes an engine process, and holds the state in memory.
func (r *Runner) StoredState(ctx context.Context, opts PushOptions) ([]byte, error) {
	state, err := r.pullState(ctx, opts)
	return []byte(state), err
}

// PrintOutputs prints the outputs of an apply, as the engine would. An apply
// itself does not: what is sensitive of them is to be masked first.
func (r *Runner) PrintOutputs(applied Applied) {
	if text := renderOutputs(applied.Outputs); text != "" {
		r.out.write(toStdout, []byte(text))
	}
}
