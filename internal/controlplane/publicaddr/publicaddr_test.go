package publicaddr

import (
	"net/netip"
	"testing"
)

// What is not on the Internet is not reached, whatever stands for it.
func TestIs(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"8.8.8.8": true, "140.82.121.4": true, "172.32.0.1": true, "168.63.129.15": true, "::ffff:8.8.8.8": true,
		"2606:4700::1111": true, "2606:50c0:8000::154": true,
		"127.0.0.1": false, "127.8.9.10": false, "0.0.0.0": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false,
		"169.254.169.254": false, "100.64.0.1": false, "100.100.100.200": false, "168.63.129.16": false, "192.0.0.192": false, "198.18.0.1": false,
		"192.88.99.1": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::1": false, "::": false, "fe80::1": false, "fe80::1%eth0": false, "2606:4700::1111%eth0": false, "fec0::1": false, "fc00::1": false, "fd00:ec2::254": false,
		"ff02::1": false, "2001:db8::1": false, "3fff::1": false, "5f00::1": false, "100::1": false,
		"::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "::ffff:168.63.129.16": false, "::127.0.0.1": false, "::ffff:0:7f00:1": false, // translated
		"64:ff9b::a9fe:a9fe": false, "64:ff9b::7f00:1": false, "64:ff9b::808:808": false, "64:ff9b:1::a9fe:a9fe": false, "64:ff9b:1:fffe::7f00:1": false, // NAT64
		"2002:7f00:1::": false, "2002:a9fe:a9fe::1": false, "2002:808:808::1": false, // 6to4
		"2001::1": false, "2001:0:7f00:1::5601:5601": false, // Teredo
		"2606:4700::5efe:7f00:1": false, "2606:4700::200:5efe:a9fe:a9fe": false, // ISATAP
	} {
		if got := Is(netip.MustParseAddr(address)); got != want {
			t.Errorf("Is(%s) = %t, want %t", address, got, want)
		}
	}
}
