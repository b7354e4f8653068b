package terraform

import (
	"encoding/json"
	"strconv"
	"strings"
)

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
