package tfvars

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"

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
			problems = append(problems, path+": sensitive, and given in plain, so anyone who may see this run can read it. Take another value, "+
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

// Limits on what is read of a template. A template is a stranger's: its files
// may be links to devices, or larger than memory.
const (
	maxFile  = 4 << 20
	maxTotal = 16 << 20
)

// files are the names, within the template's directory, of what an engine
// reads there, in the order it reads them.
type files struct {
	config    []string // *.tf and *.tf.json
	overrides []string // override.tf, *_override.tf and so on: merged over config
	autoload  []string // terraform.tfvars[.json], then *.auto.tfvars[.json]
}

// listFiles sorts the directory's entries by the engine's naming rules.
func listFiles(dir, engine string) (files, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return files{}, fmt.Errorf("list the template's files: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}

	var found files
	for _, name := range names {
		if strings.HasSuffix(name, ".auto.tfvars") || strings.HasSuffix(name, ".auto.tfvars.json") {
			found.autoload = append(found.autoload, name)
			continue
		}
		base, ok := configName(name, engine)
		switch {
		case !ok || engine == "tofu" && slices.Contains(names, tofuTwin(name)):
		case base == "override" || strings.HasSuffix(base, "_override"):
			found.overrides = append(found.overrides, name)
		default:
			found.config = append(found.config, name)
		}
	}
	for _, name := range []string{"terraform.tfvars.json", "terraform.tfvars"} {
		if slices.Contains(names, name) {
			found.autoload = slices.Insert(found.autoload, 0, name)
		}
	}
	return found, nil
}

// configName reports whether the engine reads the file as configuration, and
// its name without the extension.
func configName(name, engine string) (base string, ok bool) {
	if strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") ||
		strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#") {
		return "", false // hidden, or an editor's copy
	}
	extensions := []string{".tf", ".tf.json"}
	if engine == "tofu" {
		extensions = append(extensions, ".tofu", ".tofu.json")
	}
	for _, extension := range extensions {
		if base, ok := strings.CutSuffix(name, extension); ok {
			return base, true
		}
	}
	return "", false
}

// tofuTwin is the file that OpenTofu reads instead of a .tf file, if it exists.
func tofuTwin(name string) string {
	if base, ok := strings.CutSuffix(name, ".tf.json"); ok {
		return base + ".tofu.json"
	}
	if base, ok := strings.CutSuffix(name, ".tf"); ok {
		return base + ".tofu"
	}
	return ""
}

// reader reads the files of one directory until they are too much.
type reader struct {
	dir  string
	left int64 // bytes that may still be read
}

func newReader(dir string) *reader { return &reader{dir: dir, left: maxTotal} }

func (r *reader) read(name string) ([]byte, error) {
	path := filepath.Join(r.dir, name)
	// Opening a pipe or a device could block or worse, so look first.
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("is not a regular file")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	defer func() { _ = file.Close() }()

	limit := min(maxFile, r.left)
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("is too large; at most %d bytes a file and %d in all are read", maxFile, maxTotal)
	}
	r.left -= int64(len(data))
	return data, nil
}

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

// mark is a mark that values carry along.
type mark string

// Sensitive marks the values of variables that are sensitive or came sealed.
const Sensitive = mark("sensitive")

// Values are the values that an engine would use: given, loaded or default, each of the
// type that its variable declares, sensitive ones marked with Sensitive. The error is
// Render's.
func (t *Template) Values(given Given) (map[string]cty.Value, error) {
	if _, err := t.Render(given); err != nil {
		return nil, err
	}
	return t.known(given)
}

// Defaults are as Values, of the variables alone that have a value where a run gives none.
func (t *Template) Defaults() (map[string]cty.Value, error) {
	var problems []string
	for name, loaded := range t.autoload {
		v := t.variables[name]
		problems = append(problems, v.checkValue("the template's "+loaded.file+": "+name, loaded.value, v.isSensitive())...)
	}
	if slices.Sort(problems); len(problems) > 0 {
		return nil, provision.Fail(provision.CodeVariablesInvalid, bounded(problems), nil)
	}
	return t.known(Given{})
}

// known are the values of the variables that have one.
func (t *Template) known(given Given) (map[string]cty.Value, error) {
	values := make(map[string]cty.Value, len(t.variables))
	for name, v := range t.variables {
		raw, sealed := given.Sealed[name]
		if !sealed {
			raw = given.Plain[name]
		}
		value := v.fallback
		if loaded, ok := t.autoload[name]; ok {
			value = loaded.value
		}
		if raw != nil {
			parsed, err := parseValue(raw)
			if err != nil {
				return nil, err // Render has taken it
			}
			value = parsed
		}
		if value == cty.NilVal {
			continue // Render has named it
		}
		value, err := v.convert(value)
		if err != nil {
			return nil, fmt.Errorf("convert variable %s: %w", name, err) // Render has taken it
		}
		if value.IsNull() && !v.isNullable() && !v.isRequired() {
			value = v.fallback
		}
		if sealed || v.isSensitive() {
			value = value.Mark(Sensitive)
		}
		values[name] = value
	}
	return values, nil
}

// Partly are the values of declared variables as far as they are known without the template:
// given, or the default. Those of the others, and of sealed ones, are unknown; sensitive ones
// are marked with Sensitive. missing are those that must be given and are not, by name. What
// does not fit is a Failure with CodeVariablesInvalid.
func Partly(declared []Variable, given map[string]json.RawMessage, sealed map[string]string) (values map[string]cty.Value, missing []string, err error) {
	var problems []string
	values = make(map[string]cty.Value, len(declared))
	for _, d := range declared {
		ty, err := ctyjson.UnmarshalType(d.TypeJSON)
		if err != nil {
			ty = cty.DynamicPseudoType // of another version
		}
		raw, plain := given[d.Name]
		_, isSealed := sealed[d.Name]
		if !plain || string(bytes.TrimSpace(raw)) == "null" && !d.Nullable {
			raw = d.Default
		}
		value := cty.UnknownVal(ty.WithoutOptionalAttributesDeep())
		switch {
		case isSealed:
		case raw != nil:
			parsed, err := parseValue(raw)
			if err == nil {
				parsed, err = convert.Convert(parsed, ty)
			}
			if err != nil {
				problems = append(problems, d.Name)
				continue
			}
			value = parsed
		case d.Required && !plain:
			missing = append(missing, d.Name)
		}
		if isSealed || d.Sensitive {
			value = value.Mark(Sensitive)
		}
		values[d.Name] = value
	}
	if len(problems) > 0 {
		return nil, nil, provision.Fail(provision.CodeVariablesInvalid, "The value doesn't fit its type: "+strings.Join(problems, ", ")+".", nil)
	}
	return values, missing, nil
}
