package tfvars

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/tendril-run/tendril/internal/provision"
)

// Template is what a template's root directory says about its variables.
type Template struct {
	variables map[string]*variable
	// autoload holds the last value that the files loaded by themselves give
	// each name, declared or not.
	autoload map[string]autoValue
	// autoloadAll holds every value they give, also those overridden later.
	autoloadAll []autoValue
}

// autoValue is a value from a file that the engine loads by itself.
type autoValue struct {
	name, file string
	value      cty.Value
}

// Load reads the template in dir as engine ("terraform" or "tofu") would: its
// configuration, overrides merged, and the tfvars files that are loaded by
// themselves. Modules it calls are not read. A template that does not parse,
// or whose variables are declared wrongly, is a Failure with
// CodeTemplateInvalid that names file and line of every fault.
func Load(dir, engine string) (*Template, error) {
	found, err := listFiles(dir, engine)
	if err != nil {
		return nil, err
	}
	if len(found.config)+len(found.overrides) == 0 {
		return nil, provision.Fail(provision.CodeTemplateInvalid,
			"the template's directory holds no configuration (no *.tf or *.tf.json file)", nil)
	}

	l := &loader{reader: newReader(dir), parser: hclparse.NewParser(), bodies: map[string]*hcl.File{}}
	for _, name := range slices.Concat(found.config, found.overrides, found.autoload) {
		l.parse(name)
	}
	t := &Template{variables: map[string]*variable{}, autoload: map[string]autoValue{}}
	for _, name := range found.config {
		l.declare(t, name, false)
	}
	for _, name := range found.overrides {
		l.declare(t, name, true)
	}
	for _, name := range slices.Sorted(maps.Keys(t.variables)) {
		l.diagnose(t.variables[name].settle())
	}
	for _, name := range found.autoload {
		l.autoload(t, name)
	}
	if err := l.failure(); err != nil {
		return nil, err
	}
	return t, nil
}

// loader gathers what is wrong with a template while it is read.
type loader struct {
	reader *reader
	parser *hclparse.Parser
	bodies map[string]*hcl.File
	faults []string
}

// parse reads one file. What is wrong with it is noted; a file with a syntax
// error is kept as far as it goes.
func (l *loader) parse(name string) {
	source, err := l.reader.read(name)
	if err != nil {
		l.faults = append(l.faults, fmt.Sprintf("%s: %v", name, err))
		return
	}
	isJSON := strings.HasSuffix(name, ".json")
	check, parse := CheckNesting, l.parser.ParseHCL
	if isJSON {
		check, parse = checkJSONNesting, l.parser.ParseJSON
	}
	if err := check(name, source); err != nil {
		l.faults = append(l.faults, err.Error())
		return
	}
	file, diags := parse(source, name)
	l.diagnose(diags)
	if file != nil && !diags.HasErrors() {
		l.bodies[name] = file
	}
}

// declare adds a configuration file's variables to the template.
func (l *loader) declare(t *Template, name string, override bool) {
	file, ok := l.bodies[name]
	if !ok {
		return
	}
	content, _, diags := file.Body.PartialContent(rootSchema)
	l.diagnose(diags)
	for _, block := range content.Blocks {
		v, diags := decodeVariable(block, file)
		l.diagnose(diags)
		switch before := t.variables[v.name]; {
		case override && before == nil:
			l.fault(block.DefRange, fmt.Sprintf("there is no variable %q to override", v.name))
		case override:
			before.override(v)
		case before != nil:
			l.fault(block.DefRange, fmt.Sprintf("variable %q is declared at %s already", v.name, position(before.at)))
		default:
			t.variables[v.name] = v
		}
	}
}

// autoload reads the values of a tfvars file.
func (l *loader) autoload(t *Template, name string) {
	file, ok := l.bodies[name]
	if !ok {
		return
	}
	attributes, diags := file.Body.JustAttributes()
	l.diagnose(diags)
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		value, diags := attributes[key].Expr.Value(nil)
		l.diagnose(diags)
		if diags.HasErrors() {
			continue
		}
		given := autoValue{name: key, file: name, value: value}
		t.autoload[key] = given
		t.autoloadAll = append(t.autoloadAll, given)
	}
}

