package terraform

import (
	"slices"
	"testing"
)

func TestSensitiveValuesOfResources(t *testing.T) {
	t.Parallel()
	plan := planOf(t, `
		"resource_changes":[
			{"address":"a.b","mode":"managed","change":{"actions":["update"],
				"before":{"password":"old-pw","name":"shown","ports":[5432,1234567890],"keys":["open","k-one"]},
				"after":{"password":"new-pw","name":"shown","nested":{"token":"t-one","size":"large"}},
				"before_sensitive":{"password":true,"ports":true,"keys":[false,true],"gone":true},
				"after_sensitive":{"password":true,"nested":{"token":true}}}},
			{"address":"a.none","mode":"managed","change":{"actions":["create"],"after":{"x":"shown"},"before_sensitive":false,"after_sensitive":{}}}],
		"resource_drift":[
			{"address":"a.d","mode":"managed","change":{"actions":["update"],"before":"b","after":{"all":["drifted","true"]},"after_sensitive":true}}],
		"planned_values":{"root_module":{"resources":[
			{"address":"a.b","mode":"managed","type":"a","values":{"secret":"planned"},"sensitive_values":{"secret":true}}]}},
		"prior_state":{"format_version":"1.0","values":{"root_module":{"child_modules":[{"address":"module.m","resources":[
			{"address":"module.m.a.b","mode":"managed","type":"a","values":{"list":[{"key":"prior"},{"key":"shown"}]},"sensitive_values":{"list":[{"key":true},{}]}}]}]}}}`)
	want := []string{"1234567890", "drifted", "k-one", "new-pw", "old-pw", "planned", "prior", "t-one"}
	if got := SensitiveValues(plan); !slices.Equal(got, want) {
		t.Errorf("SensitiveValues() = %q, want %q", got, want)
	}
}
