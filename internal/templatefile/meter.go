package templatefile

import (
	"fmt"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// Limits on evaluation. A unit of work is about 50 ns, as measured, so the budget is
// spent in about a second. A thousand machines, each with a loop over thirty others and
// two kilobytes of text, need 60 % of it.
const (
	budget   = 30_000_000
	nodeCost = 32 // more than the time it takes: its value takes memory
	// unpackCost is of each byte of a text of which a function makes elements.
	unpackCost = 16
	// longest ends what costs more than its units say. Only the hostile get there, unless
	// the machine is overloaded: then a run fails that would not fail elsewhere.
	longest = 1500 * time.Millisecond

	maxText     = 64 << 10 // bytes of a string
	maxElements = 100_000  // of a collection
	// maxPairs is how many elements are compared in pairs: to find one type for all of
	// them, or to make a set. cty takes up to 200 ns a pair.
	maxPairs = 1500
	// maxExponent bounds a number by 2^±2000. Written out, 1e999999999 fills memory.
	maxExponent = 2000
)

// meter is what an evaluation may still spend.
type meter struct {
	left    int
	checked int // what was left when the clock was last read
	latest  time.Time
	written int // bytes of the template that is being put together
	// over is why the evaluation has ended. cty makes an error of a panic within a function
	// such as can, which hides it.
	over *exceeded
}

func (m *meter) reset(limit time.Duration) {
	*m = meter{left: budget, checked: budget, latest: time.Now().Add(limit)}
}

// exceeded ends an evaluation, as a panic: HCL goes on after an error, and would go
// through all elements of all loops only to report each.
type exceeded struct {
	at   hcl.Range
	text string
}

func (m *meter) end(at hcl.Range, format string, args ...any) {
	m.over = &exceeded{at, fmt.Sprintf(format, args...)}
	panic(*m.over)
}

func (m *meter) spend(at hcl.Range, units int) {
	m.left -= units
	if m.left < 0 {
		m.end(at, "this takes too much work to evaluate: use fewer or shorter loops and lists")
	}
	if m.checked-m.left > 10_000 {
		m.checked = m.left
		if time.Now().After(m.latest) {
			m.end(at, "this takes more than %s to evaluate: use fewer or shorter loops and lists", longest)
		}
	}
}

// use is what the parent of an expression does with its value.
type use int

const (
	passes  use = iota // hands it on, as it is
	walks              // goes through all of it
	writes             // puts it into a text
	pairs              // compares elements of tuples and objects in pairs, to find one type
	sets               // compares all elements in pairs
	unpacks            // makes a value of each byte of a text, at worst
)

// metered is an expression that spends, before and after it is evaluated. It embeds
// the expression because the methods by which HCL walks its tree are not exported.
type metered struct {
	hclsyntax.Expression
	meter *meter
	use   use
	used  []hcl.Traversal // of a whole expression
}

// Variables implements hcl.Expression. HCL finds them by the types of the tree's nodes,
// so they are looked up before the meter is in it.
func (e *metered) Variables() []hcl.Traversal { return e.used }

// Value implements hcl.Expression.
func (e *metered) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	e.meter.spend(e.Range(), nodeCost)
	outer := e.meter.written
	e.meter.written = 0
	value, diags := e.Expression.Value(ctx)
	if e.meter.over != nil {
		panic(*e.meter.over)
	}
	e.meter.written = outer
	e.meter.spend(e.Range(), 100*len(diags)) // a loop gathers them
	w := weigher{meter: e.meter, at: e.Range(), use: e.use}
	w.weigh(value)
	if _, call := e.Expression.(*hclsyntax.FunctionCallExpr); call && e.use == passes {
		w.weighResult(value)
	}
	if e.use == pairs || e.use == sets {
		if w.compared > maxPairs {
			w.meter.end(w.at, "at most %d elements can be compared or converted at once", maxPairs)
		}
		e.meter.spend(w.at, w.compared*w.compared)
	}
	return value, diags
}

// weigher spends what it costs to use a value, and refuses one that is too large.
type weigher struct {
	meter    *meter
	at       hcl.Range
	use      use
	compared int // elements that are compared with each other
}

