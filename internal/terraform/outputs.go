package terraform

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	tfjson "github.com/hashicorp/terraform-json"
	"github.com/zclconf/go-cty/cty"
)

// withoutSecrets separates the outputs from the values of the sensitive ones.
func withoutSecrets(outputs map[string]OutputValue) (open map[string]OutputValue, secrets []string) {
	found := make(secretSet)
	open = make(map[string]OutputValue, len(outputs))
	for name, output := range outputs {
		if output.Sensitive {
			found.addJSON(output.Value)
			output.Value = nil
		}
		open[name] = output
	}
	return open, found.sorted()
}

// PlannedOutputs are the outputs as they would be after the plan's apply, as far
// as that is known before.
func PlannedOutputs(plan *tfjson.Plan) (map[string]OutputValue, error) {
	if plan.PlannedValues == nil {
		return nil, nil
	}
	outputs := make(map[string]OutputValue, len(plan.PlannedValues.Outputs))
	for name, planned := range plan.PlannedValues.Outputs {
		output := OutputValue{Sensitive: planned.Sensitive}
		var err error
		if planned.Type != cty.NilType { // which cty cannot encode; the value is not known then
			output.Type, err = json.Marshal(planned.Type)
			output.Value, err = marshal(planned.Value, err)
		}
		if err != nil {
			return nil, fmt.Errorf("read output %s: %w", name, err)
		}
		outputs[name] = output
	}
	return outputs, nil
}

func marshal(value any, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

// OutputsNow are the outputs after an apply: those that the state has, and as
// null those that it does not have though the plan does.
func OutputsNow(plan *tfjson.Plan, state State) map[string]OutputValue {
	outputs := maps.Clone(state.Outputs)
	if outputs == nil {
		outputs = make(map[string]OutputValue)
	}
	if plan == nil || plan.PlannedValues == nil {
		return outputs
	}
	for name, planned := range plan.PlannedValues.Outputs {
		if _, ok := outputs[name]; !ok {
			outputs[name] = OutputValue{Sensitive: planned.Sensitive, Type: json.RawMessage(`"dynamic"`), Value: json.RawMessage("null")}
		}
	}
	return outputs
}

// maxOutputDepth is how deep an output's value may be nested that is recorded:
// the database's parser gives up at some depth, too.
const maxOutputDepth = 500

// Recordable reports whether the database takes a value. It does not take vast
// numbers.
func (o OutputValue) Recordable() bool {
	decoder := json.NewDecoder(bytes.NewReader(o.Value))
	decoder.UseNumber()
	for depth := 0; ; {
		token, err := decoder.Token()
		switch {
		case errors.Is(err, io.EOF):
			return true
		case err != nil || hasVastNumber(token) || depth > maxOutputDepth:
			return false
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
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
