package templatefile_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/templatefile"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// The templates to copy are valid, and want the machines that they say.
func TestExamples(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		variables string
		want      string
	}{
		"class":           {`{"class": "net", "pool": "lab", "image": "debian", "students": ["ann", "bob"], "student_count": 2}`, "net-ann 2 net-bob 2 net-student-01 2 net-student-02 2 net-teacher 4"},
		"proxmox-machine": {`{"name": "web", "pool": "lab", "template_name": "debian-13", "vlan": 12}`, "web 2"},
		"bare-metal":      {`{"name": "db-1", "pool": "metal", "image": "debian-13", "resource_class": "gold"}`, "db-1 1"},
		"enroll":          {`{"pool": "metal", "servers": {"r1": {"driver": "redfish", "address": "bmc1", "macs": ["52:54:00:00:00:01"]}, "r2": {"driver": "ipmi", "address": "bmc2"}}}`, "r1 0 r2 0"},
		"class-terraform": {`{"class": "net", "pool": "lab", "image": "debian", "template_id": 9000, "students": ["ann"]}`, "net-ann 2 net-teacher 2"},
		"class-libvirt":   {`{"class": "net", "pool": "lab", "image": "debian", "hosts": [{"node": "hv1", "uri": "qemu:///system"}], "students": ["ann"]}`, "net-ann 1 net-teacher 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := "../../examples/templates/" + name
			file, err := templatefile.Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			template, err := tfvars.Load(dir, "terraform")
			if err != nil {
				t.Fatal(err)
			}
			declared, err := template.Declared()
			if err == nil {
				err = file.CheckVariables(declared)
			}
			if err != nil {
				t.Fatal(err)
			}
			plain := map[string]json.RawMessage{}
			if err := json.Unmarshal([]byte(c.variables), &plain); err != nil {
				t.Fatal(err)
			}
			values, err := template.Values(tfvars.Given{Plain: plain})
			if err != nil {
				t.Fatal(err)
			}
			if err := templatefile.CheckValues(template.Validations(), values); err != nil {
				t.Error(err)
			}
			machines, err := file.Machines(values)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range machines {
				got = append(got, fmt.Sprint(m.Name, " ", m.Cores))
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("machines = %s, want %s", text, c.want)
			}
			if _, err := file.Placement(values); err != nil {
				t.Error(err)
			}
		})
	}
}
