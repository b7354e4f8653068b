package templatefile

import (
	"crypto/md5"  //nolint:gosec // templates may name things by it
	"crypto/sha1" //nolint:gosec // templates may name things by it
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/big"
	"net/url"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// functions are what expressions can call, with the names and meanings of Terraform's.
// Each depends on its arguments alone. sensitive and nonsensitive are left out: only a
// variable's declaration says what is sensitive.
var functions = map[string]function.Function{
	"abs": stdlib.AbsoluteFunc, "ceil": stdlib.CeilFunc, "floor": stdlib.FloorFunc, "max": stdlib.MaxFunc, "min": stdlib.MinFunc,
	"parseint": stdlib.ParseIntFunc, "pow": powFunc, "signum": stdlib.SignumFunc, "sum": sumFunc,

	"chomp": stdlib.ChompFunc, "endswith": hasFunc(strings.HasSuffix), "format": formatFunc, "formatlist": formatListFunc, "indent": indentFunc,
	"join": joinFunc, "lower": stdlib.LowerFunc, "regex": matching(stdlib.RegexFunc), "regexall": matching(stdlib.RegexAllFunc), "replace": replaceFunc,
	"split": stdlib.SplitFunc, "startswith": hasFunc(strings.HasPrefix), "strcontains": hasFunc(strings.Contains), "strrev": stdlib.ReverseFunc,
	"substr": stdlib.SubstrFunc, "title": stdlib.TitleFunc, "trim": stdlib.TrimFunc, "trimprefix": stdlib.TrimPrefixFunc, "trimspace": stdlib.TrimSpaceFunc,
	"trimsuffix": stdlib.TrimSuffixFunc, "upper": stdlib.UpperFunc,

	"alltrue": trueFunc(true), "anytrue": trueFunc(false), "chunklist": stdlib.ChunklistFunc, "coalesce": stdlib.CoalesceFunc, "coalescelist": stdlib.CoalesceListFunc,
	"compact": stdlib.CompactFunc, "concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc, "distinct": distinctFunc, "element": stdlib.ElementFunc,
	"flatten": stdlib.FlattenFunc, "index": indexFunc, "keys": stdlib.KeysFunc, "length": lengthFunc, "lookup": stdlib.LookupFunc, "merge": stdlib.MergeFunc,
	"one": oneFunc, "range": stdlib.RangeFunc, "reverse": stdlib.ReverseListFunc, "setintersection": stdlib.SetIntersectionFunc, "setproduct": setProductFunc,
	"setsubtract": stdlib.SetSubtractFunc, "setunion": stdlib.SetUnionFunc, "slice": stdlib.SliceFunc, "sort": stdlib.SortFunc, "transpose": transposeFunc,
	"values": stdlib.ValuesFunc, "zipmap": stdlib.ZipmapFunc,

	"base64decode": base64DecodeFunc, "base64encode": textFunc(func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }),
	"jsondecode": jsonDecodeFunc, "jsonencode": stdlib.JSONEncodeFunc, "urlencode": textFunc(url.QueryEscape),
	"md5": digestFunc(md5.New), "sha1": digestFunc(sha1.New), "sha256": digestFunc(sha256.New), "sha512": digestFunc(sha512.New), // they are Terraform's

	"cidrhost": cidrHostFunc, "cidrnetmask": cidrNetmaskFunc, "cidrsubnet": cidrSubnetFunc, "cidrsubnets": cidrSubnetsFunc,

	"formatdate": stdlib.FormatDateFunc, "timeadd": stdlib.TimeAddFunc,

	"can": tryfunc.CanFunc, "try": tryfunc.TryFunc,

	"tobool": stdlib.MakeToFunc(cty.Bool), "tonumber": stdlib.MakeToFunc(cty.Number), "tostring": stdlib.MakeToFunc(cty.String),
	"tolist": stdlib.MakeToFunc(cty.List(cty.DynamicPseudoType)), "tomap": stdlib.MakeToFunc(cty.Map(cty.DynamicPseudoType)),
	"toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
}

