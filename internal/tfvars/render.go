package tfvars

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/provision"
)

// Given are the values of a snapshot's variables, as JSON. No name is in both.
type Given struct {
	Plain map[string]json.RawMessage
	// Sealed are those that came sealed, opened.
	Sealed map[string]json.RawMessage
	// PlainSensitive admits plain values for variables declared sensitive.
	PlainSensitive bool
}

// Rendered is two tfvars files and what must be known to use them.
type Rendered struct {
	// JSON is the content of a .tfvars.json file: the plain values as they were
	// given, names sorted. Pass it by -var-file, which beats the template's
	// *.auto.tfvars; a file that is loaded by itself may not.
	JSON []byte
	// Sealed is the same for the values that came sealed, nil without any.
	Sealed []byte
	// Ephemeral is the same for the ephemeral variables alone, both kinds, nil
	// without any. A saved plan does not hold them: apply wants them again.
	Ephemeral []byte
	// Sensitive are the texts to mask in everything the engine prints: each
	// value, and each line of one, of variables that came sealed or are declared
	// sensitive. Sorted; none is shorter than MinSecret bytes.
	Sensitive []string
	// Unmaskable are the variables that have a value too short to mask.
	Unmaskable []string
	// Warnings are what Terraform would pass over in silence, one a line, each
	// with its path.
	Warnings []string
}

// Render is Load for Terraform followed by Template.Render.
func Render(templateDir string, given Given) (Rendered, error) {
	t, err := Load(templateDir, "terraform")
	if err != nil {
		return Rendered{}, err
	}
	return t.Render(given)
}

// Render checks the variables against the template. If any is unknown, missing
// or ill-typed, or sensitive and given in plain, the error is a Failure with
// CodeVariablesInvalid that names all of them; it never holds the value of a
// variable that is sensitive or came sealed.
func (t *Template) Render(given Given) (Rendered, error) {
	var problems, warnings []string
	vars := maps.Clone(given.Plain)
	if vars == nil {
		vars = map[string]json.RawMessage{}
	}
	maps.Copy(vars, given.Sealed)
	values := make(map[string]cty.Value, len(vars))
	declared := slices.Sorted(maps.Keys(t.variables))

	for _, name := range slices.Sorted(maps.Keys(vars)) {
		_, sealed := given.Sealed[name]
		path := "terraform_vars." + shortened(name)
		if sealed {
			path = "sealed_vars." + shortened(name)
		}
		v, ok := t.variables[name]
		if !ok {
			problems = append(problems, fmt.Sprintf("%s: the template has no such variable%s",
				path, provision.DidYouMean(name, declared)))
			continue
		}
		value, err := parseValue(vars[name])
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", path, err))
			continue
		}
		if v.isSensitive() && !sealed && !given.PlainSensitive && !value.IsNull() { // a null is the default
			problems = append(problems, path+": sensitive, and given in plain, so whoever may see this provision can read it. Take another value, "+
				"seal it (trellis seal "+name+" --cluster … --workspace … --repo …) and give the message as sealed_vars."+name+", unless the agent's policy.plain_sensitive is to admit plain ones")
			continue
		}
		values[name] = value
		secret := sealed || v.isSensitive()
		wrong := v.checkValue(path, value, secret)
		problems = append(problems, wrong...)
		if len(wrong) == 0 {
			c := &checker{secret: secret}
			c.ignored(path, value, v.constraint)
			warnings = append(warnings, slices.Compact(c.problems)...)
		}
		if sealed && !v.isSensitive() {
			warnings = append(warnings, path+": the template does not declare this variable sensitive, so Terraform itself shows it in plans and in its state. "+
				"Tendril masks the value of this run, but when it changes not the one before, which it does not know: have the template say sensitive = true")
		}
	}
	for _, name := range declared {
		if _, given := vars[name]; given {
			continue
		}
		v := t.variables[name]
		loaded, set := t.autoload[name]
		switch {
		case set:
			problems = append(problems, v.checkValue("the template's "+loaded.file+": "+name, loaded.value, v.isSensitive())...)
		case v.isRequired():
			problems = append(problems, "terraform_vars."+name+": missing"+v.hint())
		}
	}
	if len(problems) > 0 {
		return Rendered{}, provision.Fail(provision.CodeVariablesInvalid, bounded(problems), nil)
	}

	out := Rendered{Warnings: warnings}
	out.Sensitive, out.Unmaskable = t.secrets(vars, values, given.Sealed)
	var err error
	if out.JSON, err = encode(given.Plain); err != nil {
		return Rendered{}, err
	}
	if len(given.Sealed) > 0 {
		if out.Sealed, err = encode(given.Sealed); err != nil {
			return Rendered{}, err
		}
	}
	ephemeral := vars
	maps.DeleteFunc(ephemeral, func(name string, _ json.RawMessage) bool { return !t.variables[name].isEphemeral() })
	if len(ephemeral) > 0 {
		if out.Ephemeral, err = encode(ephemeral); err != nil {
			return Rendered{}, err
		}
	}
	return out, nil
}

// hint tells what a missing variable is for.
func (v *variable) hint() string {
	var parts []string
	if v.typeText != "" {
		parts = append(parts, strings.Join(strings.Fields(v.typeText), " "))
	}
	if v.description != nil && *v.description != "" {
		parts = append(parts, strings.Join(strings.Fields(*v.description), " "))
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ": ") + ")"
}

// parseValue reads a JSON value with the parser that reads tfvars files, which
// is stricter in places (a key given twice) than Go's own.
func parseValue(raw json.RawMessage) (cty.Value, error) {
	if !json.Valid(raw) {
		return cty.NilVal, fmt.Errorf("not JSON")
	}
	if err := checkJSONNesting("value", raw); err != nil {
		return cty.NilVal, fmt.Errorf("nested more than %d levels deep", maxNesting)
	}
	expr, diags := hcljson.ParseExpression(raw, "value")
	if diags.HasErrors() {
		return cty.NilVal, fmt.Errorf("not JSON as Terraform reads it")
	}
	value, diags := expr.Value(nil)
	if diags.HasErrors() {
		// The detail is left out, for it may repeat a secret.
		return cty.NilVal, fmt.Errorf("cannot be read: %s", diags[0].Summary)
	}
	return value, nil
}

// encode writes the values as they are, so that no number loses a digit.
func encode(vars map[string]json.RawMessage) ([]byte, error) {
	if vars == nil {
		vars = map[string]json.RawMessage{}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(vars); err != nil {
		return nil, fmt.Errorf("write the variables as JSON: %w", err)
	}
	return out.Bytes(), nil
}
