package provision

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tendril-run/tendril/internal/lazyregexp"
)

// SSH is where ssh finds a machine. Nothing of it can be taken for an option or for another
// host: what is recorded of a machine are a template's words.
type SSH struct {
	Address, User string
	Port          int
}

var sshUser = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// NewSSH checks what is recorded of a machine. Port 0 is 22, user "" the one that ssh chooses.
func NewSSH(address string, port int, user string) (SSH, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Zone() != "" {
		return SSH{}, fmt.Errorf("%q is not an IP address that ssh is given", address)
	}
	if user != "" && !sshUser.MatchString(user) {
		return SSH{}, fmt.Errorf("%q is not the name of a user", user)
	}
	if port == 0 {
		port = 22
	}
	return SSH{Address: ip.String(), User: user, Port: port}, nil
}

// Args are the arguments of ssh.
func (s SSH) Args() (args []string) {
	if s.Port != 22 {
		args = append(args, "-p", strconv.Itoa(s.Port))
	}
	if s.User != "" {
		return append(args, s.User+"@"+s.Address)
	}
	return append(args, s.Address)
}

// Command is what a person types.
func (s SSH) Command() string { return strings.Join(append([]string{"ssh"}, s.Args()...), " ") }
