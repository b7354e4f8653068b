package templatefile

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// CheckValues fails unless the values of a run's variables are such as the template's
// validation blocks want them, with CodeVariablesInvalid and the template's own messages.
// Terraform does this by itself; the templates of others have nobody else who does. vars are
// as for Machines.
func CheckValues(checks []tfvars.Validation, vars map[string]cty.Value) error {
	refused, err := Refusals(checks, vars)
	if err != nil || refused == nil {
		return err
	}
	return provision.Fail(provision.CodeVariablesInvalid, "The template refuses these variables:\n"+strings.Join(refused, "\n"), nil)
}

// Refusals are what CheckValues fails with, one a variable that is refused. The error is of
// a validation block that can't be evaluated here.
func Refusals(checks []tfvars.Validation, vars map[string]cty.Value) (refused []string, err error) {
	doc := &File{references: map[string]hcl.Range{}}
	doc.meter.reset(longest)
	for _, check := range checks {
		message, err := doc.check(check, vars)
		if err != nil {
			return nil, err
		}
		if message != "" {
			refused = append(refused, fmt.Sprintf("terraform_vars.%s: %s", check.Variable, message))
		}
	}
	return refused, nil
}

// check is the message of a validation that does not hold; "" of one that does.
func (f *File) check(check tfvars.Validation, vars map[string]cty.Value) (message string, err error) {
	condition, err := f.valueOf(check, check.Condition, cty.Bool, vars)
	if err != nil {
		return "", err
	}
	if held, _ := condition.Unmark(); held.True() {
		return "", nil
	}
	text, err := f.valueOf(check, check.Message, cty.String, vars)
	switch {
	case err != nil:
		return "", err
	case text.IsMarked():
		return "the value is refused, and the reason is not shown, because it has a sensitive value", nil
	}
	return text.AsString(), nil
}

// valueOf evaluates an expression of a validation, which is parsed each time: the meter goes
// into its tree.
func (f *File) valueOf(check tfvars.Validation, e tfvars.Expression, ty cty.Type, vars map[string]cty.Value) (cty.Value, error) {
	heading := fmt.Sprintf("The validation of the variable %s can't be evaluated:", check.Variable)
	r := &reader{name: e.At.Filename, file: f}
	invalid := func(format string, args ...any) error {
		r.add(e.At, format, args...)
		return r.failure(heading, nil)
	}
	if len(e.Text) == 0 || strings.HasSuffix(e.At.Filename, ".json") {
		return cty.NilVal, invalid("a validation needs a condition and an error_message, written in HCL and not in JSON")
	}
	tokens, _ := hclsyntax.LexExpression(e.Text, e.At.Filename, e.At.Start) // the parser reports its diagnostics
	if r.checkTokens(tokens); len(r.list) > 0 {
		return cty.NilVal, r.failure(heading, nil)
	}
	expr, diags := hclsyntax.ParseExpression(e.Text, e.At.Filename, e.At.Start)
	if r.diagnose(diags, e.At); len(r.list) > 0 {
		return cty.NilVal, r.failure(heading, nil)
	}
	r.checkReferences(expr, false)
	if expr = r.prepare(expr); len(r.list) > 0 {
		return cty.NilVal, r.failure(heading, nil)
	}
	evaluated := newEvaluation(f, vars)
	value, ok := evaluated.eval(expr)
	if err := evaluated.problems.failure(heading, nil); err != nil {
		return cty.NilVal, err
	}
	if ok {
		value, diags := convert.Convert(value, ty)
		if diags == nil && !value.IsNull() {
			return value, nil
		}
	}
	return cty.NilVal, invalid("this must be %s", ty.FriendlyName())
}
