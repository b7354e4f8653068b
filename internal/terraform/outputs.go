package terraform

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

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

// minNumber is the fewest characters of a number in a resource that count as a
// secret. A connection's port is sensitive where the whole connection is, and
// its digits are in every other line.
const minNumber = 8

// addResources adds what the plan knows of the sensitive attributes of
// resources, before, after and of those that changed outside.
func (s secretSet) addResources(plan *tfjson.Plan) {
	for _, changes := range [][]*tfjson.ResourceChange{plan.ResourceChanges, plan.ResourceDrift} {
		for _, r := range changes {
			if r != nil && r.Change != nil {
				s.addMarked(r.Change.Before, r.Change.BeforeSensitive)
				s.addMarked(r.Change.After, r.Change.AfterSensitive)
			}
		}
	}
}

func (s secretSet) addModule(module *tfjson.StateModule) {
	if module == nil {
		return
	}
	for _, r := range module.Resources {
		if r == nil || len(r.SensitiveValues) == 0 {
			continue
		}
		var marks any
		if json.Unmarshal(r.SensitiveValues, &marks) == nil {
			s.addMarked(r.AttributeValues, marks)
		}
	}
	for _, child := range module.ChildModules {
		s.addModule(child)
	}
}

// addMarked adds those parts of a resource's value that marks says are
// sensitive: true for all of it, else a structure like the value's, in which
// what is not sensitive may be missing.
func (s secretSet) addMarked(value, marks any) {
	switch marks := marks.(type) {
	case bool:
		if marks {
			s.addLong(value)
		}
	case map[string]any:
		attributes, _ := value.(map[string]any)
		for name, mark := range marks {
			s.addMarked(attributes[name], mark)
		}
	case []any:
		elements, _ := value.([]any)
		for i, mark := range marks[:min(len(marks), len(elements))] {
			s.addMarked(elements[i], mark)
		}
	}
}

// addLong is add without what is in every other line.
func (s secretSet) addLong(value any) {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			s.addLong(element)
		}
	case map[string]any:
		for _, element := range v {
			s.addLong(element)
		}
	case string:
		if v != "true" && v != "false" && v != "null" {
			s.add(v)
		}
	default: // a number, or nothing
		number := make(secretSet)
		number.add(value)
		for text := range number {
			if len(text) >= minNumber {
				s.add(text)
			}
		}
	}
}

// What values and masks of a plan look like, decoded from JSON. A mask has the
// shape of its value with true for what it is about; parts that it does not
// speak of may be missing, false, or of any other shape.

type shape int

const (
	scalar shape = iota
	object
	list
)

// shapeOf is what all of the values are, null aside; scalar where they differ,
// so that a mask which does not fit its value covers all of it.
func shapeOf(before, after any, masks ...any) shape {
	common, known := scalar, false
	for i, value := range append([]any{before, after}, masks...) {
		if value == nil || value == false && i > 1 {
			continue
		}
		here := scalar
		switch value.(type) {
		case map[string]any:
			here = object
		case []any:
			here = list
		}
		if i > 1 && !marks(value) { // says nothing, in whatever shape
			continue
		}
		if known && here != common {
			return scalar
		}
		common, known = here, true
	}
	return common
}

// marks reports whether a mask has true anywhere.
func marks(mask any) bool {
	switch m := mask.(type) {
	case bool:
		return m
	case []any:
		for _, element := range m {
			if marks(element) {
				return true
			}
		}
	case map[string]any:
		for _, element := range m {
			if marks(element) {
				return true
			}
		}
	}
	return false
}

func ofKey(value any, name string) any {
	members, _ := value.(map[string]any)
	return members[name]
}

func ofIndex(value any, i int) any {
	if elements, _ := value.([]any); i < len(elements) {
		return elements[i]
	}
	return nil
}

func keysOf(values ...any) map[string]struct{} {
	keys := make(map[string]struct{})
	for _, value := range values {
		members, _ := value.(map[string]any)
		for name := range members {
			keys[name] = struct{}{}
		}
	}
	return keys
}

func length(value any) int {
	elements, _ := value.([]any)
	return len(elements)
}

// maxNumber is how many digits a number may have that is recorded, the ones
// that its exponent stands for included: the database refuses vast ones.
const maxNumber = 300

func hasVastNumber(value any) bool {
	switch v := value.(type) {
	case json.Number:
		digits, exponent, _ := strings.Cut(strings.ToLower(v.String()), "e")
		power, err := strconv.Atoi(exponent)
		return len(digits) > maxNumber || exponent != "" && (err != nil || max(power, -power) > maxNumber)
	case []any:
		for _, element := range v {
			if hasVastNumber(element) {
				return true
			}
		}
	case map[string]any:
		for _, element := range v {
			if hasVastNumber(element) {
				return true
			}
		}
	}
	return false
}
