package notify

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"syscall"

	"github.com/tendril-run/tendril/internal/controlplane/publicaddr"
)

// Allowed are receivers that would be refused otherwise: within a network of
// one's own, or without TLS.
type Allowed struct {
	networks []netip.Prefix
	hosts    []string
}

// Local allows this machine.
var Local = Allowed{networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}, hosts: []string{"localhost"}}

// ParseAllowed reads addresses, networks (10.0.0.0/8) and names of hosts.
func ParseAllowed(words []string) (a Allowed, err error) {
	for _, word := range words {
		word = strings.TrimSpace(word)
		if prefix, err := netip.ParsePrefix(word); err == nil {
			a.networks = append(a.networks, prefix.Masked())
		} else if address, err := netip.ParseAddr(word); err == nil {
			a.networks = append(a.networks, netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen()))
		} else if word == "" || strings.ContainsAny(word, "/:@ *") {
			return a, fmt.Errorf("%q is neither an address, nor a network such as 10.0.0.0/8, nor the name of a host", word)
		} else {
			a.hosts = append(a.hosts, strings.ToLower(word))
		}
	}
	return a, nil
}

func (a Allowed) host(name string) bool {
	for _, h := range a.hosts {
		if strings.EqualFold(h, name) {
			return true
		}
	}
	address, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil && a.address(address)
}

func (a Allowed) address(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	for _, n := range a.networks {
		if n.Contains(address) {
			return true
		}
	}
	return false
}

// BadURLError says why a URL is none to send to. It does not show it.
type BadURLError struct{ Problem string }

func (e *BadURLError) Error() string { return "url: " + e.Problem }

// parse reads a receiver's URL. What its name stands for is looked at when it is
// dialled: that may change.
func (a Allowed) parse(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || len(text) > 2000:
		return nil, &BadURLError{"must be a URL such as https://hooks.example/path"}
	case u.User != nil:
		return nil, &BadURLError{"must not have a user or a password: receivers verify signatures"}
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, &BadURLError{"must begin with https://"}
	case u.Scheme == "http" && !a.host(u.Hostname()):
		return nil, &BadURLError{"must begin with https://, for what is sent could be read on its way (the administrator of this control plane can allow a host by --webhook-allow)"}
	}
	if address, err := netip.ParseAddr(u.Hostname()); err == nil && !a.address(address) && !publicaddr.Is(address) {
		return nil, &BadURLError{refusal(address)}
	}
	u.Fragment = ""
	return u, nil
}

// shown is all of a URL that people see again.
func shown(u *url.URL) string { return u.Scheme + "://" + u.Host }

func refusal(address netip.Addr) string {
	return fmt.Sprintf("%s is not an address on the Internet (the administrator of this control plane can allow it by --webhook-allow)", address)
}

// control is a dialer's: it sees the address that is about to be connected to,
// so a name cannot stand for one thing when it is checked and another when it is
// used. named: the receiver's host is allowed by its name, whatever it stands for.
func (a Allowed) control(named bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, text string, _ syscall.RawConn) error {
		address, err := netip.ParseAddrPort(text)
		if err != nil {
			return fmt.Errorf("refused to connect to %s: %w", text, err)
		}
		if named || a.address(address.Addr()) || publicaddr.Is(address.Addr()) {
			return nil
		}
		return &net.AddrError{Err: "refused to connect: " + refusal(address.Addr()), Addr: ""}
	}
}