// argumentUse is what functions do with their arguments that do more than go through
// them: find one type for all, make a set, or make a value of each part of a text.
var argumentUse = map[string]use{
	"coalesce": pairs, "coalescelist": pairs, "concat": pairs, "merge": pairs, "tolist": pairs, "tomap": pairs,
	"setintersection": sets, "setproduct": sets, "setsubtract": sets, "setunion": sets, "toset": sets,
	"jsondecode": unpacks, "regexall": unpacks, "split": unpacks,
}

var errTooLong = fmt.Errorf("the result would be longer than %d bytes", maxText)

// bounded is a function that refuses arguments of which it would make too much. It
// sees them without marks and known.
func bounded(f function.Function, size func(args []cty.Value) (int, error)) function.Function {
	return function.New(&function.Spec{
		Params: f.Params(), VarParam: f.VarParam(),
		Type: func(args []cty.Value) (cty.Type, error) { return f.ReturnTypeForValues(args) },
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			bytes, err := size(args)
			if err == nil && bytes > maxText {
				err = errTooLong
			}
			if err != nil {
				return cty.NilVal, err
			}
			value, err := f.Call(args)
			if _, panicked := errors.AsType[function.PanicError](err); panicked {
				return cty.NilVal, errors.New("there is no result for these values") // and not the library's stack
			}
			return value, err
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

// replaceFunc is Terraform's: a text between slashes is a regular expression.
var replaceFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "str", Type: cty.String}, {Name: "substr", Type: cty.String}, {Name: "replace", Type: cty.String}},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		text, old, with := args[0].AsString(), args[1].AsString(), args[2].AsString()
		if len(old) < 2 || old[0] != '/' || old[len(old)-1] != '/' {
			if len(text)+strings.Count(text, old)*len(with) > maxText {
				return cty.NilVal, errTooLong
			}
			return cty.StringVal(strings.ReplaceAll(text, old, with)), nil
		}
		pattern, err := compile(old[1:len(old)-1], text)
		if err != nil {
			return cty.NilVal, err
		}
		result, end := []byte{}, 0
		for _, found := range pattern.FindAllStringSubmatchIndex(text, -1) {
			result = pattern.ExpandString(append(result, text[end:found[0]]...), with, text, found)
			if end = found[1]; len(result) > maxText {
				return cty.NilVal, errTooLong
			}
		}
		return cty.StringVal(string(result) + text[end:]), nil
	},
})

// verb is one of a format: its width, its precision or the number of its argument can
// ask for much.
var (
	verb   = regexp.MustCompile(`%[^%a-zA-Z]*[%a-zA-Z]`)
	digit  = regexp.MustCompile(`\d`)
	digits = regexp.MustCompile(`\d{4}`)
)

var formatFunc = bounded(stdlib.FormatFunc, func(args []cty.Value) (int, error) { return formatted(args, 0) })

// formatListFunc is format for each element of its lists: all results together are bounded.
var formatListFunc = bounded(stdlib.FormatListFunc, func(args []cty.Value) (int, error) {
	results := 1
	for _, arg := range args[1:] {
		if isSequence(arg) {
			results = max(results, arg.LengthInt())
		}
	}
	return formatted(args, results)
})

func isSequence(value cty.Value) bool {
	ty := value.Type()
	return !value.IsNull() && (ty.IsListType() || ty.IsSetType() || ty.IsTupleType())
}

// formatted is how long the results of a format can be. Each of them has an element of the
// arguments that are lists, unless results is 0: then there is one, with all of the lists.
func formatted(args []cty.Value, results int) (int, error) {
	text, most := args[0].AsString(), 0
	for _, arg := range args[1:] {
		length := textLength(arg)
		if results > 0 && !isSequence(arg) {
			length *= results
		}
		most = max(most, length)
	}
	results = max(results, 1)
	size := len(text) * results
	for _, found := range verb.FindAllString(text, -1) {
		if digits.MatchString(found) {
			return 0, errors.New("a width or precision can have 3 digits at most")
		}
		// A number is at most 2^2000 or 2^-2000: 603 digits on one side of the point.
		size += most
		if digit.MatchString(found) {
			size += 1000 * results
		}
	}
	return size, nil
}

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

