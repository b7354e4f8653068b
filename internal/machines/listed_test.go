package machines_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/machines"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/provisioner"
)

func TestListed(t *testing.T) {
	t.Parallel()
	s := recorded()
	fine := s.Named("fine")
	fine.Node, fine.Address, fine.Addresses, fine.SSHPort = "pve1", "10.0.0.1", []string{"10.0.0.1", "fe80::1"}, 2222
	fine.Wanted.Labels, fine.Wanted.Image = map[string]string{"class": "a"}, "debian"
	s.Actions = []provision.MachineAction{"destroy", "power"}
	fine.Credentials = map[string]string{"root_password": "hunter2"}
	var got []string
	for _, m := range s.Listed() {
		got = append(got, fmt.Sprint(m))
	}
	want := []string{
		"{broken failed machine.broken   vm-broken [] 0   0 2048 0 map[] [destroy power] <nil>}",
		"{ending unknown machine.ending   vm-ending [] 0   0 2048 0 map[] [destroy power] <nil>}",
		"{fine running machine.fine  pve1 vm-fine [10.0.0.1 fe80::1] 2222  debian 0 2048 0 map[class:a] [destroy power reveal] <nil>}",
		"{starting creating machine.starting    [] 0   0 2048 0 map[] [destroy power] <nil>}",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("Listed() =\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if none := (&machines.State{}).Listed(); none == nil {
		t.Error("Listed() of no machines = nil, which leaves what the database knows")
	}
	s.Settle(provisioner.Machine{ID: "id-ending", Status: provisioner.StatusGone})
	if listed := s.Listed(); len(listed) != 3 || listed[1].Name != "fine" || listed[1].Status != "running" {
		t.Errorf("Listed() = %v, want three without the one that is gone", listed)
	}
}

func TestFromOutput(t *testing.T) {
	t.Parallel()
	const unknown = "{a unknown     [] 0   0 0 0 map[] [] <nil>}"
	full := `{"status": "stopped", "resource": "proxmox_vm.m[\"a\"]", "pool": "lab", "node": "pve1", "external_id": "101", "address": "10.0.0.1", "addresses": ["fe80::1", "10.0.0.1"],
		"ssh_port": 2222, "ssh_user": "root", "image": "debian", "cores": 2, "memory": 2048, "disk": 20, "labels": {"class": "a"}, "anything": {"else": 1}}`
	for _, tt := range []struct{ value, want, wrong string }{
		{`{}`, "", ""},
		{`{"b": {}, "a": ` + full + `}`, `{a stopped proxmox_vm.m["a"] lab pve1 101 [10.0.0.1 fe80::1] 2222 root debian 2 2048 20 map[class:a] [] <nil>} {b running     [] 0   0 0 0 map[] [] <nil>}`, ""},
		{`{"a": {"address": null, "cores": null, "labels": null}}`, "{a running     [] 0   0 0 0 map[] [] <nil>}", ""},
		{`[]`, "", "it is not a map of objects"},
		{`"x"`, "", "it is not a map of objects"},
		{`{"a": {"external_id": 101, "Status": "Primary", "Node": {}}}`, "{a running    101 [] 0   0 0 0 map[] [] <nil>}", ""},
		{`{"a": null, "b": {}}`, "{a unknown     [] 0   0 0 0 map[] [] <nil>} {b running     [] 0   0 0 0 map[] [] <nil>}", `"a" is listed without what is said of it: it is not an object`},
		{`{"a": "10.0.0.1"}`, unknown, "it is not an object"},
		{`{"a": {"address": []}}`, unknown, "address must be a text"},
		{`{"a": {"image": "` + strings.Repeat("x", 601) + `"}}`, unknown, "image must be a text of at most 600 characters"},
		{`{"a": {"addresses": "10.0.0.1"}}`, unknown, "addresses must be a list of texts"},
		{`{"a": {"cores": 1.5}}`, unknown, "cores must be a whole number from 1 to 2147483647"},
		{`{"a": {"labels": {"x": 1}}}`, unknown, "labels must be a map of texts"},
		{`{"a": {"status": "planned"}}`, unknown, "status must be creating, running, stopped, failed or unknown"},
		{`{"a": {"ssh_port": 65536}}`, unknown, "ssh_port must be a whole number from 1 to 65535"},
		{`{"a": {"memory": -1}}`, unknown, "memory must be a whole number from 1 to 2147483647"},
		{`{"": {}}`, "", `the name "" has 0 characters, not 1 to 200`},
		{`{"` + strings.Repeat("ü", 201) + `": {}}`, "", "has 201 characters, not 1 to 200"},
	} {
		listed, wrong := machines.FromOutput([]byte(tt.value))
		var got []string
		for _, m := range listed {
			got = append(got, fmt.Sprint(m))
		}
		said := fmt.Sprint(wrong)
		if strings.Join(got, " ") != tt.want || len(wrong) > 1 || (tt.wrong == "") != (len(wrong) == 0) || !strings.Contains(said, tt.wrong) {
			t.Errorf("FromOutput(%.100s) = %s, %s, want %s, %s", tt.value, got, said, tt.want, tt.wrong)
		}
	}
	if listed, _ := machines.FromOutput([]byte(`{}`)); listed == nil {
		t.Error("FromOutput({}) = nil, which leaves what the database knows")
	}
}
