package terraform

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

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

// What a resource's Status says.
const (
	statusCreated = "created"
	statusTainted = "tainted" // half made, or left over: the next apply replaces or removes it
)

// maxAddresses is how many IP addresses are listed of one resource.
const maxAddresses = 16

// describeResource is one resource without its provider. Of its attributes only
// the id and the IP addresses are taken, and not from those that are hidden.
func describeResource(address, resourceType string, attributes map[string]any, hides func(attribute string) bool) provision.Resource {
	r := provision.Resource{Address: address, Type: resourceType, Status: statusCreated}
	if id, ok := attributes["id"].(string); ok && !hides("id") {
		r.ExternalID = id
	} else if id, ok := attributes["id"].(json.Number); ok && !hides("id") {
		r.ExternalID = id.String()
	}
	var found addresses
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if !hides(name) {
			found.in(name, attributes[name], 0)
		}
	}
	r.IPAddresses = found
	return r
}

type addresses []string

// in looks for addresses in an attribute and what is below it.
func (a *addresses) in(name string, value any, depth int) {
	if depth > maxPlanDepth {
		return
	}
	switch v := unwrapped(value).(type) {
	case string:
		if saysAddress(name) {
			a.add(v)
		}
	case []any:
		for _, element := range v {
			a.in(name, element, depth+1)
		}
	case map[string]any:
		for _, member := range slices.Sorted(maps.Keys(v)) {
			a.in(member, v[member], depth+1)
		}
	}
}

// add takes what others can reach: a single address, not a range, and not one
// that means this machine, a group, everything, or a neighbour.
func (a *addresses) add(text string) {
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast() || ip.IsLinkLocalUnicast() {
		return
	}
	if text = ip.Unmap().String(); len(*a) < maxAddresses && !slices.Contains(*a, text) {
		*a = append(*a, text)
	}
}

// The words in the name of an attribute that is an address, and those in the
// names of such as are somebody else's: whom a firewall lets in, who resolves
// names, where packets go next.
var (
	addressWords = []string{"ip", "ips", "ipv4", "ipv6", "address", "addresses", "addr"}
	foreignWords = []string{
		"source", "sources", "src", "destination", "destinations", "dest", "dst", "allow", "allowed", "deny", "denied", "permitted", "trusted",
		"authorized", "whitelist", "allowlist", "blocklist", "peer", "peers", "remote", "target", "targets", "client", "customer", "gateway", "gw",
		"hop", "next", "dns", "nameserver", "nameservers", "resolver", "ntp", "proxy", "range", "ranges", "cidr", "network", "subnet", "mask",
		"netmask", "prefix", "block", "start", "end", "from", "to", "upstream",
	}
)

// saysAddress reports whether an attribute is, by its name, an address of the
// resource itself: private_ip, ipv6_addresses, access_ip_v4.
func saysAddress(name string) bool {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == '_' || r == '-' })
	has := func(known []string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return slices.Contains(known, word) })
	}
	// network_ip is what Google calls an instance's own.
	return has(addressWords) && (!has(foreignWords) || strings.EqualFold(name, "network_ip"))
}
