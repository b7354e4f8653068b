package tfvars

import (
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
