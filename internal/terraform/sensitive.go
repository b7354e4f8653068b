package terraform

import (
	"encoding/json"

	tfjson "github.com/hashicorp/terraform-json"
)

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
