package tfvars

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// MinSecret is the fewest bytes a text must have to be masked. Shorter ones
// would blot out half a log and hide nothing that cannot be guessed.
const MinSecret = 4

// secrets gathers what is to be masked: all values that a variable which is
// sensitive or came sealed has or would have had (given, loaded, default), as
// given and as the template gets to see them. Map keys and booleans are not
// taken for secrets, and neither is the default that a sealed value replaces
// where nobody has declared it sensitive.
func (t *Template) secrets(vars map[string]json.RawMessage, values map[string]cty.Value, sealed map[string]json.RawMessage) (mask, unmaskable []string) {
	texts, short := map[string]bool{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(t.variables)) {
		v := t.variables[name]
		_, isSealed := sealed[name]
		if !v.isSensitive() && !isSealed {
			continue
		}
		add := func(text string) {
			if text == "true" || text == "false" {
				return // a boolean written as a string
			}
			switch {
			case len(text) >= MinSecret:
				texts[text] = true // in every form it may have, its lines too, by who masks
			case text != "":
				short[name] = true
			}
		}
		every := []cty.Value{values[name]}
		if v.isSensitive() {
			every = append(every, v.fallback)
			for _, loaded := range t.autoloadAll {
				if loaded.name == name {
					every = append(every, loaded.value)
				}
			}
		}
		for _, value := range every {
			if value == cty.NilVal {
				continue
			}
			eachLeaf(value, add)
			if converted, err := v.convert(value); err == nil {
				eachLeaf(converted, add) // "007" may have become 7, and optional attributes are filled in
			}
		}
		eachRawLeaf(vars[name], add)
	}
	return slices.Sorted(maps.Keys(texts)), slices.Sorted(maps.Keys(short))
}

// eachLeaf calls add with every string and number in a value.
func eachLeaf(value cty.Value, add func(string)) {
	switch ty := value.Type(); {
	case value.IsNull() || !value.IsKnown():
	case ty == cty.String:
		add(value.AsString())
	case ty == cty.Number:
		add(numberText(value))
	case value.CanIterateElements():
		for _, element := range value.Elements() {
			eachLeaf(element, add)
		}
	}
}

// eachRawLeaf does the same for JSON, where a number still looks as it was
// written and a string is not normalised.
func eachRawLeaf(raw json.RawMessage, add func(string)) {
	if raw == nil {
		return
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return
	}
	var walk func(any)
	walk = func(value any) {
		switch value := value.(type) {
		case string:
			add(value)
		case json.Number:
			add(value.String())
		case []any:
			for _, element := range value {
				walk(element)
			}
		case map[string]any:
			for _, element := range value {
				walk(element)
			}
		}
	}
	walk(value)
}

// numberText writes a number as Terraform does when it makes a string of it.
func numberText(value cty.Value) string {
	number := value.AsBigFloat()
	const digits = 2000 // as bits of the exponent; beyond, the text would fill memory
	if exponent := number.MantExp(nil); exponent > digits || exponent < -digits {
		return number.Text('g', -1)
	}
	text, err := convert.Convert(value, cty.String)
	if err != nil {
		return number.Text('f', -1)
	}
	return text.AsString()
}
