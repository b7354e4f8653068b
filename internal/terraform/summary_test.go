package terraform

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

func planOf(t *testing.T, fields string) *tfjson.Plan {
	t.Helper()
	var plan tfjson.Plan
	if err := json.Unmarshal([]byte(`{"format_version":"1.2",`+fields+`}`), &plan); err != nil {
		t.Fatal(err)
	}
	return &plan
}

func TestSummarise(t *testing.T) {
	t.Parallel()
	plan := planOf(t, `"resource_changes":[
		{"address":"a.create","mode":"managed","change":{"actions":["create"]}},
		{"address":"a.update","mode":"managed","change":{"actions":["update"]}},
		{"address":"a.delete","mode":"managed","change":{"actions":["delete"]}},
		{"address":"a.replace","mode":"managed","change":{"actions":["delete","create"]}},
		{"address":"a.replace2","mode":"managed","change":{"actions":["create","delete"]}},
		{"address":"a.import","mode":"managed","change":{"actions":["no-op"],"importing":{"id":"i"}}},
		{"address":"a.imported","mode":"managed","change":{"actions":["update"],"importing":{"id":"i"}}},
		{"address":"a.move","previous_address":"a.old","mode":"managed","change":{"actions":["no-op"]}},
		{"address":"a.forget","mode":"managed","change":{"actions":["forget"]}},
		{"address":"a.left","mode":"managed","change":{"actions":["create","forget"]}},
		{"address":"a.newer","mode":"managed","change":{"actions":["delete","rename"]}},
		{"address":"a.read","mode":"managed","change":{"actions":["read"]}},
		{"address":"a.same","mode":"managed","change":{"actions":["no-op"]}},
		{"address":"data.a.read","mode":"data","change":{"actions":["read"]}},
		{"address":"a.none","mode":"managed"}]`)
	got := Summarise(plan)
	var actions []string
	for _, r := range got.Resources {
		actions = append(actions, strings.TrimPrefix(r.Address, "a.")+"="+r.Action)
	}
	if want := "create=create update=update delete=delete replace=replace replace2=replace import=import imported=update move=move forget=forget left=replace newer=replace"; strings.Join(actions, " ") != want {
		t.Errorf("Summarise() lists %v, want %s", actions, want)
	}
	if i, m := got.Resources[5], got.Resources[7]; i.ID != "i" || i.From != "" || m.From != "a.old" {
		t.Errorf("Summarise() = import of %q, move from %q, want i and a.old", i.ID, m.From)
	}
	got.Resources = nil
	if want := (provision.PlanSummary{Add: 1, Change: 2, Destroy: 1, Replace: 4, Import: 2, Move: 1, Forget: 1}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("Summarise() = %+v, want %+v", got, want)
	}
	if steps := Steps(got); steps != 12 {
		t.Errorf("Steps() = %d, want 12", steps)
	}
}

func TestSummariseIsBounded(t *testing.T) {
	t.Parallel()
	plan := &tfjson.Plan{}
	for i := range provision.MaxPlanResources + 5 {
		plan.ResourceChanges = append(plan.ResourceChanges, &tfjson.ResourceChange{
			Address: fmt.Sprintf("a.b[%d]", i), Mode: tfjson.ManagedResourceMode, Change: &tfjson.Change{Actions: tfjson.Actions{tfjson.ActionCreate}},
		})
	}
	if got := Summarise(plan); len(got.Resources) != provision.MaxPlanResources || got.Truncated != 5 || got.Add != provision.MaxPlanResources+5 {
		t.Errorf("Summarise() lists %d of %d and leaves out %d, want %d and 5", len(got.Resources), got.Add, got.Truncated, provision.MaxPlanResources)
	}
}

