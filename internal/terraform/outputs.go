package terraform

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/tendril-run/tendril/internal/provision"
)

// typedOutputs separates the outputs from the values of the sensitive ones.
func typedOutputs(values map[string]outputValue) (outputs map[string]provision.Output, secrets []string) {
	found := make(secretSet)
	outputs = make(map[string]provision.Output, len(values))
	for name, v := range values {
		if v.Sensitive {
			found.addJSON(v.Value)
			outputs[name] = provision.Output{Type: v.Type, Sensitive: true}
			continue
		}
		outputs[name] = provision.Output{Type: v.Type, Value: v.Value}
	}
	return outputs, found.sorted()
}

// SensitiveValues returns what a plan knows of values that must not be shown:
// of sensitive outputs, before and after, of sensitive variables, and of what
// resources hold that is sensitive. Structures are taken apart to their strings
// and numbers; true, false and "" are no secrets. Short values are among them:
// whoever masks decides what is too short.
func SensitiveValues(plan *tfjson.Plan) []string {
	found := make(secretSet)
	found.addResources(plan)
	for _, change := range plan.OutputChanges {
		if change == nil {
			continue
		}
		if change.BeforeSensitive == true {
			found.add(change.Before)
		}
		if change.AfterSensitive == true {
			found.add(change.After)
		}
	}
	states := []*tfjson.StateValues{plan.PlannedValues}
	if plan.PriorState != nil {
		states = append(states, plan.PriorState.Values)
	}
	for _, state := range states {
		if state == nil {
			continue
		}
		for _, output := range state.Outputs {
			if output != nil && output.Sensitive {
				found.add(output.Value)
			}
		}
		found.addModule(state.RootModule)
	}
	if plan.Config != nil && plan.Config.RootModule != nil {
		for name, declared := range plan.Config.RootModule.Variables {
			if value := plan.Variables[name]; declared != nil && declared.Sensitive && value != nil {
				found.add(value.Value)
			}
		}
	}
	return found.sorted()
}

// secretSet collects the leaves of sensitive values.
type secretSet map[string]struct{}

func (s secretSet) add(value any) {
	switch v := value.(type) {
	case string:
		if v != "" {
			s[v] = struct{}{}
		}
	case json.Number:
		s[v.String()] = struct{}{}
	case float64:
		if text, err := json.Marshal(v); err == nil {
			s[string(text)] = struct{}{}
		}
	case []any:
		for _, element := range v {
			s.add(element)
		}
	case map[string]any:
		for _, element := range v {
			s.add(element)
		}
	}
}

func (s secretSet) addJSON(raw json.RawMessage) {
	if len(raw) == 0 {
		return
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err == nil {
		s.add(value)
	}
}

// sorted returns the secrets, nil if there are none.
func (s secretSet) sorted() []string { return slices.Sorted(maps.Keys(s)) }
