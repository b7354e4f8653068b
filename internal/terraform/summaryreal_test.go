package terraform

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

const before = `
variable "pw" {
  default   = "hunter2-default"
  sensitive = true
}
resource "terraform_data" "old" { input = "same" }
resource "terraform_data" "gone" {}
resource "terraform_data" "left" {}
resource "terraform_data" "changed" { input = { tags = { name = "x" }, ports = [{ number = 80 }, { number = 443 }], pw = var.pw, plain = "p" } }
resource "terraform_data" "trigger" { input = 1 }
resource "terraform_data" "triggered" {
  lifecycle { replace_triggered_by = [terraform_data.trigger] }
}
resource "terraform_data" "forced" { triggers_replace = { by = ["a"] } }
resource "terraform_data" "each" {
  for_each = toset(["a", "b"])
  input    = each.key
}
`

const after = `
variable "pw" {
  default   = "hunter3-default"
  sensitive = true
}
resource "terraform_data" "new" { input = "same" }
moved {
  from = terraform_data.old
  to   = terraform_data.new
}
removed {
  from = terraform_data.left
  lifecycle { destroy = false }
}
import {
  to = terraform_data.brought
  id = "i-brought"
}
resource "terraform_data" "brought" {}
resource "terraform_data" "changed" { input = { tags = { name = "y", "a.b" = 1 }, ports = [{ number = 81 }], pw = var.pw, plain = var.pw } }
resource "terraform_data" "trigger" { input = 2 }
resource "terraform_data" "triggered" {
  lifecycle { replace_triggered_by = [terraform_data.trigger] }
}
resource "terraform_data" "forced" { triggers_replace = { by = ["b"] } }
resource "terraform_data" "each" {
  for_each = toset(["b", "c"])
  input    = each.key
}
`

// wantChanges is what the plan from one to the other says, a resource a line.
const wantChanges = `terraform_data.brought import id=i-brought
terraform_data.changed update input.plain!=> input.ports[0].number=80>81 input.ports[1]={"number":443}> input.pw!=> input.tags["a.b"]=>1 input.tags.name="x">"y" output?=>
terraform_data.each["a"] delete delete_because_each_key
terraform_data.each["c"] create id?=> input=>"c" output?=>
terraform_data.forced replace replace_because_cannot_update triggers_replace.by[0]#="a">"b" id?=>
terraform_data.gone delete delete_because_no_resource_config
terraform_data.left forget
terraform_data.new move from=terraform_data.old
terraform_data.trigger update input=1>2 output?=>
terraform_data.triggered replace replace_by_triggers id?=>`

// Both engines, and every way in which a plan can concern a resource.
func TestSummariseAgreesWithTheEngines(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{Terraform, OpenTofu} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newReal(t, kind, before, Options{})
			planned(t, r, PlanOptions{})
			if _, err := r.Apply(t.Context(), ApplyOptions{PlanFile: "tendril.tfplan"}); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(r.dir, "main.tf"), []byte(after), 0o600); err != nil {
				t.Fatal(err)
			}
			summary := planned(t, r, PlanOptions{})
			var lines []string
			for _, c := range summary.Resources {
				line := c.Address + " " + c.Action
				for _, word := range []struct{ prefix, text string }{{"id=", c.ID}, {"from=", c.From}, {"", c.Reason}, {"", shownAs(c.Attributes)}} {
					if word.text != "" {
						line += " " + word.prefix + word.text
					}
				}
				lines = append(lines, line)
			}
			if got := strings.Join(lines, "\n"); got != wantChanges {
				t.Errorf("Summarise() =\n%s\nwant\n%s", got, wantChanges)
			}
			summary.Resources = nil
			if want := (provision.PlanSummary{Add: 1, Change: 2, Destroy: 2, Replace: 2, Import: 1, Move: 1, Forget: 1}); summary.Add != want.Add || summary.Change != want.Change ||
				summary.Destroy != want.Destroy || summary.Replace != want.Replace || summary.Import != want.Import || summary.Move != want.Move || summary.Forget != want.Forget {
				t.Errorf("Summarise() = %+v, want %+v", summary, want)
			}
		})
	}
}