// What takes something away is listed, whatever there is beside it.
func TestSummariseListsTheGravest(t *testing.T) {
	t.Parallel()
	plan := &tfjson.Plan{}
	for i := range 2 * provision.MaxPlanResources {
		action := tfjson.ActionCreate
		if i%500 == 499 {
			action = tfjson.ActionDelete
		}
		plan.ResourceChanges = append(plan.ResourceChanges, &tfjson.ResourceChange{
			Address: fmt.Sprintf("a.b[%d]", i), Mode: tfjson.ManagedResourceMode,
			Change: &tfjson.Change{Actions: tfjson.Actions{action}, After: map[string]any{"i": i}},
		})
	}
	got := Summarise(plan)
	deleted := 0
	for _, r := range got.Resources {
		if r.Action == "delete" {
			deleted++
		} else if want := "a.b" + fmt.Sprintf("[%s]", r.Attributes[0].After); r.Address != want {
			t.Errorf("Summarise() has the attributes of %s at %s", want, r.Address)
		}
	}
	if deleted != 4 || got.Resources[0].Address != "a.b[0]" || got.Resources[999].Address != "a.b[1999]" {
		t.Errorf("Summarise() lists %d of 4 that are deleted, from %s to %s, want them all in the plan's order", deleted, got.Resources[0].Address, got.Resources[999].Address)
	}
}

func TestSensitiveValues(t *testing.T) {
	t.Parallel()
	plan := planOf(t, `
		"variables":{"secret":{"value":["v-one",{"k":"v-two"}]},"open":{"value":"shown"}},
		"configuration":{"root_module":{"variables":{"secret":{"sensitive":true},"open":{}}}},
		"output_changes":{"o":{"actions":["update"],"before":"old","after":"new","before_sensitive":true,"after_sensitive":true},
			"p":{"actions":["update"],"before":"shown-before","after":"made-secret","before_sensitive":false,"after_sensitive":true}},
		"planned_values":{"outputs":{"n":{"sensitive":true,"value":12345.5},"x":{"sensitive":false,"value":"shown-too"}}},
		"prior_state":{"format_version":"1.0","values":{"outputs":{"q":{"sensitive":true,"value":{"a":true,"b":"","c":"prior"}}}}}`)
	want := []string{"12345.5", "made-secret", "new", "old", "prior", "v-one", "v-two"}
	if got := SensitiveValues(plan); !slices.Equal(got, want) {
		t.Errorf("SensitiveValues() = %q, want %q", got, want)
	}
	if got := SensitiveValues(&tfjson.Plan{}); got != nil {
		t.Errorf("SensitiveValues(empty plan) = %q, want nil", got)
	}
}

func TestResourcesAfterAPartialApply(t *testing.T) {
	t.Parallel()
	plan := planOf(t, `
		"prior_state":{"format_version":"1.0","values":{"root_module":{
			"resources":[
				{"address":"a.kept","mode":"managed","type":"a","provider_name":"p","values":{"id":"i-kept"}},
				{"address":"a.gone","mode":"managed","type":"a","values":{"id":"i-gone"}},
				{"address":"a.swapped","mode":"managed","type":"a","values":{"id":"i-old"}},
				{"address":"data.a.x","mode":"data","type":"a","values":{"id":"d"}}],
			"child_modules":[{"address":"module.m","resources":[
				{"address":"module.m.a.shy","mode":"managed","type":"a","values":{"id":"i-secret"},"sensitive_values":{"id":true}}]}]}}},
		"resource_changes":[
			{"address":"a.gone","mode":"managed","type":"a","change":{"actions":["delete"]}},
			{"address":"a.new","mode":"managed","type":"a","provider_name":"p","change":{"actions":["create"]}},
			{"address":"a.failed","mode":"managed","type":"a","change":{"actions":["create"]}},
			{"address":"a.swapped","mode":"managed","type":"a","change":{"actions":["create","delete"]}}]`)
	got := Resources(plan, Applied{
		Changed:   map[string]string{"a.new": "i-new", "a.swapped": "i-swapped"},
		Destroyed: []string{"a.gone", "a.swapped"},
	})
	want := []provision.Resource{
		{Address: "a.kept", Type: "a", Provider: "p", ExternalID: "i-kept", Status: "created"},
		{Address: "a.new", Type: "a", Provider: "p", ExternalID: "i-new", Status: "created"},
		{Address: "a.swapped", Type: "a", ExternalID: "i-swapped", Status: "created"},
		{Address: "module.m.a.shy", Type: "a", Status: "created"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("Resources() = %+v, want %+v", got, want)
	}
}
