package tfvars

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/zclconf/go-cty/cty"

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
	check, parse := checkNesting, l.parser.ParseHCL
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