func (w *weigher) weigh(value cty.Value) {
	value, _ = value.Unmark()
	if value == cty.NilVal || value.IsNull() || !value.IsKnown() {
		return
	}
	switch ty := value.Type(); {
	case ty == cty.String:
		length := len(value.AsString())
		if w.use == writes {
			w.meter.written += length
		}
		if length > maxText || w.meter.written > maxText {
			w.meter.end(w.at, "this text is too long, at most %d bytes are allowed", maxText)
		}
		if w.use == passes || w.use == writes {
			length /= 4 // it stays in memory
		}
		if w.use == unpacks {
			length *= unpackCost
		}
		w.meter.spend(w.at, length)
	case ty == cty.Number:
		number := value.AsBigFloat()
		if exponent := number.MantExp(nil); number.IsInf() || exponent > maxExponent || exponent < -maxExponent {
			w.meter.end(w.at, "this number is out of range: at most 2^%d", maxExponent)
		}
	case ty.IsCollectionType() || ty.IsTupleType() || ty.IsObjectType():
		w.weighAll(value, ty)
	}
}

func (w *weigher) weighAll(value cty.Value, ty cty.Type) {
	length := value.LengthInt()
	if length > maxElements {
		w.meter.end(w.at, "%d elements are too many, at most %d are allowed", length, maxElements)
	}
	if w.use == passes || w.use == writes {
		return
	}
	if w.use == sets || ty.IsTupleType() || ty.IsObjectType() {
		w.compared += length
	}
	w.meter.spend(w.at, 20*length)
	if ty.IsSetType() {
		// A set is sorted each time that it is gone through, which costs most.
		w.meter.spend(w.at, 120*length)
		if ty.ElementType().IsPrimitiveType() {
			return
		}
	}
	for it := value.ElementIterator(); it.Next(); {
		_, element := it.Element()
		w.weigh(element)
	}
}

// weighResult spends what a collection takes that a function made: it can be large where
// the arguments are small.
func (w *weigher) weighResult(value cty.Value) {
	value, _ = value.Unmark()
	if value == cty.NilVal || value.IsNull() || !value.IsKnown() || !value.CanIterateElements() {
		return
	}
	w.meter.spend(w.at, 20*value.LengthInt())
	for it := value.ElementIterator(); it.Next(); {
		if _, element := it.Element(); element.Type() == cty.String {
			w.weigh(element)
		}
	}
}

const (
	// maxLoops is how deep for expressions may nest.
	maxLoops = 2
	// maxCatches is how deep try and can may nest: each evaluates what is in it twice.
	maxCatches = 5
)

// prepare makes an expression ready to be evaluated.
func (r *reader) prepare(expr hclsyntax.Expression) hclsyntax.Expression {
	used := expr.Variables()
	prepared := r.instrument(expr, walks, 0)
	if e, ok := prepared.(*metered); ok {
		e.used = used
	}
	return prepared
}

