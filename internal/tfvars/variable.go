package tfvars

import (
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// rootSchema finds variables and passes over everything else.
var rootSchema = &hcl.BodySchema{
	Blocks: []hcl.BlockHeaderSchema{{Type: "variable", LabelNames: []string{"name"}}},
}

// variableSchema is what matters here of a variable; engines add arguments.
var variableSchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{
	{Name: "type"}, {Name: "description"}, {Name: "default"},
	{Name: "sensitive"}, {Name: "nullable"}, {Name: "ephemeral"},
}}

// variable is one declared variable. What its block does not say is nil, for
// an override changes only what it says.
type variable struct {
	name string
	at   hcl.Range

	constraint  cty.Type // cty.NilType: any
	typeText    string   // the type as written
	optional    *typeexpr.Defaults
	description *string
	fallback    cty.Value // the default; cty.NilVal: required
	fallbackAt  hcl.Range
	sensitive   *bool
	nullable    *bool
	ephemeral   *bool
}

// decodeVariable reads a variable block. The variable is of use, if only for
// its name, even where there are errors.
func decodeVariable(block *hcl.Block, file *hcl.File) (*variable, hcl.Diagnostics) {
	v := &variable{name: block.Labels[0], at: block.DefRange}
	content, _, diags := block.Body.PartialContent(variableSchema)
	if !hclsyntax.ValidIdentifier(v.name) {
		diags = append(diags, &hcl.Diagnostic{
			Severity: hcl.DiagError, Subject: &block.LabelRanges[0],
			Summary: "Invalid variable name",
			Detail:  "A name must start with a letter or underscore and may contain only letters, digits, underscores, and dashes.",
		})
	}
	for _, argument := range variableSchema.Attributes { // not the map: messages keep their order
		attribute, ok := content.Attributes[argument.Name]
		if !ok {
			continue
		}
		switch argument.Name {
		case "type":
			diags = append(diags, v.decodeType(attribute.Expr, file)...)
		case "default":
			value, more := attribute.Expr.Value(nil)
			diags = append(diags, more...)
			v.fallback, v.fallbackAt = value, attribute.Expr.Range()
		case "description":
			v.description = new(string)
			diags = append(diags, gohcl.DecodeExpression(attribute.Expr, nil, v.description)...)
		case "sensitive":
			v.sensitive = new(bool)
			diags = append(diags, gohcl.DecodeExpression(attribute.Expr, nil, v.sensitive)...)
		case "nullable":
			v.nullable = new(bool)
			diags = append(diags, gohcl.DecodeExpression(attribute.Expr, nil, v.nullable)...)
		case "ephemeral":
			v.ephemeral = new(bool)
			diags = append(diags, gohcl.DecodeExpression(attribute.Expr, nil, v.ephemeral)...)
		}
	}
	return v, diags
}

// decodeType reads a type constraint with the shorthands that Terraform still
// knows besides HCL's own: list and map without an element type.
func (v *variable) decodeType(expr hcl.Expression, file *hcl.File) hcl.Diagnostics {
	v.typeText = strings.TrimSpace(string(expr.Range().SliceBytes(file.Bytes)))
	if _, native := expr.(hclsyntax.Expression); !native {
		// In JSON the type is an expression within a string, which the file's
		// own check has not looked into.
		var text string
		if diags := gohcl.DecodeExpression(expr, nil, &text); diags.HasErrors() {
			return diags
		}
		if err := checkNesting(expr.Range().Filename, []byte(text)); err != nil {
			at := expr.Range()
			return hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "Invalid type", Detail: err.Error(), Subject: &at}}
		}
		v.typeText = text
	}
	switch hcl.ExprAsKeyword(expr) {
	case "list":
		v.constraint = cty.List(cty.DynamicPseudoType)
		return nil
	case "map":
		v.constraint = cty.Map(cty.DynamicPseudoType)
		return nil
	}
	var diags hcl.Diagnostics
	v.constraint, v.optional, diags = typeexpr.TypeConstraintWithDefaults(expr)
	return diags
}

// override merges what an override file says about the variable.
func (v *variable) override(with *variable) {
	if with.constraint != cty.NilType {
		v.constraint, v.optional, v.typeText = with.constraint, with.optional, with.typeText
	}
	if with.fallback != cty.NilVal {
		v.fallback, v.fallbackAt = with.fallback, with.fallbackAt
	}
	for _, said := range []struct{ mine, theirs **bool }{
		{&v.sensitive, &with.sensitive}, {&v.nullable, &with.nullable}, {&v.ephemeral, &with.ephemeral},
	} {
		if *said.theirs != nil {
			*said.mine = *said.theirs
		}
	}
	if with.description != nil {
		v.description = with.description
	}
}

// settle converts the default to the variable's type, once everything that is
// said about it is known.
func (v *variable) settle() hcl.Diagnostics {
	if v.constraint == cty.NilType {
		v.constraint = cty.DynamicPseudoType
	}
	if v.fallback == cty.NilVal {
		return nil
	}
	var problem string
	value, err := v.convert(v.fallback)
	switch {
	case err != nil:
		problem = "The default does not fit the variable's type: " + err.Error() + "."
	case value.IsNull() && !v.isNullable():
		problem = "A null default is not valid when nullable = false."
	default:
		v.fallback = value
		return nil
	}
	return hcl.Diagnostics{{
		Severity: hcl.DiagError, Subject: &v.fallbackAt,
		Summary: "Invalid default of variable " + v.name, Detail: problem,
	}}
}

// convert makes of a value what the template gets to see, as Terraform does.
func (v *variable) convert(value cty.Value) (cty.Value, error) {
	if v.optional != nil && !value.IsNull() {
		value = v.optional.Apply(value)
	}
	return convert.Convert(value, v.constraint)
}

func (v *variable) isSensitive() bool { return v.sensitive != nil && *v.sensitive }
func (v *variable) isNullable() bool  { return v.nullable == nil || *v.nullable }
func (v *variable) isEphemeral() bool { return v.ephemeral != nil && *v.ephemeral }
func (v *variable) isRequired() bool  { return v.fallback == cty.NilVal }
