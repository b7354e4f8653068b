package scripts

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// plainer are words that a reader stops at, with what to write. They are looked for in
// what people read: strings of Go, pages, scripts of pages, messages of SQL, Markdown.
var plainer = []struct{ word, write string }{
	{`anew`, "again"},
	{`beside`, "as well as, or next to"},
	{`lately`, "recently"},
	{`likewise`, "also"},
	{`thereby`, "so"},
	{`oftener`, "more often"},
	{`whoever`, "the person who, or anyone who"},
	{`deeds?`, "action"},
	{`mend(s|ed|ing)?`, "fix"},
	{`is to be had`, "is available"},
	{`(is|are) told of`, "is notified of"},
	{`has it looked for`, "checks for it"},
	{`of ours`, "our"},
	{`look(s|ed)? at`, "inspect, scan, check or review"},
	{`As before, and`, "what is different"},
	{`heard of`, "seen"},
	{`asked for by`, "started by"},
	{`awaits approval`, "needs approval"},
	{`cannot be taken back`, "can't be undone"},
	{`goes? on (when|as)`, "continues, or starts when"},
	{`by itself`, "automatically"},
	{`by other hands`, "outside Terraform"},
	{`is like that`, "matches"},
	{`nobody is told`, "no notifications"},
}

// plainReader finds those words.
func plainReader() *regexp.Regexp {
	all := make([]string, len(plainer))
	for i, p := range plainer {
		all[i] = p.word
	}
	return regexp.MustCompile(`(?i)\b(` + strings.Join(all, "|") + `)\b`)
}

// instead is what to write for a word that was found.
func instead(found string) string {
	for _, p := range plainer {
		if regexp.MustCompile(`(?i)^(` + p.word + `)$`).MatchString(found) {
			return p.write
		}
	}
	return ""
}

// TestPlainWords keeps out words that a reader stops at.
func TestPlainWords(t *testing.T) {
	t.Parallel()
	find := plainReader()
	for _, file := range tracked(t) {
		for _, s := range read(t, file) {
			for _, found := range find.FindAllString(s.text, -1) {
				t.Errorf("%s:%d: %q: write %s", file, s.line, strings.TrimSpace(clip(s.text, found)), instead(found))
			}
		}
	}
}

// TestPlainWordsAreFound shows that each kind of file is read.
func TestPlainWordsAreFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.go":   "package a\n\n// anew: comments are not strings\nvar s = \"start it anew\"\n",
		"a.html": "{{/* anew */}}<p title=\"{{.Anew}}\">start it anew</p>",
		"a.js":   "// anew\nconst s = \"start it anew\";\n",
		"a.sql":  "-- anew\nSELECT 'start it anew';\n",
		"a.md":   "Start it anew.\n\n```\nanew\n```\n`anew`\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, s := range read(t, path) {
			found = append(found, plainReader().FindAllString(s.text, -1)...)
		}
		if len(found) != 1 || instead(found[0]) != "again" {
			t.Errorf("%s: found %q, want the one word that people read", name, found)
		}
	}
}

// said is a text for people.
type said struct {
	line int
	text string
}

// tracked are the files that people read something of.
func tracked(t *testing.T) (files []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "ls-files", "--full-name", "..").Output()
	if err != nil {
		t.Fatal(err)
	}
	skip := regexp.MustCompile(`_test\.go$|/testkit/|/testdata/|/vendor(ed)?/|^e2e/|^scripts/|^sql/migrations/(old|0004[01])|^docs/(CONTRACT|PERFORMANCE)\.md$|^internal/testkit/recorded|^internal/agent/uids\.go$`)
	for _, file := range strings.Fields(string(out)) {
		if regexp.MustCompile(`\.(go|html|js|sql|md)$`).MatchString(file) && !skip.MatchString(file) {
			files = append(files, filepath.Join("..", file))
		}
	}
	if len(files) < 300 {
		t.Fatalf("%d files to read, want hundreds", len(files))
	}
	return files
}

// read takes from a file what people read.
func read(t *testing.T, path string) []said {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	switch filepath.Ext(path) {
	case ".go":
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, content, 0)
		if err != nil {
			t.Fatal(err)
		}
		var all []said
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				all = append(all, said{set.Position(lit.Pos()).Line, lit.Value})
			}
			return true
		})
		return all
	case ".html":
		text = blank(text, `(?s)\{\{/\*.*?\*/\}\}`, `\{\{[^"}]*\}\}`, `(?s)<style.*?</style>`)
	case ".js":
		text = only(blank(text, `(?m)^\s*//.*$|\s// .*$`, `(?s)/\*.*?\*/`), `"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`+"`[^`]*`")
	case ".sql":
		text = only(blank(text, `(?m)--.*$`), `'(?:[^']|'')*'`)
	case ".md":
		text = blank(text, "(?ms)^ *```.*?^ *```", "`[^`\n]*`", `\]\([^)]*\)`)
	}
	var all []said
	for i, line := range strings.Split(text, "\n") {
		all = append(all, said{i + 1, line})
	}
	return all
}

// blank takes out what matches, and keeps the lines.
func blank(text string, patterns ...string) string {
	for _, p := range patterns {
		text = regexp.MustCompile(p).ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	}
	return text
}

// only keeps what matches, and the lines.
func only(text, pattern string) string {
	var b strings.Builder
	at := 0
	for _, m := range regexp.MustCompile(pattern).FindAllStringIndex(text, -1) {
		b.WriteString(strings.Repeat("\n", strings.Count(text[at:m[0]], "\n")) + " " + text[m[0]:m[1]])
		at = m[1]
	}
	return b.String()
}

// clip is the part of a text around what was found.
func clip(text, found string) string {
	at := strings.Index(text, found)
	return fmt.Sprintf("%.120s", text[max(0, at-40):min(len(text), at+len(found)+40)])
}