// instrument puts the meter into an expression. What it doesn't know it refuses.
func (r *reader) instrument(expr hclsyntax.Expression, by use, loops int) hclsyntax.Expression {
	inner := func(expr hclsyntax.Expression, by use) hclsyntax.Expression {
		if expr == nil {
			return nil
		}
		return r.instrument(expr, by, loops)
	}
	switch e := expr.(type) {
	case *hclsyntax.LiteralValueExpr, *hclsyntax.ScopeTraversalExpr, *hclsyntax.AnonSymbolExpr:
	case *hclsyntax.RelativeTraversalExpr:
		e.Source = inner(e.Source, passes)
	case *hclsyntax.FunctionCallExpr:
		takes := walks
		if known, ok := argumentUse[e.Name]; ok {
			takes = known
		}
		if takes == pairs || takes == sets {
			r.checkArguments(e, takes)
		}
		if e.Name == "try" || e.Name == "can" {
			if r.catches == maxCatches {
				r.add(e.NameRange, "try and can can be nested %d deep at most", maxCatches)
				return expr
			}
			r.catches++
			defer func() { r.catches-- }()
		}
		for i, arg := range e.Args {
			if takes == pairs && e.ExpandFinal && i == len(e.Args)-1 {
				takes = sets // each element becomes an argument
			}
			e.Args[i] = inner(arg, takes)
		}
	case *hclsyntax.ConditionalExpr:
		e.Condition, e.TrueResult, e.FalseResult = inner(e.Condition, passes), inner(e.TrueResult, pairs), inner(e.FalseResult, pairs)
	case *hclsyntax.IndexExpr:
		e.Collection, e.Key = inner(e.Collection, passes), inner(e.Key, passes)
	case *hclsyntax.TupleConsExpr:
		for i, element := range e.Exprs {
			e.Exprs[i] = inner(element, passes)
		}
	case *hclsyntax.ObjectConsExpr:
		for i, item := range e.Items {
			e.Items[i].KeyExpr, e.Items[i].ValueExpr = inner(item.KeyExpr, passes), inner(item.ValueExpr, passes)
		}
	case *hclsyntax.ObjectConsKeyExpr:
		// A name stands for itself, which HCL sees by its type.
		if _, name := e.Wrapped.(*hclsyntax.ScopeTraversalExpr); !name {
			e.Wrapped = inner(e.Wrapped, passes)
		}
	case *hclsyntax.ForExpr:
		if loops == maxLoops {
			r.add(e.SrcRange, "for expressions can be nested %d deep at most", maxLoops)
			return expr
		}
		loops++
		e.CollExpr, e.KeyExpr, e.ValExpr, e.CondExpr = inner(e.CollExpr, walks), inner(e.KeyExpr, passes), inner(e.ValExpr, passes), inner(e.CondExpr, passes)
	case *hclsyntax.SplatExpr:
		e.Source, e.Each = inner(e.Source, walks), inner(e.Each, passes)
	case *hclsyntax.BinaryOpExpr:
		e.LHS, e.RHS = inner(e.LHS, walks), inner(e.RHS, walks)
	case *hclsyntax.UnaryOpExpr:
		e.Val = inner(e.Val, passes)
	case *hclsyntax.ParenthesesExpr:
		e.Expression = inner(e.Expression, passes)
	case *hclsyntax.TemplateExpr:
		for i, part := range e.Parts {
			e.Parts[i] = inner(part, writes)
		}
	case *hclsyntax.TemplateJoinExpr:
		e.Tuple = inner(e.Tuple, walks)
	case *hclsyntax.TemplateWrapExpr:
		e.Wrapped = inner(e.Wrapped, passes)
	default:
		r.add(expr.Range(), "this kind of expression is not supported")
		return expr
	}
	return &metered{Expression: expr, meter: &r.file.meter, use: by}
}

// maxArguments is of functions that compare all of their arguments.
const maxArguments = 100

func (r *reader) checkArguments(e *hclsyntax.FunctionCallExpr, takes use) {
	if len(e.Args) > maxArguments {
		r.add(e.NameRange, "%s can have %d arguments at most", e.Name, maxArguments)
	}
	if takes == sets && e.ExpandFinal {
		r.add(e.NameRange, "%s can't have its arguments from a list (...)", e.Name)
	}
}

const (
	// maxDigits bounds a number as written: to read one takes time by its length squared.
	maxDigits = 100
	// maxMelded bounds what the parser copies: it adds each line of a text to all lines
	// before it.
	maxMelded = 1 << 28
)

// checkTokens refuses what takes too long to be parsed, before it is.
func (r *reader) checkTokens(tokens hclsyntax.Tokens) {
	text, melded := 0, 0
	for _, token := range tokens {
		switch token.Type {
		case hclsyntax.TokenNumberLit:
			if len(token.Bytes) > maxDigits {
				r.add(token.Range, "a number of %d characters is too long, at most %d are allowed", len(token.Bytes), maxDigits)
			}
		case hclsyntax.TokenQuotedLit, hclsyntax.TokenStringLit:
			text += len(token.Bytes)
			if melded += text; melded > maxMelded {
				r.add(token.Range, "this text has too many lines or signs")
				return
			}
		default:
			text = 0
		}
	}
}
