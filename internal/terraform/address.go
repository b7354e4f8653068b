package terraform

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tendril-run/tendril/internal/provision"
)

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
