package executor_test

import (
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// Terraform's plan knows where the database has put its machines, and so does that of a drift
// check, in which outputs look places up. A destroy asks for no place.
func TestTerraformGetsPlaces(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{
		"tendril.hcl": `provisioner "terraform" {
  machine {
    for_each = var.names
    name     = each.key
    pool     = "lab"
    cores    = 1
    memory   = 512
  }
}
placement { variable = "places" }
`,
		"variables.tf": `variable "names" { type = set(string) }
variable "places" {
  type    = map(object({ node = string, vmid = number, address = string }))
  default = {}
}
`,
		"main.tf": `resource "terraform_data" "vm" {
  for_each = var.places
  input    = each.value.node
}
output "nodes" { value = [for name, vm in terraform_data.vm : var.places[name].node] }
output "at" { value = join("; ", [for name, p in var.places : "${name} ${p.node} ${coalesce(p.vmid, 0)} ${coalesce(p.address, "-")}"]) }
`,
	}, map[string]any{"names": []string{"ann", "bob"}})
	asked := 0
	s.places = func(wants []provision.PlaceWanted) (placed []provision.Place) {
		asked++
		for i, w := range wants {
			place := provision.Place{Name: w.Name, Pool: "lab", Node: "hv1", Why: "hv1 is free"}
			if i > 0 {
				place.Node, place.VMID, place.Address = "hv2", 201, "10.0.0.5"
			}
			placed = append(placed, place)
		}
		return placed
	}
	run := s.do(provision.OperationApply)
	if got, want := string(run.outputs()["at"].Value), `"ann hv1 0 -; bob hv2 201 10.0.0.5"`; got != want {
		t.Errorf("the template's places = %s, want %s", got, want)
	}
	if found := driftOf(s.do(provision.OperationRefresh)); found == nil || len(found) != 0 {
		t.Errorf("a drift check finds %+v, want nothing", found)
	}
	s.do(provision.OperationDestroy)
	if asked != 2 {
		t.Errorf("places were asked for %d times, want twice, for the apply and the drift check", asked)
	}
}