func (l *loader) diagnose(diags hcl.Diagnostics) {
	for _, diag := range diags {
		if diag.Severity != hcl.DiagError {
			continue
		}
		text := diag.Summary
		if diag.Detail != "" {
			text += ": " + strings.Join(strings.Fields(diag.Detail), " ")
		}
		if diag.Subject == nil {
			l.faults = append(l.faults, text)
			continue
		}
		l.fault(*diag.Subject, text)
	}
}

func (l *loader) fault(at hcl.Range, text string) {
	l.faults = append(l.faults, position(at)+": "+text)
}

// position is a place in a template as people write it, file:line.
func position(at hcl.Range) string { return fmt.Sprintf("%s:%d", at.Filename, at.Start.Line) }

func (l *loader) failure() error {
	if len(l.faults) == 0 {
		return nil
	}
	return provision.Fail(provision.CodeTemplateInvalid,
		"the template cannot be read:\n"+bounded(l.faults), nil)
}

// maxProblems is how many lines of problems a message has.
const maxProblems = 50

// bounded joins problems to one a line, each cut to a readable length.
func bounded(problems []string) string {
	const longest = 500 // bytes a line
	var text strings.Builder
	for i, problem := range problems {
		if i == maxProblems {
			fmt.Fprintf(&text, "\n… and %d more", len(problems)-i)
			break
		}
		if i > 0 {
			text.WriteByte('\n')
		}
		if len(problem) > longest {
			problem = strings.ToValidUTF8(problem[:longest], "") + "…"
		}
		text.WriteString(problem)
	}
	return text.String()
}

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

// rootSchema finds variables and passes over everything else.
var rootSchema = &hcl.BodySchema{
	Blocks: []hcl.BlockHeaderSchema{{Type: "variable", LabelNames: []string{"name"}}},
}

// variableSchema is what matters here of a variable; engines add arguments.
var variableSchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{
	{Name: "type"}, {Name: "description"}, {Name: "default"},
	{Name: "sensitive"}, {Name: "nullable"}, {Name: "ephemeral"},
}, Blocks: []hcl.BlockHeaderSchema{{Type: "validation"}}}

var validationSchema = &hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "condition", Required: true}, {Name: "error_message", Required: true}}}

// Validation is a validation block of a variable, as it is written.
type Validation struct {
	Variable           string
	Condition, Message Expression
	// Uses are the variables that the condition and the message refer to.
	Uses []string
}

// Expression is the text of an expression, and where it stands.
type Expression struct {
	Text []byte
	At   hcl.Range
}

// Validations are the template's validation blocks, in the order of their variables. Engines
// evaluate them by themselves.
func (t *Template) Validations() (all []Validation) {
	for _, name := range slices.Sorted(maps.Keys(t.variables)) {
		all = append(all, t.variables[name].validations...)
	}
	return all
}

