// Package publicaddr tells public addresses from private ones. People type the
// addresses of repositories and webhooks, so the control plane must not reach its
// own network for them.
//
// The dialers of packages inspect and notify check an address when they connect,
// after its name was resolved.
//
// What it cannot know is a NAT64 prefix of the operator's own within the global
// addresses: where there is one, deny it to the control plane by a firewall.
package publicaddr

import "net/netip"

// global6 is all that IPv6 has given out to the Internet. Outside are loopback,
// link-local, site-local, unique local and multicast addresses, the IPv4-compatible
// ones, and NAT64 (64:ff9b::/96, 64:ff9b:1::/48).
var global6 = netip.MustParsePrefix("2000::/3")

// special are networks that nobody on the Internet is in, although nothing else
// about their addresses tells.
var special = prefixes(
	"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
	"192.88.99.0/24",   // relays of 6to4
	"168.63.129.16/32", // a cloud's own service for its machines
	"2001::/23",        // Teredo among them, which carries an IPv4 address
	"2002::/16",        // 6to4, likewise
	"2001:db8::/32", "3fff::/20",
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// Is reports whether an address is one of the Internet's.
func Is(address netip.Addr) bool {
	if address.Zone() != "" {
		return false
	}
	address = address.Unmap()
	if !address.IsGlobalUnicast() || address.IsPrivate() || address.Is6() && (!global6.Contains(address) || isatap(address)) {
		return false
	}
	for _, network := range special {
		if network.Contains(address) {
			return false
		}
	}
	return true
}

// isatap reports whether an address stands for an IPv4 address within a site
// (RFC 5214: the interface is 0000:5efe or 0200:5efe, then the address).
func isatap(address netip.Addr) bool {
	b := address.As16()
	return b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}
