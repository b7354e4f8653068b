package executor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

func TestFitPlan(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		resources, attributes, address int
		listed, described              int // at least
	}{
		"small":           {10, 10, 20, 10, 10},
		"many attributes": {1000, 100, 20, 1000, 20},
		"long addresses":  {1000, 1, 1000, 240, 0},
	} {
		plan := provision.PlanSummary{Add: test.resources}
		for i := range test.resources {
			change := provision.PlannedChange{Address: fmt.Sprintf("%0*d", test.address, i), Action: "create"}
			for j := range test.attributes {
				change.Attributes = append(change.Attributes, provision.AttributeChange{
					Path: fmt.Sprintf("tags.k%d", j), After: json.RawMessage(`"` + strings.Repeat(",", 20) + `"`)})
			}
			plan.Resources = append(plan.Resources, change)
		}
		fitPlan(&plan)
		described := 0
		for _, change := range plan.Resources {
			if len(change.Attributes)+change.Truncated != test.attributes {
				t.Fatalf("%s: %d attributes and %d more, want %d in all", name, len(change.Attributes), change.Truncated, test.attributes)
			}
			if len(change.Attributes) > 0 {
				described++
			}
		}
		if size := sizeOf(plan); size > planLimit+1024 || len(plan.Resources) < test.listed || described < test.described ||
			len(plan.Resources)+plan.Truncated != test.resources || plan.Add != test.resources {
			t.Errorf("%s: fitPlan() = %d bytes, %d listed and %d more, %d described, want at most %d bytes, at least %d of %d, and %d",
				name, size, len(plan.Resources), plan.Truncated, described, planLimit, test.listed, test.resources, test.described)
		}
	}
}

func TestFitResources(t *testing.T) {
	t.Parallel()
	var resources []provision.Resource
	for i := range 10_000 {
		resources = append(resources, provision.Resource{
			Address: fmt.Sprintf("module.network.aws_instance.machine[%d]", i), Type: "aws_instance",
			Provider: "registry.terraform.io/hashicorp/aws", ExternalID: fmt.Sprintf("i-%017d", i),
			IPAddresses: []string{"10.0.0.1", "2001:db8::1"}, Status: "created",
		})
	}
	if got, omitted := fitList(resources[:2000]); len(got) != 2000 || omitted != 0 {
		t.Errorf("fitList(2,000) = %d, %d omitted, want all", len(got), omitted)
	}
	got, omitted := fitList(resources)
	if size := sizeOf(got); len(got)+omitted != len(resources) || omitted == 0 || size > fitLimit+1024 || size < fitLimit-1024 {
		t.Errorf("fitList(10,000) = %d, %d omitted, %d bytes, want as many as %d bytes hold", len(got), omitted, size, fitLimit)
	}
	if got, _ := fitList([]provision.Resource{}); got == nil {
		t.Error("fitList(none) = nil, want an empty list: nil would leave what the database knows")
	}
}

func TestFitOutputs(t *testing.T) {
	t.Parallel()
	outputs := map[string]provision.Output{
		"list":   {Value: json.RawMessage("[" + strings.Repeat("1,", 200_000) + "1]")}, // larger in the database than here
		"sealed": {Sensitive: true, Sealed: strings.Repeat("x", 500_000)},
		"small":  {Value: json.RawMessage(`"x"`), Type: json.RawMessage(`"string"`)},
	}
	dropped := fitOutputs(outputs)
	if slices.Sort(dropped); !slices.Equal(dropped, []string{"sealed"}) {
		t.Errorf("fitOutputs() dropped %q, want the sealed one", dropped)
	}
	if o := outputs["sealed"]; !o.Omitted || o.Sealed != "" || !o.Sensitive {
		t.Errorf("fitOutputs() leaves %+v, want it omitted", o)
	}
	if string(outputs["small"].Value) != `"x"` {
		t.Errorf("fitOutputs() leaves %+v, want it as it is", outputs["small"])
	}
}
