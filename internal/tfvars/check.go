package tfvars

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// checker finds where in a value the trouble is. Conversion alone stops at the
// first fault and says little of what it found.
type checker struct {
	// secret keeps everything that is part of the value out of messages: leaf
	// values, map keys, and names of attributes that no type declares.
	secret   bool
	problems []string
}

// checkValue returns what is wrong with a value for the variable, each with
// its path, and nil when Terraform would take it. Nothing of a secret is said.
func (v *variable) checkValue(path string, value cty.Value, secret bool) []string {
	converted, err := v.convert(value)
	if err == nil {
		// A null for a variable with a default means the default.
		if converted.IsNull() && !v.isNullable() && v.isRequired() {
			return []string{path + ": must not be null"}
		}
		return nil
	}
	c := &checker{secret: secret}
	c.walk(path, value, v.constraint)
	if len(c.problems) == 0 { // it fits without the type's own defaults: the template's fault
		c.mismatch(path, v.constraint, err)
	}
	return c.problems
}

// walk notes every fault of value against ty, and at least one if it does not
// convert.
func (c *checker) walk(path string, value cty.Value, ty cty.Type) {
	_, err := convert.Convert(value, ty)
	if err == nil {
		return
	}
	before := len(c.problems)
	switch actual := value.Type(); {
	case ty.IsObjectType():
		if !isObject(actual) {
			c.wrongKind(path, "an object", value)
			return
		}
		attributes := value.AsValueMap()
		for _, name := range slices.Sorted(maps.Keys(ty.AttributeTypes())) {
			if member, ok := attributes[name]; ok {
				c.walk(path+"."+name, member, ty.AttributeType(name))
			} else if !ty.AttributeOptional(name) {
				c.add("%s.%s: missing", path, name)
			}
		}
	case ty.IsMapType():
		if !isObject(actual) {
			c.wrongKind(path, "a map", value)
			return
		}
		members := value.AsValueMap()
		for _, key := range slices.Sorted(maps.Keys(members)) {
			c.walk(c.member(path, key), members[key], ty.ElementType())
		}
	case ty.IsListType(), ty.IsSetType():
		if !isSequence(actual) {
			c.wrongKind(path, "a list", value)
			return
		}
		for i, element := range value.AsValueSlice() {
			c.walk(fmt.Sprintf("%s[%d]", path, i), element, ty.ElementType())
		}
	case ty.IsTupleType():
		if !isSequence(actual) {
			c.wrongKind(path, "a list", value)
			return
		}
		types, elements := ty.TupleElementTypes(), value.AsValueSlice()
		if len(types) != len(elements) {
			c.add("%s: a list of %d elements is required, not of %d", path, len(types), len(elements))
			return
		}
		for i, element := range elements {
			c.walk(fmt.Sprintf("%s[%d]", path, i), element, types[i])
		}
	case ty == cty.Number:
		c.wrongKind(path, "a number", value)
	case ty == cty.Bool:
		c.wrongKind(path, "a bool", value)
	case ty == cty.String:
		c.wrongKind(path, "a string", value)
	}
	if len(c.problems) == before { // each part fits, but not all together
		c.mismatch(path, ty, err)
	}
}

func (c *checker) add(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

func (c *checker) wrongKind(path, wanted string, value cty.Value) {
	c.add("%s: %s is required, not %s", path, wanted, c.describe(value))
}

// mismatch repeats the library's words, unless they may speak of the value.
func (c *checker) mismatch(path string, ty cty.Type, err error) {
	if c.secret {
		c.add("%s: does not fit %s", path, ty.FriendlyNameForConstraint())
		return
	}
	c.add("%s: does not fit %s: %v", path, ty.FriendlyNameForConstraint(), err)
}

// member is the path of a map's element.
func (c *checker) member(path, key string) string {
	switch {
	case c.secret:
		return path + "[…]"
	case hclsyntax.ValidIdentifier(key):
		return path + "." + key
	default:
		return path + "[" + strconv.Quote(shortened(key)) + "]"
	}
}

// describe says what a value is, and which if that is short and no secret.
func (c *checker) describe(value cty.Value) string {
	ty := value.Type()
	switch {
	case value.IsNull():
		return "null"
	case isObject(ty):
		return "an object"
	case isSequence(ty):
		return "a list"
	case ty == cty.String && c.secret:
		return "a string"
	case ty == cty.String:
		return "string " + strconv.Quote(shortened(value.AsString()))
	case ty == cty.Number && c.secret:
		return "a number"
	case ty == cty.Number:
		return "number " + shortened(numberText(value))
	case c.secret:
		return "a bool"
	default:
		return "bool " + strconv.FormatBool(value.True())
	}
}

// shortened cuts a value to what a message can carry.
func shortened(text string) string {
	const longest = 60
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}

func isObject(ty cty.Type) bool { return ty.IsObjectType() || ty.IsMapType() }

func isSequence(ty cty.Type) bool { return ty.IsTupleType() || ty.IsListType() || ty.IsSetType() }

// What a database stores of a default: its parser gives up at some depth, and
// its numbers end somewhere.
const (
	maxStoredDepth  = 100
	maxStoredNumber = 300 // digits
	maxStoredText   = 4000
)

// Fit makes of declared variables what can be stored and shown, in about limit
// bytes of JSON: it leaves out defaults that are too much, then descriptions,
// then variables. A variable without its default is no more required than
// before.
func Fit(list []Variable, limit int) []Variable {
	fitting := make([]Variable, 0, len(list))
	for _, v := range list {
		if !storable(v.Default) {
			v.Default = nil
		}
		v.Description = clip(v.Description)
		v.Type = clip(v.Type)
		fitting = append(fitting, v)
	}
	for _, leaveOut := range []func(*Variable){
		func(v *Variable) {
			if len(v.Default) > 1000 {
				v.Default = nil
			}
		},
		func(v *Variable) { v.Default = nil },
		func(v *Variable) { v.Description = "" },
	} {
		if size(fitting) <= limit {
			return fitting
		}
		for i := range fitting {
			leaveOut(&fitting[i])
		}
	}
	for len(fitting) > 0 && size(fitting) > limit {
		fitting = fitting[:len(fitting)*3/4]
	}
	return fitting
}

func clip(text string) string {
	if len(text) > maxStoredText {
		text = strings.ToValidUTF8(text[:maxStoredText], "") + "…"
	}
	return strings.ReplaceAll(text, "\x00", "\uFFFD")
}

// storable reports whether a database takes a default.
func storable(value json.RawMessage) bool {
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	for depth := 0; ; {
		token, err := decoder.Token()
		if err != nil {
			return true // its end
		}
		switch token := token.(type) {
		case json.Delim:
			if depth++; token == '}' || token == ']' {
				depth -= 2
			}
		case json.Number:
			if len(token) > maxStoredNumber || strings.ContainsAny(token.String(), "eE") {
				return false
			}
		case string:
			if strings.Contains(token, "\x00") {
				return false
			}
		}
		if depth > maxStoredDepth {
			return false
		}
	}
}

func size(list []Variable) int {
	encoded, err := json.Marshal(list)
	if err != nil { // of plain structures: cannot happen
		return 1 << 30
	}
	return len(encoded) + bytes.Count(encoded, []byte(",")) + bytes.Count(encoded, []byte(":"))
}

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
		EachRawLeaf(vars[name], add)
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

// EachRawLeaf calls add for each string and number in a JSON value, as it is written:
// a string is not normalised. What is no JSON has none.
func EachRawLeaf(raw json.RawMessage, add func(string)) {
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
