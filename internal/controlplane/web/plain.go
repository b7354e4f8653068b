package web

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// CheckPlain refuses to answer other machines over plain HTTP unless that is
// allowed by name: sessions and tokens would cross the network in the clear. It is
// the rule of trellis up and trellis serve.
func CheckPlain(listen, certFile, keyFile string, allowed bool) error {
	switch {
	case (certFile == "") != (keyFile == ""):
		return errors.New("--tls-cert and --tls-key: give both, or neither")
	case certFile == "" && !allowed && !Loopback(listen):
		return fmt.Errorf("--listen %s lets other machines in, and without a certificate their passwords and tokens cross the network in the clear: give --tls-cert and --tls-key, or add --allow-http, for example where a proxy in front speaks TLS", listen)
	}
	return nil
}

// Loopback reports whether only this machine reaches an address to listen on.
func Loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(cmp.Or(host, "::"))
	return host == "localhost" || err == nil && address.IsLoopback()
}
