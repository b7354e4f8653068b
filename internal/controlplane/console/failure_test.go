package console

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
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
	said := regexp.MustCompile(`(?s)^<h2>([^<]+)</h2>\n<pre class="said" tabindex="0">why</pre>\n<p><strong>What to do:</strong> (.*\.)</p>$`)
	const fallback = "Fix the error in the log and deploy again."
	for _, code := range codes {
		if got := said.FindStringSubmatch(rendered(t, "failure", failure{Code: string(code), Message: "why"})); got == nil || got[2] == fallback {
			t.Errorf("components/failure.html says %q of %s, want what happened and what to do", got, code)
		}
	}
	source, err := os.ReadFile("components/failure.html")
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(source), "eq .Code"); lines != len(codes) {
		t.Errorf("components/failure.html has %d lines, want one for each of %d codes", lines, len(codes))
	}
	if got := said.FindStringSubmatch(rendered(t, "failure", failure{Code: "of_a_newer_agent", Message: "why"})); got == nil || got[1] != "Of a newer agent" || got[2] != fallback {
		t.Errorf("components/failure.html says %q of an unknown code, want its own words", got)
	}

	if source, err = os.ReadFile("../../../sql/functions/waiting.sql"); err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`RETURN QUERY SELECT(?: CASE[^\n]*?THEN)? '([a-z_]+)'(?: ELSE '([a-z_]+)')?`).FindAllStringSubmatch(string(source), -1)
	if len(found) < 12 {
		t.Fatalf("why_waiting has %d reasons, want them all to be found", len(found))
	}
	for _, match := range found {
		for _, reason := range match[1:] {
			if reason != "" && rendered(t, "waiting-step", wait{Reason: reason}) == "" {
				t.Errorf("components/waiting.html does not say what ends %s", reason)
			}
		}
	}
}

// Each flash that Go code names has its words.
func TestFlashWords(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`(?:done|noted)\("([a-z-]+)"`)
	found := map[string]bool{"refused": true}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(source), -1) {
			found[m[1]] = true
			if words := rendered(t, "flash-words", &flash{"success", m[1], []string{"A", "B"}}); !strings.HasSuffix(words, ".") {
				t.Errorf("%s: components/flash.html says %q of %s, want a sentence", file, words, m[1])
			}
		}
	}
	source, err := os.ReadFile("components/flash.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`eq \.Said "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1) {
		if !found[m[1]] {
			t.Errorf("components/flash.html has words for %s, which no code names", m[1])
		}
	}
}

// Each refusal that Go code makes is in the table, with as many names as it takes.
func TestOwnRefusals(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`refuse\("([a-z_]+)"(, )?`).FindAllStringSubmatch(string(source), -1) {
			row, known := ownRefusals[m[1]]
			if takes := strings.Contains(row[1]+row[2], "%s"); !known || takes != (m[2] != "") {
				t.Errorf("%s refuses %s with a name %v, want a row that takes one: %q", file, m[1], m[2] != "", row)
			}
			made[m[1]] = true
		}
	}
	for reason := range ownRefusals {
		if !made[reason] {
			t.Errorf("ownRefusals has %s, which no code makes", reason)
		}
	}
}
