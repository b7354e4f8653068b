package terraform

import (
	"cmp"
	"encoding/json"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

// Resources lists the managed resources that exist after an apply, sorted by
// address: those before it, as the plan knows them, with what the apply says
// it changed. It takes no further engine process. What a failed apply left half
// made is not listed. Of a resource's attributes only its id is taken, and not
// where that is sensitive.
func Resources(plan *tfjson.Plan, applied Applied) []provision.Resource {
	exist := make(map[string]provision.Resource)
	if plan.PriorState != nil && plan.PriorState.Values != nil {
		addResources(exist, plan.PriorState.Values.RootModule)
	}
	for _, address := range applied.Destroyed {
		delete(exist, address)
	}
	// After the destroyed ones: of a replacement both are said, in either
	// order, and the resource is there.
	for _, change := range plan.ResourceChanges {
		if change == nil {
			continue
		}
		if id, ok := applied.Changed[change.Address]; ok {
			exist[change.Address] = provision.Resource{
				Address: change.Address, Type: change.Type, Provider: change.ProviderName, ExternalID: id,
			}
		}
	}
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
		exist[r.Address] = provision.Resource{
			Address: r.Address, Type: r.Type, Provider: r.ProviderName, ExternalID: shownID(r),
		}
	}
	for _, child := range module.ChildModules {
		addResources(exist, child)
	}
}

func shownID(r *tfjson.StateResource) string {
	var sensitive struct {
		ID bool `json:"id"`
	}
	if unmarshalLoose(r.SensitiveValues, &sensitive); sensitive.ID {
		return ""
	}
	id, _ := r.AttributeValues["id"].(string)
	return id
}

// unmarshalLoose decodes what may be missing or of another shape.
func unmarshalLoose(raw json.RawMessage, into any) {
	if len(raw) > 0 {
		_ = json.Unmarshal(raw, into) // another shape leaves the zero value
	}
}
