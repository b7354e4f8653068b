package templatefile

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/gocty"

	"github.com/tendril-run/tendril/internal/provision"
)

const maxIdentifier = 63

var word = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)

// shape is what a block can have.
type shape struct {
	what      string
	arguments []string
	blocks    []string
	many      []string          // blocks that can be there more than once
	labels    map[string]string // blocks with a label, and an example of one
	hints     map[string]string // what to say of a name that is not known
}

// block is a block of the file, with what reads its literal arguments. What is wrong is
// noted with the reader, and the value is then the default.
type block struct {
	r    *reader
	body *hclsyntax.Body
	what string
}

// block checks the names within a body.
func (r *reader) block(body *hclsyntax.Body, s shape) *block {
	for _, name := range slices.Sorted(maps.Keys(body.Attributes)) {
		attribute := body.Attributes[name]
		switch {
		case slices.Contains(s.arguments, name):
		case slices.Contains(s.blocks, name):
			r.add(attribute.NameRange, "%s is a block: write %s { … } without =", name, name)
		default:
			r.unknown(attribute.NameRange, "argument", name, s, s.arguments)
		}
	}
	seen := map[string]bool{}
	known := body.Blocks[:0]
	for _, b := range body.Blocks {
		example, labelled := s.labels[b.Type]
		switch {
		case slices.Contains(s.arguments, b.Type):
			r.add(b.TypeRange, "%s is an argument: write %s = …", b.Type, b.Type)
			continue
		case !slices.Contains(s.blocks, b.Type):
			r.unknown(b.TypeRange, "block", b.Type, s, s.blocks)
			continue
		case labelled && len(b.Labels) != 1:
			r.add(b.DefRange(), "%s has one name: %s %q { … }", b.Type, b.Type, example)
			continue
		case !labelled && len(b.Labels) > 0:
			r.add(b.LabelRanges[0], "%s has no name: %s { … }", b.Type, b.Type)
			continue
		case seen[b.Type] && !slices.Contains(s.many, b.Type):
			r.add(b.DefRange(), "there is a %s block already, and only one is allowed", b.Type)
			continue
		}
		seen[b.Type] = true
		known = append(known, b)
	}
	body.Blocks = known
	return &block{r: r, body: body, what: s.what}
}

func (r *reader) unknown(at hcl.Range, kind, name string, s shape, known []string) {
	suggestion := provision.DidYouMean(name, known)
	if hint := s.hints[name]; hint != "" {
		suggestion = ": " + hint
	}
	r.add(at, "%s has no %s %q%s", s.what, kind, name, suggestion)
}

func (b *block) has(name string) bool { return b.body.Attributes[name] != nil }

// at is where an argument is, or the block without it.
func (b *block) at(name string) hcl.Range {
	if attribute := b.body.Attributes[name]; attribute != nil {
		return attribute.Expr.Range()
	}
	return b.body.SrcRange
}

func (b *block) problem(name, format string, args ...any) { b.r.add(b.at(name), format, args...) }

func (b *block) need(names ...string) {
	for _, name := range names {
		if !b.has(name) {
			at := b.body.SrcRange
			at.End = at.Start
			b.r.add(at, "%s needs the argument %s", b.what, name)
		}
	}
}

func (b *block) all(kind string) (found []*hclsyntax.Block) {
	for _, one := range b.body.Blocks {
		if one.Type == kind {
			found = append(found, one)
		}
	}
	return found
}

func (b *block) one(kind string) *hclsyntax.Block {
	if found := b.all(kind); len(found) > 0 {
		return found[0]
	}
	return nil
}

func (b *block) atMost(kind string, most int) {
	if found := b.all(kind); len(found) > most {
		b.r.add(found[most].DefRange(), "at most %d %s blocks are allowed", most, kind)
	}
}

// literal is the value of an argument that is the same for every run, of a type; ok is
// false where there is none, or nothing of use.
func (b *block) literal(name string, ty cty.Type, wants string) (value cty.Value, ok bool) {
	attribute := b.body.Attributes[name]
	if attribute == nil {
		return cty.NilVal, false
	}
	for _, used := range attribute.Expr.Variables() {
		b.r.add(used.SourceRange(), "%s must be literal: it is read before variables have values", name)
		return cty.NilVal, false
	}
	expr := b.r.prepare(attribute.Expr)
	value, diags := b.r.file.evaluate(expr, nil)
	if diags.HasErrors() {
		b.r.diagnose(diags, expr.Range())
		return cty.NilVal, false
	}
	value, err := convert.Convert(value, ty)
	if err != nil || value.IsNull() || !value.IsWhollyKnown() {
		b.problem(name, "%s must be %s", name, wants)
		return cty.NilVal, false
	}
	return value, true
}

// prose is a text that may have several lines.
func (b *block) prose(name string, most int) string {
	value, ok := b.literal(name, cty.String, "a text in quotes")
	if !ok {
		return ""
	}
	text := value.AsString()
	switch {
	case strings.TrimSpace(text) == "":
		b.problem(name, "%s must not be empty", name)
	case len(text) > most:
		b.problem(name, "%s is too long: at most %d bytes", name, most)
	case strings.ContainsFunc(text, func(c rune) bool { return unicode.IsControl(c) && c != '\n' && c != '\t' }):
		b.problem(name, "%s must not have control characters", name)
	}
	return text
}