// textFunc makes one text of another.
func textFunc(make func(string) string) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "str", Type: cty.String}},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.StringVal(make(args[0].AsString())), nil
		},
	})
}

func digestFunc(algorithm func() hash.Hash) function.Function {
	return textFunc(func(text string) string {
		digest := algorithm()
		_, _ = io.WriteString(digest, text) // a hash takes everything
		return hex.EncodeToString(digest.Sum(nil))
	})
}

// hasFunc reports whether a text has another.
func hasFunc(has func(text, other string) bool) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "str", Type: cty.String}, {Name: "other", Type: cty.String}},
		Type:   function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(has(args[0].AsString(), args[1].AsString())), nil
		},
	})
}

var base64DecodeFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "str", Type: cty.String}},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		decoded, err := base64.StdEncoding.DecodeString(args[0].AsString())
		if err != nil || !utf8.Valid(decoded) {
			return cty.NilVal, function.NewArgErrorf(0, "it must be UTF-8 text in base64")
		}
		return cty.StringVal(string(decoded)), nil
	},
})

// maxNesting is how deep JSON can be nested: a value's depth is that of its type too.
const maxNesting = 50

var jsonDecodeFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "str", Type: cty.String}},
	Type: func(args []cty.Value) (cty.Type, error) {
		if !args[0].IsKnown() {
			return cty.DynamicPseudoType, nil
		}
		depth, reader := 0, json.NewDecoder(strings.NewReader(args[0].AsString()))
		for reader.UseNumber(); ; {
			switch token, err := reader.Token(); {
			case err != nil: // the end, or what the function says better
				return stdlib.JSONDecodeFunc.ReturnTypeForValues(args)
			case token == json.Delim('[') || token == json.Delim('{'):
				if depth++; depth > maxNesting {
					return cty.NilType, function.NewArgErrorf(0, "JSON can be nested %d deep at most", maxNesting)
				}
			case token == json.Delim(']') || token == json.Delim('}'):
				depth--
			}
		}
	},
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) { return stdlib.JSONDecodeFunc.Call(args) },
})

// indentFunc adds spaces to the start of each line but the first.
var indentFunc = bounded(stdlib.IndentFunc, func(args []cty.Value) (int, error) {
	spaces, text := args[0].AsBigFloat(), args[1].AsString()
	if spaces.Sign() < 0 || spaces.Cmp(big.NewFloat(maxText)) > 0 {
		return 0, fmt.Errorf("spaces must be 0 to %d", maxText)
	}
	each, _ := spaces.Int64()
	return len(text) + strings.Count(text, "\n")*int(each), nil
})

var powFunc = bounded(stdlib.PowFunc, func([]cty.Value) (int, error) { return 0, nil })

var sumFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "list", Type: cty.List(cty.Number)}},
	Type:   function.StaticReturnType(cty.Number),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		if args[0].LengthInt() == 0 {
			return cty.NilVal, function.NewArgErrorf(0, "an empty list has no sum")
		}
		sum := cty.Zero
		for it := args[0].ElementIterator(); it.Next(); {
			_, element := it.Element()
			if element.IsNull() {
				return cty.NilVal, function.NewArgErrorf(0, "it has an element that is null")
			}
			sum = sum.Add(element)
		}
		return sum, nil
	},
})

