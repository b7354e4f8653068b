package pool

import (
	"fmt"
	"net/netip"
	"testing"
)

// A machine is called at addresses of its pool alone, whatever a guest says of itself.
func TestSSHAddresses(t *testing.T) {
	t.Parallel()
	says := Found{}
	for _, text := range []string{"127.0.0.1", "169.254.169.254", "fe80::1%eth0", "0.0.0.0", "224.0.0.1", "::ffff:127.0.0.1", "10.0.0.5", "10.0.1.5", "fd00::5"} {
		says.Addresses = append(says.Addresses, netip.MustParseAddr(text))
	}
	within := []Range{{From: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddr("10.0.0.9"), Bits: 24}}
	for want, c := range map[string]Config{
		"[10.0.0.5:22 10.0.1.5:22 [fd00::5]:22]": {Kind: "libvirt"},
		"[10.0.0.5:22]":                          {Kind: "proxmox", Ranges: within},
	} {
		if got := fmt.Sprint(sshAddresses(c, says, 22)); got != want {
			t.Errorf("sshAddresses(%+v) = %s, want %s", c, got, want)
		}
	}
	desk := Found{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	if got := fmt.Sprint(sshAddresses(Config{Kind: "static"}, desk, 2222)); got != "[127.0.0.1:2222]" {
		t.Errorf("of a machine that its operator wrote down: %s", got)
	}
}
