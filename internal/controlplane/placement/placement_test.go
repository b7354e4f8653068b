package placement_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/controlplane/placement"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

const file = `provisioner "machine" {
  machine {
    for_each = var.names
    name     = each.key
    pool     = var.pool
    image    = "debian"
    cores    = var.cores
    memory   = 1024
    disk     = var.disk
    labels   = { class = "a" }
    cloud_init { password = var.password }
  }
}
placement { spread = true }
`

func variable(name, ty string, more string) string {
	return fmt.Sprintf(`{"name": %q, "type_json": %s, "nullable": true%s}`, name, ty, more)
}

func TestWants(t *testing.T) {
	t.Parallel()
	var declared []provision.Variable
	if err := json.Unmarshal([]byte("["+strings.Join([]string{
		variable("cores", `"number"`, `, "default": 2`), variable("disk", `"number"`, `, "required": true`), variable("names", `["set","string"]`, `, "required": true`),
		variable("password", `"string"`, `, "required": true, "sensitive": true`), variable("pool", `"string"`, `, "default": "lab"`),
	}, ",")+"]"), &declared); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ does, asked, want, wrong string }{
		{"what decides about no place may be missing or sealed", `{"terraform_vars": {"names": ["a", "b"]}, "sealed_vars": {"password": "x"}}`,
			`[{"name":"a","pool":"lab","cores":2,"memory_mib":1024,"image":"debian","spread":"all"},{"name":"b","pool":"lab","cores":2,"memory_mib":1024,"image":"debian","spread":"all"}]`, ""},
		{"a pool of machines that exist goes by labels", `{"terraform_vars": {"names": ["a"], "pool": "desks", "cores": "3"}}`, `[{"name":"a","pool":"desks","cores":3,"memory_mib":1024,"labels":{"class":"a"},"spread":"all"}]`, ""},
		{"targets", `{"terraform_vars": {"names": ["a", "b"]}, "targets": ["machine.b"]}`, `[{"name":"b","pool":"lab","cores":2,"memory_mib":1024,"image":"debian","spread":"all"}]`, ""},
		{"no machine", `{"terraform_vars": {"names": []}}`, "null", ""},
		{"a missing one that decides", `{}`, "", "Fill in disk, names, password."},
		{"a sealed one that decides", `{"terraform_vars": {"names": ["a"], "disk": 1}, "sealed_vars": {"pool": "x", "password": "x"}}`, "", "pool"},
		{"a value of another type", `{"terraform_vars": {"names": ["a"], "cores": [1]}}`, "", "cores"},
		{"two of one name", `{"terraform_vars": {"names": ["a"], "cores": 1e9, "disk": 1, "password": "x"}}`, "", "cores must be a whole number"},
	} {
		var asked provision.Snapshot
		if err := json.Unmarshal([]byte(c.asked), &asked); err != nil {
			t.Fatal(err)
		}
		wants, err := placement.Wants(t.Context(), declared, file, asked, func(kinds map[string]string) error { kinds["desks"] = "static"; return nil })
		text, _ := json.Marshal(wants)
		unknown, is := errors.AsType[*placement.UnknownError](err)
		if c.wrong == "" && (err != nil || string(text) != c.want) || c.wrong != "" && (!is || !strings.Contains(unknown.Text, c.wrong)) {
			t.Errorf("%s: %s, %v, want %s%s", c.does, text, err, c.want, c.wrong)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for want, nodes := range map[string]string{
		"12 machines: 5 on pve1, 4 on pve2, 3 on pve3; 4 exist and stay": "pve1! pve1 pve1! pve1 pve1 pve2! pve2 pve2 pve2 pve3! pve3 pve3",
		"1 machine: on pve1; 1 exists and stays":                         "pve1!",
		"2 machines: 1 on a, 1 on b; all exist and stay":                 "b! a!",
		"2 machines: 2 on a":                                             "a a",
		"No machines":                                                    "",
		"14 machines: 2 on n0, " + "1 on n1, 1 on n10, 1 on n11, 1 on n12, 1 on n2, 1 on n3, 1 on n4, 1 on n5, 1 on n6, 1 on n7, 1 on n8, 1 on 1 other nodes": "n0 n0 n1 n2 n3 n4 n5 n6 n7 n8 n9 n10 n11 n12",
	} {
		var p placement.Preview
		for _, node := range strings.Fields(nodes) {
			name, exists := strings.CutSuffix(node, "!")
			p.Machines = append(p.Machines, store.PlacedMachine{Node: name, Exists: exists})
		}
		if got := p.Text(); got != want {
			t.Errorf("Text() = %q, want %q", got, want)
		}
	}
}
