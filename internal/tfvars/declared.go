package tfvars

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/provision"
)

// Variable is a declared variable, as a form needs to know it.
type Variable = provision.Variable

// Declared is Load for Terraform followed by Template.Declared.
func Declared(templateDir string) ([]Variable, error) {
	t, err := Load(templateDir, "terraform")
	if err != nil {
		return nil, err
	}
	return t.Declared()
}

// Declared lists the template's variables by name. Default is the value the
// template's own tfvars files give, else the one its declaration gives.
func (t *Template) Declared() ([]Variable, error) {
	list := make([]Variable, 0, len(t.variables))
	for _, name := range slices.Sorted(maps.Keys(t.variables)) {
		v := t.variables[name]
		typeJSON, err := json.Marshal(v.constraint)
		if err != nil {
			return nil, fmt.Errorf("write the type of variable %s: %w", name, err)
		}
		declared := Variable{
			Name: name, Type: v.typeText, TypeJSON: typeJSON,
			Sensitive: v.isSensitive(), Nullable: v.isNullable(), Ephemeral: v.isEphemeral(),
		}
		if v.description != nil {
			declared.Description = *v.description
		}
		fallback := v.fallback
		if loaded, ok := t.autoload[name]; ok {
			fallback = loaded.value
		}
		declared.Required = fallback == cty.NilVal
		if !declared.Required && !declared.Sensitive {
			if declared.Default, err = json.Marshal(plain(fallback)); err != nil {
				return nil, fmt.Errorf("write the default of variable %s: %w", name, err)
			}
		}
		list = append(list, declared)
	}
	return list, nil
}

// plain makes of a value what encoding/json writes plainly. The JSON encoder
// of cty wraps values of type any together with their type.
func plain(value cty.Value) any {
	ty := value.Type()
	switch {
	case value.IsNull() || !value.IsKnown():
		return nil
	case ty == cty.String:
		return value.AsString()
	case ty == cty.Number:
		return json.Number(numberText(value))
	case ty == cty.Bool:
		return value.True()
	case isObject(ty):
		members := map[string]any{}
		for key, element := range value.AsValueMap() {
			members[key] = plain(element)
		}
		return members
	default:
		elements := []any{}
		for _, element := range value.AsValueSlice() {
			elements = append(elements, plain(element))
		}
		return elements
	}
}
