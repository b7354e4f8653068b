package templatefile

import (
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// FuzzMachines looks for files that bring the reader down, for failures without a code,
// and for secrets in messages and in what people see of a machine.
func FuzzMachines(f *testing.F) {
	for _, source := range []string{whole, once, lines, manual, placed} {
		f.Add(source)
	}
	f.Add(machineOf(`for_each = { for a in var.list : a => upper(a) if a != "" }; name = each.key; pool = "${var.text}%{ if true }x%{ endif }"; proxmox {;   a = var.secret; }`))
	f.Add(machineOf(`name = "a"; pool = jsonencode(var.list[*]); cores = tonumber(var.secret) + -1; labels = merge({ a = 1 }, var.list...)`))
	list := cty.ListVal([]cty.Value{cty.StringVal("a"), cty.StringVal("b")})
	vars := map[string]cty.Value{
		"list": list, "students": list, "text": cty.StringVal("x"), "pool": cty.StringVal("lab"), "class": cty.StringVal("c"), "node": cty.NullVal(cty.String),
		"secret": cty.StringVal("hunter2hunter2").Mark(tfvars.Sensitive),
	}
	f.Fuzz(func(t *testing.T, source string) {
		if strings.Contains(source, "hunter2") {
			return // it is no secret then
		}
		file, err := Parse([]byte(source))
		if err != nil {
			if code := provision.AsFailure(err).Code; code != provision.CodeTemplateInvalid {
				t.Fatalf("Parse(%q) error = %v with code %s", source, err, code)
			}
			return
		}
		_, placementErr := file.Placement(vars)
		machines, err := file.Machines(vars)
		for _, err := range []error{err, placementErr} {
			if err == nil {
				continue
			}
			if code := provision.AsFailure(err).Code; code != provision.CodeTemplateInvalid && code != provision.CodeVariablesInvalid {
				t.Fatalf("Machines(%q) error = %v with code %s", source, err, code)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Fatalf("Machines(%q) error = %v, which shows a secret", source, err)
			}
		}
		for _, m := range machines {
			if !dnsLabel.MatchString(m.Name) {
				t.Fatalf("Machines(%q) has the name %q", source, m.Name)
			}
			seen := m.Name + m.Pool + m.Image + m.Address
			for key, value := range m.Labels {
				seen += key + value
			}
			if strings.Contains(strings.ToLower(seen), "hunter2") {
				t.Fatalf("Machines(%q) shows a secret: %+v", source, m)
			}
		}
	})
}
