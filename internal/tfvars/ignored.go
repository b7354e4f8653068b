package tfvars

import (
	"fmt"
	"maps"
	"slices"

	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/provision"
)

// ignored finds attributes that the type does not declare. Terraform drops
// them without a word, so a misspelt optional attribute would vanish.
func (c *checker) ignored(path string, value cty.Value, ty cty.Type) {
	if value.IsNull() {
		return
	}
	switch actual := value.Type(); {
	case ty.IsObjectType() && isObject(actual):
		known := slices.Sorted(maps.Keys(ty.AttributeTypes()))
		members := value.AsValueMap()
		for _, name := range slices.Sorted(maps.Keys(members)) {
			switch {
			case ty.HasAttribute(name):
				c.ignored(path+"."+name, members[name], ty.AttributeType(name))
			case c.secret:
				c.add("%s: an attribute that the template does not declare is ignored", path)
			default:
				c.add("%s: not declared by the template, so it is ignored%s",
					c.member(path, name), provision.DidYouMean(name, known))
			}
		}
	case ty.IsMapType() && isObject(actual):
		members := value.AsValueMap()
		for _, key := range slices.Sorted(maps.Keys(members)) {
			c.ignored(c.member(path, key), members[key], ty.ElementType())
		}
	case (ty.IsListType() || ty.IsSetType()) && isSequence(actual):
		for i, element := range value.AsValueSlice() {
			c.ignored(fmt.Sprintf("%s[%d]", path, i), element, ty.ElementType())
		}
	case ty.IsTupleType() && isSequence(actual):
		for i, element := range value.AsValueSlice() {
			c.ignored(fmt.Sprintf("%s[%d]", path, i), element, ty.TupleElementType(i))
		}
	}
}
