// Package peer tells who calls an HTTP server by their address, and bounds how
// often each may.
//
// It must not know what they call for.
package peer

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Address is who asks. X-Forwarded-For counts as far as trusted proxies
// have written it: from its end, up to the first address that is none of them.
// Before that anybody may have written anything.
func Address(r *http.Request, trusted []netip.Prefix) netip.Addr {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	address := from.Addr().Unmap()
	said := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, one := range slices.Backward(said) {
		if !slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(address) }) {
			break
		}
		before, ok := forwarded(strings.TrimSpace(one))
		if !ok {
			break
		}
		address = before.Unmap()
	}
	return address
}

// forwarded reads an address; some proxies write the port as well.
func forwarded(text string) (netip.Addr, bool) {
	address, err := netip.ParseAddr(text)
	if err == nil {
		return address, true
	}
	both, err := netip.ParseAddrPort(text)
	return both.Addr(), err == nil
}

// Network is what counts as one address: of IPv6 a /64, for a customer gets
// at least that many.
func Network(address netip.Addr) netip.Prefix {
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	network, _ := address.WithZone("").Prefix(bits) // an address that is none: all of those together
	return network
}