// text is one line.
func (b *block) text(name string, most int) string {
	text := b.prose(name, most)
	if strings.ContainsAny(text, "\n\t") {
		b.problem(name, "%s must be one line", name)
	}
	return text
}

func (b *block) flag(name string) bool {
	value, ok := b.literal(name, cty.Bool, "true or false")
	return ok && value.True()
}

func (b *block) number(name string, otherwise, least, most int) int {
	value, ok := b.literal(name, cty.Number, "a number")
	if !ok {
		return otherwise
	}
	var number int
	if err := gocty.FromCtyValue(value, &number); err != nil || number < least || number > most {
		b.problem(name, "%s must be a whole number from %d to %d", name, least, most)
		return otherwise
	}
	return number
}

func (b *block) seconds(name string, otherwise, least, most int) time.Duration {
	return time.Duration(b.number(name, otherwise, least, most)) * time.Second
}

const (
	maxWords = 64
	maxWord  = 4096
)

// list is a list of commands or words.
func (b *block) list(name string) (texts []string) {
	value, ok := b.literal(name, cty.List(cty.String), `a list of texts, such as ["./run.sh"]`)
	if !ok {
		return nil
	}
	for it := value.ElementIterator(); it.Next(); {
		_, element := it.Element()
		if element.IsNull() || strings.TrimSpace(element.AsString()) == "" || strings.ContainsRune(element.AsString(), 0) || len(element.AsString()) > maxWord {
			b.problem(name, "each element of %s is a text of 1 to %d bytes", name, maxWord)
			return nil
		}
		texts = append(texts, element.AsString())
	}
	if len(texts) == 0 || len(texts) > maxWords {
		b.problem(name, "%s must have 1 to %d elements", name, maxWords)
		return nil
	}
	return texts
}

// command is a list of words, of which the first names a program.
func (b *block) command(name string) []string {
	argv := b.list(name)
	if argv == nil {
		return nil
	}
	switch inside, ok := strings.CutPrefix(argv[0], "./"); {
	case ok:
		b.checkFile(name, argv[0], inside, true)
	case !path.IsAbs(argv[0]):
		b.problem(name, "%s must begin with a file of the template, such as \"./%s\", or with an absolute path", name, path.Base(argv[0]))
	case path.Clean(argv[0]) != argv[0]:
		b.problem(name, "%q must be a plain path: %s", argv[0], path.Clean(argv[0]))
	}
	return argv
}

// file is the path of a file of the template.
func (b *block) file(name string) string {
	text := b.text(name, maxWord)
	if text == "" {
		return ""
	}
	inside := strings.TrimPrefix(text, "./")
	b.checkFile(name, text, inside, false)
	return inside
}

func (b *block) checkFile(name, written, inside string, program bool) {
	if !fs.ValidPath(inside) || inside == "." {
		b.problem(name, "%q must be a file within the template's directory, without \"..\"", written)
		return
	}
	if b.r.root == nil {
		return
	}
	info, err := b.r.root.Stat(inside)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b.problem(name, "%s does not exist", written)
	case err != nil:
		b.problem(name, "%s can't be read, or is a link out of the template's directory", written)
	case !info.Mode().IsRegular():
		b.problem(name, "%s is not a regular file", written)
	case program && info.Mode()&0o111 == 0:
		b.problem(name, "%s is not executable: run git update-index --chmod=+x %s", written, inside)
	}
}

// keyword is a bare word, such as string.
func (b *block) keyword(name string) string { return hcl.ExprAsKeyword(b.body.Attributes[name].Expr) }

// expression prepares an argument that each run evaluates: only var is known to it, and
// each if it is there.
func (b *block) expression(name string, each bool) {
	attribute := b.body.Attributes[name]
	if attribute == nil {
		return
	}
	b.r.checkReferences(attribute.Expr, each)
	attribute.Expr = b.r.prepare(attribute.Expr)
}

func (r *reader) checkReferences(expr hclsyntax.Expression, each bool) {
	for _, used := range expr.Variables() {
		at, attribute := used.SourceRange(), ""
		if len(used) > 1 {
			if step, ok := used[1].(hcl.TraverseAttr); ok {
				attribute = step.Name
			}
		}
		switch root := used.RootName(); {
		case root == "var" && attribute == "":
			r.add(at, "name one variable: var.NAME")
		case root == "var":
			r.refer(attribute, hcl.RangeBetween(used[0].SourceRange(), used[1].SourceRange()))
		case root == "each" && !each:
			r.add(at, "each is only known in a machine block with for_each")
		case root == "each" && attribute != "key" && attribute != "value":
			r.add(at, "each has key and value: each.key, each.value")
		case root != "each":
			r.add(at, "%q is not known here: an expression uses var.NAME, and each.key and each.value in a machine block with for_each", root)
		}
	}
}

// refer notes that the file uses a variable.
func (r *reader) refer(name string, at hcl.Range) {
	if before, ok := r.file.references[name]; !ok || at.Start.Byte < before.Start.Byte {
		r.file.references[name] = at
	}
}
