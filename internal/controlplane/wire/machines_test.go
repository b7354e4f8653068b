package wire_test

import (
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

// What a template says of a machine is never an option, a command or another host of ssh.
func TestSSH(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		addresses  []string
		user       string
		port       int
		want, fail string
	}{
		{[]string{"10.0.0.1", "10.0.0.2"}, "", 0, "10.0.0.1", ""},
		{[]string{"10.0.0.1"}, "root", 22, "root@10.0.0.1", ""},
		{[]string{"2001:db8::1"}, "ada.l_-", 2222, "-p 2222 ada.l_-@2001:db8::1", ""},
		{nil, "", 0, "", "no IP address"},
		{[]string{"-oProxyCommand=touch x"}, "", 0, "", "not an IP address"},
		{[]string{"host.example"}, "", 0, "", "not an IP address"},
		{[]string{"fe80::1%eth0;x"}, "", 0, "", "not an IP address"},
		{[]string{"10.0.0.1\nProxyCommand x"}, "", 0, "", "not an IP address"},
		{[]string{"10.0.0.1"}, "-oProxyCommand=x", 0, "", "not the name of a user"},
		{[]string{"10.0.0.1"}, "a@b", 0, "", "not the name of a user"},
		{[]string{"10.0.0.1"}, "a\nProxyCommand x", 0, "", "not the name of a user"},
	} {
		m := wire.Machine{Name: "m", IPAddresses: tt.addresses}
		if tt.user != "" {
			m.SSHUser = &tt.user
		}
		if tt.port != 0 {
			m.SSHPort = &tt.port
		}
		to, err := m.SSH()
		if m.Status = "gone"; err == nil {
			if _, gone := m.SSH(); gone == nil {
				t.Errorf("SSH() of a machine that is gone is no error")
			}
		}
		if tt.fail != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fail) {
				t.Errorf("SSH() of %q as %q = %v, %v, want an error with %q", tt.addresses, tt.user, to, err, tt.fail)
			}
			continue
		}
		if got := strings.Join(to.Args(), " "); err != nil || got != tt.want {
			t.Errorf("SSH() of %q as %q = %q, %v, want %q", tt.addresses, tt.user, got, err, tt.want)
		}
	}
}
