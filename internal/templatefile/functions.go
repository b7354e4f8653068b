package templatefile

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"

	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// functions are what expressions can call, with the names and meanings of Terraform's.
// Each depends on its arguments alone, and none makes much of little: range,
// setproduct and indent are left out for that.
var functions = map[string]function.Function{
	"abs": stdlib.AbsoluteFunc, "ceil": stdlib.CeilFunc, "floor": stdlib.FloorFunc, "max": stdlib.MaxFunc, "min": stdlib.MinFunc,

	"format": formatFunc, "join": joinFunc, "lower": stdlib.LowerFunc, "replace": replaceFunc, "split": stdlib.SplitFunc,
	"substr": stdlib.SubstrFunc, "trim": stdlib.TrimFunc, "trimprefix": stdlib.TrimPrefixFunc, "trimspace": stdlib.TrimSpaceFunc,
	"trimsuffix": stdlib.TrimSuffixFunc, "upper": stdlib.UpperFunc,

	"coalesce": stdlib.CoalesceFunc, "compact": stdlib.CompactFunc, "concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc,
	"distinct": distinctFunc, "element": stdlib.ElementFunc, "flatten": stdlib.FlattenFunc, "jsonencode": stdlib.JSONEncodeFunc,
	"keys": stdlib.KeysFunc, "length": lengthFunc, "lookup": stdlib.LookupFunc, "merge": stdlib.MergeFunc, "reverse": stdlib.ReverseListFunc,
	"slice": stdlib.SliceFunc, "sort": stdlib.SortFunc, "values": stdlib.ValuesFunc, "zipmap": stdlib.ZipmapFunc,
	"setintersection": stdlib.SetIntersectionFunc, "setsubtract": stdlib.SetSubtractFunc, "setunion": stdlib.SetUnionFunc,

	"alltrue": trueFunc(true), "anytrue": trueFunc(false), "can": tryfunc.CanFunc, "regex": regexFunc,

	"tobool": stdlib.MakeToFunc(cty.Bool), "tonumber": stdlib.MakeToFunc(cty.Number), "tostring": stdlib.MakeToFunc(cty.String),
	"tolist": stdlib.MakeToFunc(cty.List(cty.DynamicPseudoType)), "tomap": stdlib.MakeToFunc(cty.Map(cty.DynamicPseudoType)),
	"toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
}

// argumentUse is what functions do with their arguments that do more than go through
// them: find one type for all, or make a set.
var argumentUse = map[string]use{
	"coalesce": pairs, "concat": pairs, "merge": pairs, "tolist": pairs, "tomap": pairs,
	"setintersection": sets, "setsubtract": sets, "setunion": sets, "toset": sets,
}

// bounded is a function that refuses arguments of which it would make too much. It
// sees them without marks and known.
func bounded(f function.Function, size func(args []cty.Value) (int, error)) function.Function {
	return function.New(&function.Spec{
		Params: f.Params(), VarParam: f.VarParam(),
		Type: func(args []cty.Value) (cty.Type, error) { return f.ReturnTypeForValues(args) },
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			bytes, err := size(args)
			if err == nil && bytes > maxText {
				err = fmt.Errorf("the result would be longer than %d bytes", maxText)
			}
			if err != nil {
				return cty.NilVal, err
			}
			return f.Call(args)
		},
	})
}

var joinFunc = bounded(stdlib.JoinFunc, func(args []cty.Value) (size int, _ error) {
	for _, list := range args[1:] {
		for it := list.ElementIterator(); it.Next(); {
			_, element := it.Element()
			size += textLength(element) + len(args[0].AsString())
		}
	}
	return size, nil
})

var replaceFunc = bounded(stdlib.ReplaceFunc, func(args []cty.Value) (int, error) {
	text, old, with := args[0].AsString(), args[1].AsString(), args[2].AsString()
	return len(text) + strings.Count(text, old)*len(with), nil
})

// verb is one of a format: its width, its precision or the number of its argument can
// ask for much.
var (
	verb   = regexp.MustCompile(`%[^%a-zA-Z]*[%a-zA-Z]`)
	digit  = regexp.MustCompile(`\d`)
	digits = regexp.MustCompile(`\d{4}`)
)

var formatFunc = bounded(stdlib.FormatFunc, func(args []cty.Value) (int, error) {
	text, most := args[0].AsString(), 0
	for _, arg := range args[1:] {
		most = max(most, textLength(arg))
	}
	size := len(text)
	for _, found := range verb.FindAllString(text, -1) {
		if digits.MatchString(found) {
			return 0, fmt.Errorf("a width or precision can have 3 digits at most")
		}
		// A number is at most 2^2000 or 2^-2000: 603 digits on one side of the point.
		size += most
		if digit.MatchString(found) {
			size += 1000
		}
	}
	return size, nil
})

// textLength is about how long a value is as text.
func textLength(value cty.Value) (length int) {
	value, _ = value.Unmark()
	switch {
	case value.IsNull() || !value.IsKnown():
		return 4
	case value.Type() == cty.String:
		return len(value.AsString())
	case value.CanIterateElements():
		for it := value.ElementIterator(); it.Next(); {
			key, element := it.Element()
			length += 4 + textLength(element)
			if key.Type() == cty.String {
				length += 4 + len(key.AsString())
			}
		}
		return length
	case value.Type() == cty.Number:
		return len(value.AsBigFloat().Text('f', -1))
	default:
		return 5
	}
}

// lengthFunc is Terraform's: it takes strings as well.
var lengthFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "value", Type: cty.DynamicPseudoType, AllowDynamicType: true, AllowUnknown: true, AllowMarked: true}},
	Type:   function.StaticReturnType(cty.Number),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		if args[0].Type() == cty.String {
			return stdlib.Strlen(args[0])
		}
		return stdlib.Length(args[0])
	},
})

// distinctFunc keeps the first of equal strings. The library's takes any type, and
// more than a second for a thousand elements.
var distinctFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "list", Type: cty.List(cty.String)}},
	Type:   function.StaticReturnType(cty.List(cty.String)),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		seen, kept := map[string]bool{}, []cty.Value{}
		for it := args[0].ElementIterator(); it.Next(); {
			_, element := it.Element()
			if element.IsNull() {
				return cty.NilVal, function.NewArgErrorf(0, "it has an element that is null")
			}
			if text := element.AsString(); !seen[text] {
				seen[text] = true
				kept = append(kept, element)
			}
		}
		if len(kept) == 0 {
			return cty.ListValEmpty(cty.String), nil
		}
		return cty.ListVal(kept), nil
	},
})

// trueFunc is alltrue or anytrue: the value of no elements is empty.
func trueFunc(empty bool) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "list", Type: cty.List(cty.Bool)}},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			for it := args[0].ElementIterator(); it.Next(); {
				if _, element := it.Element(); (!element.IsNull() && element.True()) != empty {
					return cty.BoolVal(!empty), nil
				}
			}
			return cty.BoolVal(empty), nil
		},
	})
}

// maxMatching is how many instructions a regular expression may need for a text: each of its
// own for each byte.
const maxMatching = 10_000_000

var regexFunc = bounded(stdlib.RegexFunc, func(args []cty.Value) (int, error) {
	parsed, err := syntax.Parse(args[0].AsString(), syntax.Perl)
	if err != nil {
		return 0, nil // which the function says better
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0, nil
	}
	if len(program.Inst)*(1+len(args[1].AsString())) > maxMatching {
		return 0, errors.New("the pattern and the text are too long")
	}
	return len(args[1].AsString()), nil
})