// decodeValidation reads a validation block; one that is not as it must be is left to the
// engine to refuse.
func (v *variable) decodeValidation(block *hcl.Block, file *hcl.File) {
	content, _, _ := block.Body.PartialContent(validationSchema)
	var uses []string
	text := func(name string) Expression {
		if attribute := content.Attributes[name]; attribute != nil {
			for _, used := range attribute.Expr.Variables() {
				if step, ok := used[min(1, len(used)-1)].(hcl.TraverseAttr); ok && used.RootName() == "var" {
					uses = append(uses, step.Name)
				}
			}
			at := attribute.Expr.Range()
			return Expression{at.SliceBytes(file.Bytes), at}
		}
		return Expression{At: block.DefRange}
	}
	check := Validation{Variable: v.name, Condition: text("condition"), Message: text("error_message")}
	check.Uses = uses
	v.validations = append(v.validations, check)
}

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
	validations []Validation
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
	for _, inner := range content.Blocks {
		v.decodeValidation(inner, file)
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
		if err := CheckNesting(expr.Range().Filename, []byte(text)); err != nil {
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
	if with.validations != nil {
		v.validations = with.validations
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

// maxNesting is how deep an expression may go. The HCL parsers and evaluators
// recurse once a level without a limit of their own, and a Go stack that
// overflows ends the process: a megabyte of "(" is enough.
const maxNesting = 1000

// maxMelded bounds what the parser copies, in bytes: it adds each piece of a text, such
// as a line of a heredoc or a %, to all of the text before it. 300 KB of % take 80 s.
const maxMelded = 1 << 30

// CheckNesting refuses a native-syntax file, or one expression, that is too
// deep to be parsed, or would take too long. It goes by the lexer alone, which does not recurse.
//
// Brackets nest, and so do operators, one within the other or to the left. The
// depth is therefore the number of brackets and operators before a token, less
// what a closed bracket held and what a separator has ended.
func CheckNesting(name string, source []byte) error {
	tokens, _ := hclsyntax.LexConfig(source, name, hcl.InitialPos) // the parser reports its diagnostics
	type level struct {
		opened hclsyntax.TokenType
		held   int
	}
	levels := []level{{opened: hclsyntax.TokenNil}}
	depth, text, melded := 0, 0, 0
	for _, token := range tokens {
		top := &levels[len(levels)-1]
		if token.Type != hclsyntax.TokenQuotedLit && token.Type != hclsyntax.TokenStringLit {
			text = 0
		}
		switch token.Type {
		case hclsyntax.TokenQuotedLit, hclsyntax.TokenStringLit:
			text += len(token.Bytes)
			if melded += text; melded > maxMelded {
				return fmt.Errorf("%s:%d: a text has too many lines or signs to be read", name, token.Range.Start.Line)
			}
		case hclsyntax.TokenOParen, hclsyntax.TokenOBrack, hclsyntax.TokenOBrace, hclsyntax.TokenOQuote,
			hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			top.held++
			depth++
			levels = append(levels, level{opened: token.Type})
		case hclsyntax.TokenCParen, hclsyntax.TokenCBrack, hclsyntax.TokenCBrace,
			hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
			if len(levels) == 1 {
				continue // a closing bracket too many: a syntax error
			}
			depth -= top.held
			levels = levels[:len(levels)-1]
			// The parts of a template stand side by side, but %{if} nests.
			if top.opened == hclsyntax.TokenTemplateInterp {
				levels[len(levels)-1].held--
				depth--
			}
		case hclsyntax.TokenComma:
			depth -= top.held
			top.held = 0
		case hclsyntax.TokenNewline:
			// Within ( and [ a line break does not end an expression.
			if top.opened == hclsyntax.TokenNil || top.opened == hclsyntax.TokenOBrace {
				depth -= top.held
				top.held = 0
			}
		case hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenQuestion, hclsyntax.TokenDot,
			hclsyntax.TokenPlus, hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent,
			hclsyntax.TokenAnd, hclsyntax.TokenOr, hclsyntax.TokenEqualOp, hclsyntax.TokenNotEqual,
			hclsyntax.TokenLessThan, hclsyntax.TokenLessThanEq, hclsyntax.TokenGreaterThan, hclsyntax.TokenGreaterThanEq:
			top.held++
			depth++
		}
		if depth > maxNesting {
			return tooDeep(name, token.Range.Start.Line)
		}
	}
	return nil
}

// checkJSONNesting does the same for a JSON file. Expressions within its
// strings are not checked: who parses one checks it first.
func checkJSONNesting(name string, source []byte) error {
	depth, line := 0, 1
	inString, escaped := false, false
	for _, c := range source {
		switch {
		case c == '\n':
			line++
		case escaped:
			escaped = false
		case inString && c == '\\':
			escaped = true
		case c == '"':
			inString = !inString
		case inString:
		case c == '[', c == '{':
			depth++
		case c == ']', c == '}':
			depth--
		}
		if depth > maxNesting {
			return tooDeep(name, line)
		}
	}
	return nil
}

func tooDeep(name string, line int) error {
	return fmt.Errorf("%s:%d: nested more than %d levels deep", name, line, maxNesting)
}
