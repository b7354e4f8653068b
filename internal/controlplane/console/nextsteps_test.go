package console

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// declaredCodes are the constants of type provision.Code, as the source has them.
func declaredCodes(t *testing.T) []provision.Code {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../provision/failure.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var codes []provision.Code
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Code" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes = append(codes, provision.Code(value))
		}
		return true
	})
	return codes
}

// Each way to fail says what to do, and so does each reason to wait.
func TestNextStepForEachCodeAndReason(t *testing.T) {
	t.Parallel()
	codes := declaredCodes(t)
	if len(codes) < 30 {
		t.Fatalf("package provision declares %d codes, want them all to be found", len(codes))
	}
	for _, code := range codes {
		if step := nextSteps[code]; step.What == "" || !strings.HasSuffix(step.Do, ".") {
			t.Errorf("nextSteps[%q] = %+v, want what happened and a sentence of what to do", code, step)
		}
	}
	if len(nextSteps) != len(codes) {
		t.Errorf("nextSteps has %d entries, want one for each of %d codes", len(nextSteps), len(codes))
	}
	source, err := os.ReadFile("../../../sql/migrations/00021_waiting.sql")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`RETURN QUERY SELECT(?: CASE[^\n]*?THEN)? '([a-z_]+)'(?: ELSE '([a-z_]+)')?`).FindAllStringSubmatch(string(source), -1)
	if len(found) < 12 {
		t.Fatalf("why_waiting has %d reasons, want them all to be found", len(found))
	}
	for _, match := range found {
		for _, reason := range match[1:] {
			if reason != "" && waitSteps[reason] == "" {
				t.Errorf("waitSteps[%q] is missing", reason)
			}
		}
	}
	if got := next("of_a_newer_agent"); got.What != "Of a newer agent" || got.Do == "" {
		t.Errorf("next() of an unknown code = %+v, want its own words", got)
	}
}
