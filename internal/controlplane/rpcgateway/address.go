package rpcgateway

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// clientAddress is who asks. X-Forwarded-For counts as far as trusted proxies
// have written it: from its end, up to the first address that is none of them.
// Before that anybody may have written anything.
func clientAddress(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	address := peer.Addr().Unmap()
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
