package provision

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"
)

// A code that is not listed would be counted as an unknown one.
func TestCodesListsEachOfThem(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "failure.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Code" {
			return true
		}
		declared++
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			t.Fatalf("%s is no text", spec.Names[0].Name)
		}
		value, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(Codes, Code(value)) {
			t.Errorf("Codes lacks %s", spec.Names[0].Name)
		}
		return true
	})
	if declared == 0 || declared != len(Codes) {
		t.Errorf("Codes has %d codes, want the %d that are declared", len(Codes), declared)
	}
}