// oneFunc is the one element of a list or set, or null where there is none.
var oneFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "list", Type: cty.DynamicPseudoType}},
	Type: func(args []cty.Value) (cty.Type, error) {
		switch ty := args[0].Type(); {
		case ty.IsListType(), ty.IsSetType():
			return ty.ElementType(), nil
		case ty.IsTupleType() && ty.Length() == 0:
			return cty.DynamicPseudoType, nil
		case ty.IsTupleType() && ty.Length() == 1:
			return ty.TupleElementType(0), nil
		}
		return cty.NilType, function.NewArgErrorf(0, "it must be a list, set or tuple with one element or none")
	},
	Impl: func(args []cty.Value, ty cty.Type) (cty.Value, error) {
		switch args[0].LengthInt() {
		case 0:
			return cty.NullVal(ty), nil
		case 1:
			it := args[0].ElementIterator()
			it.Next()
			_, element := it.Element()
			return element, nil
		}
		return cty.NilVal, function.NewArgErrorf(0, "it must be a list, set or tuple with one element or none")
	},
})

// indexFunc is where a list has a value first.
var indexFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "list", Type: cty.DynamicPseudoType}, {Name: "value", Type: cty.DynamicPseudoType}},
	Type:   function.StaticReturnType(cty.Number),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		if ty := args[0].Type(); !ty.IsListType() && !ty.IsTupleType() {
			return cty.NilVal, function.NewArgErrorf(0, "it must be a list or tuple")
		}
		for it := args[0].ElementIterator(); it.Next(); {
			if i, element := it.Element(); element.RawEquals(args[1]) {
				return i, nil
			}
		}
		return cty.NilVal, function.NewArgErrorf(1, "the list doesn't have this value")
	},
})

// setProductFunc makes maxPairs combinations at most, and fewer of sets: those are compared
// in pairs, each by all of its elements.
var setProductFunc = bounded(stdlib.SetProductFunc, func(args []cty.Value) (int, error) {
	combinations, most := 1, maxPairs
	for _, arg := range args {
		if arg.Type().IsSetType() {
			most = maxPairs / 3
		}
		if isSequence(arg) {
			combinations = min(combinations*arg.LengthInt(), maxElements)
		}
	}
	if combinations > most {
		return 0, fmt.Errorf("at most %d combinations are allowed", most)
	}
	return 0, nil
})

// transposeFunc makes the elements of a map's lists its keys.
var transposeFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "map", Type: cty.Map(cty.List(cty.String))}},
	Type:   function.StaticReturnType(cty.Map(cty.List(cty.String))),
	Impl: func(args []cty.Value, ty cty.Type) (cty.Value, error) {
		lists := map[string][]cty.Value{}
		for it := args[0].ElementIterator(); it.Next(); {
			key, list := it.Element()
			if list.IsNull() || !noNulls(list) {
				return cty.NilVal, function.NewArgErrorf(0, "it has a list or an element that is null")
			}
			for elements := list.ElementIterator(); elements.Next(); {
				_, element := elements.Element()
				lists[element.AsString()] = append(lists[element.AsString()], key)
			}
		}
		if len(lists) == 0 {
			return cty.MapValEmpty(ty.ElementType()), nil
		}
		values := map[string]cty.Value{}
		for key, list := range lists {
			values[key] = cty.ListVal(list)
		}
		return cty.MapVal(values), nil
	},
})

// maxMatching is how many instructions a regular expression may need for a text: each of its
// own for each byte.
const maxMatching = 10_000_000

// compile makes a pattern ready for a text, or says that both are too long.
func compile(pattern, text string) (*regexp.Regexp, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("the pattern is invalid: %w", err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, fmt.Errorf("the pattern is invalid: %w", err)
	}
	if len(program.Inst)*(1+len(text)) > maxMatching {
		return nil, errors.New("the pattern and the text are too long")
	}
	compiled, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("the pattern is invalid: %w", err)
	}
	// Every group of every match is remembered.
	if most := maxElements / (1 + compiled.NumSubexp()); len(compiled.FindAllStringIndex(text, most+1)) > most {
		return nil, fmt.Errorf("the pattern matches more than %d times", most)
	}
	return compiled, nil
}

func matching(f function.Function) function.Function {
	return bounded(f, func(args []cty.Value) (int, error) {
		_, err := compile(args[0].AsString(), args[1].AsString())
		return len(args[1].AsString()), err
	})
}
