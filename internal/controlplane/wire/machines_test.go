package wire_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
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

// An act is offered where the machine's provisioner can do it and it makes sense, and is about
// that machine alone.
func TestAsk(t *testing.T) {
	t.Parallel()
	address := "machine.ada"
	all := provision.MachineActions
	for name, tt := range map[string]struct {
		machine wire.Machine
		offers  []wire.Act
	}{
		"one that runs":             {wire.Machine{Status: "running", Address: &address, Actions: all}, []wire.Act{"stop", "restart", "rescue", "unrescue", "refresh", "reveal", "rebuild", "destroy"}},
		"one that is stopped":       {wire.Machine{Status: "stopped", Address: &address, Actions: all}, []wire.Act{"start", "rescue", "unrescue", "refresh", "reveal", "rebuild", "destroy"}},
		"one that nobody knows of":  {wire.Machine{Status: "unknown", Address: &address, Actions: all}, []wire.Act{"start", "stop", "restart", "rescue", "unrescue", "refresh", "reveal", "rebuild", "destroy"}},
		"one that is gone":          {wire.Machine{Status: "gone", Address: &address, Actions: all}, nil},
		"one without an address":    {wire.Machine{Status: "running", Actions: all}, nil},
		"one of a poor provisioner": {wire.Machine{Status: "running", Address: &address, Actions: []provision.MachineAction{"destroy"}}, []wire.Act{"destroy"}},
	} {
		if got := tt.machine.Offers(); !slices.Equal(got, tt.offers) {
			t.Errorf("Offers() of %s = %v, want %v", name, got, tt.offers)
		}
	}
	m := wire.Machine{Name: "ada", Status: "running", Address: &address, Actions: all}
	for _, tt := range []struct {
		do        wire.Act
		approve   bool
		operation provision.Operation
		snapshot  string
	}{
		{"start", true, provision.OperationPower, `{"targets":["machine.ada"],"power":"start"}`},
		{"stop", false, provision.OperationPower, `{"targets":["machine.ada"],"power":"stop"}`},
		{"restart", true, provision.OperationPower, `{"targets":["machine.ada"],"power":"restart"}`},
		{"rescue", true, provision.OperationPower, `{"targets":["machine.ada"],"power":"rescue"}`},
		{"unrescue", false, provision.OperationPower, `{"targets":["machine.ada"],"power":"unrescue"}`},
		{"reveal", true, provision.OperationState, `{"state":{"command":"reveal","args":["machine.ada"]}}`},
		{"refresh", true, provision.OperationRefresh, `{"targets":["machine.ada"]}`},
		{"rebuild", true, provision.OperationApply, `{"targets":["machine.ada"],"replace":["machine.ada"],"approval":"always"}`},
		{"rebuild", false, provision.OperationApply, `{"targets":["machine.ada"],"replace":["machine.ada"]}`},
		{"destroy", true, provision.OperationDestroy, `{"targets":["machine.ada"],"approval":"always"}`},
		{"destroy", false, provision.OperationDestroy, `{"targets":["machine.ada"]}`},
	} {
		operation, change, err := m.Ask(tt.do, tt.approve)
		if err != nil {
			t.Errorf("Ask(%s) = %v", tt.do, err)
			continue
		}
		asked := provision.Snapshot{TemplateSource: provision.TemplateSource{Repo: "https://git.example/a/b", Version: "v1"}}
		change(&asked)
		text, err := json.Marshal(asked)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Replace(string(text), `"template_source":{"repo":"https://git.example/a/b","version":"v1"},`, "", 1); operation != tt.operation || got != tt.snapshot {
			t.Errorf("Ask(%s, %t) = %s of %s, want %s of %s", tt.do, tt.approve, operation, got, tt.operation, tt.snapshot)
		}
		if parsed, err := provision.ParseSnapshot(text); err != nil || parsed.CheckOperation(operation) != nil {
			t.Errorf("Ask(%s) asks for what a database refuses: %v, %v", tt.do, err, parsed.CheckOperation(operation))
		}
	}
	if _, _, err := m.Ask("melt", false); err == nil {
		t.Error("Ask(melt) is no error")
	}
}
