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
		before, err := netip.ParseAddr(strings.TrimSpace(one))
		if err != nil {
			break
		}
		address = before.Unmap()
	}
	return address
}
