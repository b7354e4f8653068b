package console_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// generator makes types of Terraform and values, most of which fit.
type generator struct{ *rand.Rand }

func pick[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

// hclType is a type as a template writes it. Where all elements must become of
// one type, there is no any in it: only Terraform's libraries know what becomes
// of that.
func (g *generator) hclType(depth int, anywhere bool) string {
	if depth == 0 || g.IntN(3) == 0 {
		return pick(g, "string", "number", "bool")
	}
	kind := g.IntN(5)
	inner := func() string { return g.hclType(depth-1, anywhere && kind > 2) }
	switch kind {
	case 0:
		return "list(" + inner() + ")"
	case 1:
		return "map(" + inner() + ")"
	case 2:
		return "set(" + inner() + ")"
	case 3:
		return "tuple([" + inner() + ", " + inner() + "])"
	}
	return "object({\n a = " + inner() + "\n b_c = optional(" + inner() + ")\n d = " + pick(g, inner(), map[bool]string{true: "any", false: inner()}[anywhere]) + "\n})"
}

// value is one for a type in the notation of cty; now and then it does not fit.
func (g *generator) value(ty any) string {
	if g.IntN(12) == 0 {
		return g.json(1)
	}
	if g.IntN(20) == 0 {
		return "null"
	}
	several := func(of any) []string {
		var all []string
		for range g.IntN(3) {
			all = append(all, g.value(of))
		}
		return all
	}
	switch ty := ty.(type) {
	case string:
		switch ty {
		case "string":
			return g.string()
		case "number":
			return g.number()
		case "bool":
			return pick(g, "true", "false")
		}
		return g.json(2)
	case []any:
		switch ty[0] {
		case "list", "set":
			return "[" + strings.Join(several(ty[1]), ",") + "]"
		case "map":
			var rows []string
			for i, v := range several(ty[1]) {
				rows = append(rows, fmt.Sprintf("%q: %s", pick(g, "k", "with space", "ä", "__proto__")+fmt.Sprint(i), v))
			}
			return "{" + strings.Join(rows, ",") + "}"
		case "tuple":
			var items []string
			for _, item := range ty[1].([]any) {
				items = append(items, g.value(item))
			}
			return "[" + strings.Join(items[g.IntN(12)/11:], ",") + "]"
		}
		var members []string
		for _, name := range []string{"a", "b_c", "d", "unknown"} {
			of, known := ty[1].(map[string]any)[name]
			if g.IntN(12) == 0 && known || !known && g.IntN(4) > 0 {
				continue
			}
			members = append(members, fmt.Sprintf("%q: %s", name, g.value(of)))
		}
		return "{" + strings.Join(members, ",") + "}"
	}
	return g.json(1)
}

func (g *generator) string() string {
	text, _ := json.Marshal(pick(g, "", "a", "7", "007", "1e3", "-2.50", "true", "1", " 4", "two\nlines", "\"quoted\"", "ünï\u2028", strings.Repeat("long ", 30)))
	return string(text)
}

func (g *generator) number() string {
	return pick(g, "0", "-1", "12345678901234567890123", "0.1000", "1e3", "1E+2", "-0.5", `"12"`, `"x"`)
}

// json is any value.
func (g *generator) json(depth int) string {
	if depth > 0 && g.IntN(2) == 0 {
		var parts []string
		object := g.IntN(2) == 0
		for i := range g.IntN(3) {
			part := g.json(depth - 1)
			if object {
				part = fmt.Sprintf("%q : %s", fmt.Sprint("n", i), part)
			}
			parts = append(parts, part)
		}
		if object {
			return "{" + strings.Join(parts, ", ") + "}"
		}
		return "[" + strings.Join(parts, ",\n\t") + "]"
	}
	return pick(g, "null", "true", "false", g.string(), g.number())
}

// spoiled is a text with something put in, left out or nothing done to it.
func (g *generator) spoiled(text string) string {
	i := g.IntN(len(text) + 1)
	switch g.IntN(4) {
	case 0:
		return text[:i] + pick(g, ",", "]", "}", `"`, ":", "0", "-", ".", "e", " ", "x", "\\", "\n", "\t", "\f") + text[i:]
	case 1:
		if i < len(text) && text[i] < 0x80 {
			return text[:i] + text[i+1:]
		}
	}
	return text
}
