package pages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEveryCommandIsRun fails for a block of commands, or a command within a line, that no
// test asks for, and for a test that asks for one that is not there.
func TestEveryCommandIsRun(t *testing.T) {
	t.Parallel()
	blocksAsked, codeAsked := askedFor(t)
	checked, texts, within := 0, "", map[string]string{}
	for _, page := range tracked(t, "*.md") {
		if page == "CHANGELOG.md" || strings.Contains(page, "testdata/") {
			continue
		}
		content := read(t, page)
		blocks := blocksOf(content)
		run := map[block]bool{}
		for _, words := range blocksAsked[page] {
			b, err := find(blocks, words)
			if err != nil {
				t.Errorf("%s: a test asks for what is not there: %v", page, err)
			}
			run[b] = true
			texts += "\n" + b.text
		}
		delete(blocksAsked, page)
		for _, b := range blocks {
			switch {
			case b.language == "":
				t.Errorf("%s: say by a language what this is, text for no commands:\n%s", page, b.text)
			case b.language == "text" && command.MatchString(b.text):
				t.Errorf("%s: this has commands: mark it as sh, and have a test run it:\n%s", page, b.text)
			case b.hasCommands() && !run[b]:
				t.Errorf("%s: no test runs this: take it by pages.Block in one that does:\n%s", page, b.text)
			case b.hasCommands():
				checked++
			}
		}
		all := codeOf(content)
		for _, code := range codeAsked[page] {
			if !slices.Contains(all, code) {
				t.Errorf("%s: a test asks for `%s`, which is not there", page, code)
			}
			texts += "\n" + code + "\n"
		}
		for _, code := range all {
			if complete.MatchString(code) && !strings.Contains(code, "(…)") {
				within[code] = page
			}
		}
	}
	for page := range blocksAsked {
		t.Errorf("a test asks for commands of %s, which is no page", page)
	}
	for code, page := range within { // on each page, or in a block
		if !strings.Contains(texts, "\n"+code+"\n") {
			t.Errorf("%s: no test runs `%s`: take it by pages.Code in one that does", page, code)
		}
	}
	if checked < 35 || len(within) < 25 {
		t.Errorf("%d blocks of commands and %d within lines were found, want them all", checked, len(within))
	}
}

// complete is a command within a line that people type as it stands but for what is in
// capitals. Without arguments it only names the command.
var complete = regexp.MustCompile(`^(trellis|tendril) .*( [A-Z]+\b| prod\b| > |\.example$)|^SELECT \S|^UPDATE [a-z]`)

// command begins a line that people type.
var command = regexp.MustCompile(`(?m)^(\S+/)?(age|docker|git|go|helm|kubectl|make|pg_\w+|psql|sha256sum|tendril|trellis) `)

// askedFor are the words by which tests ask for the blocks and the code of each page.
func askedFor(t *testing.T) (blocks, code map[string][]string) {
	t.Helper()
	blocks, code = map[string][]string{}, map[string][]string{}
	asked := map[string]map[string][]string{"Block": blocks, "Code": code}
	for _, name := range tracked(t, "*_test.go") {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root(), name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is {
				return true
			}
			of, is := call.Fun.(*ast.SelectorExpr)
			if !is || asked[of.Sel.Name] == nil || !isPages(of.X) {
				return true
			}
			page, words := literal(call.Args[1]), literal(call.Args[2])
			if page == "" || words == "" {
				t.Errorf("%s: pages.%s gets a page and words that are no literals", name, of.Sel.Name)
			}
			asked[of.Sel.Name][page] = append(asked[of.Sel.Name][page], words)
			return true
		})
	}
	return blocks, code
}

func isPages(x ast.Expr) bool {
	name, is := x.(*ast.Ident)
	return is && name.Name == "pages"
}

// literal is the value of a string, "" where it is not written there.
func literal(x ast.Expr) string {
	text, is := x.(*ast.BasicLit)
	if !is {
		return ""
	}
	value, err := strconv.Unquote(text.Value)
	if err != nil {
		return ""
	}
	return value
}

// tracked are the files with such a name, new ones as well.
func tracked(t *testing.T, pattern string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard", "--", pattern)
	cmd.Dir = root()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	files := strings.Fields(string(out))
	return slices.DeleteFunc(files, func(name string) bool { // removed, and not yet from the index
		_, err := os.Stat(filepath.Join(root(), name))
		return err != nil
	})
}

// TestFind shows how a block is chosen.
func TestFind(t *testing.T) {
	t.Parallel()
	blocks := blocksOf("# A\n\n```sh\nmake up\n```\n\n```sh\nmake up ARGS=a\nmake down\n```\n\n```text\nmake all\n```\n\n```sh\nmake it\n```\n```sh\nmake it\n```\n")
	for words, want := range map[string]string{
		"make up": "make up\n", "make up ARGS": "make up ARGS=a\nmake down\n", "make down": "make up ARGS=a\nmake down\n",
		"make all": "", "make it": "", "make": "", "down": "",
	} {
		if got, err := find(blocks, words); got.text != want || (err == nil) != (want != "") {
			t.Errorf("find(%q) = %q, %v, want %q", words, got.text, err, want)
		}
	}
}
