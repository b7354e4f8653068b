package provision_test

import (
	"encoding/csv"
	"reflect"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

func TestHandOut(t *testing.T) {
	t.Parallel()
	none := map[string]string{}
	for _, tt := range []struct {
		machine     provision.Machine
		credentials map[string]string
		want        provision.HandedOut
	}{
		{provision.Machine{Name: "ann", IPAddresses: []string{"10.0.0.5", "fe80::1"}, SSHPort: 2222}, map[string]string{"user": "student", "password": "x"},
			provision.HandedOut{Name: "ann", Address: "10.0.0.5", Port: 2222, User: "student", Password: "x", Command: "ssh -p 2222 student@10.0.0.5", Others: none}},
		{provision.Machine{Name: "bob", IPAddresses: []string{"2001:db8::1"}, SSHUser: "debian"}, map[string]string{"root_password": "y", "token": "z"},
			provision.HandedOut{Name: "bob", Address: "2001:db8::1", Port: 22, User: "root", Password: "y", Command: "ssh root@2001:db8::1", Others: map[string]string{"token": "z"}}},
		{provision.Machine{Name: "key", IPAddresses: []string{"10.0.0.6"}, SSHUser: "debian"}, nil,
			provision.HandedOut{Name: "key", Address: "10.0.0.6", Port: 22, User: "debian", Command: "ssh debian@10.0.0.6", Others: none}},
		// What a template says is no part of a command unless it is what it should be.
		{provision.Machine{Name: "odd", IPAddresses: []string{"-oProxyCommand=x"}}, map[string]string{"user": "a", "password": "b"},
			provision.HandedOut{Name: "odd", Address: "-oProxyCommand=x", Port: 22, User: "a", Password: "b", Others: none}},
		{provision.Machine{Name: "odd", IPAddresses: []string{"10.0.0.7"}}, map[string]string{"user": "a;reboot", "password": "b"},
			provision.HandedOut{Name: "odd", Address: "10.0.0.7", Port: 22, User: "a;reboot", Password: "b", Others: none}},
		{provision.Machine{Name: "new"}, nil, provision.HandedOut{Name: "new", Port: 22, Others: none}},
	} {
		if got := provision.HandOut(tt.machine, tt.credentials); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("HandOut(%v, %v) = %+v, want %+v", tt.machine, tt.credentials, got, tt.want)
		}
	}
}

func TestHandOutCSV(t *testing.T) {
	t.Parallel()
	text := provision.HandOutCSV([]provision.HandedOut{
		{Name: "=HYPERLINK(1)", Address: "+1", Port: 22, User: "-a", Password: "@b", Command: "\tc"},
		{Name: `q"uote`, Password: "a,b\nc", Port: 22, Others: map[string]string{"token": "=1", "api": "\r"}},
	})
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	want := [][]string{
		{"name", "address", "ssh_port", "user", "password", "ssh_command", "api", "token"},
		{"'=HYPERLINK(1)", "'+1", "22", "'-a", "'@b", "'\tc", "", ""},
		{`q"uote`, "", "22", "", "a,b\nc", "", "'\r", "'=1"},
	}
	if err != nil || !reflect.DeepEqual(rows, want) {
		t.Errorf("HandOutCSV() reads as %q, %v, want %q", rows, err, want)
	}
}
