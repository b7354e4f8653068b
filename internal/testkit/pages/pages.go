// Package pages gives tests the commands of the documentation as it shows them, so that
// what people copy is what tests run.
//
// A page has commands in fenced blocks of the languages sh, sql and js. A test asks for one
// by the page and the beginning of one of its lines:
//
//	script := pages.Block(t, "docs/OPERATIONS.md", "pg_dump", "tendril.dump", dump)
//
// and replaces in it what stands for the reader's own, such as an address or an id. What
// it replaces must be there. Code gives the commands within a line in the same way. The
// package's own test reads the sources of all tests, those with the tag kube as well, and
// fails for what none asks for: so page and words must be literals.
//
// It must not know what the commands do, nor how they are run.
package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is one fenced block of a page.
type block struct{ language, text string }

// Block returns the one block of commands with a line that is, or else begins with, these
// words. Of the further arguments, each first is replaced by its second.
func Block(t testing.TB, page, words string, replace ...string) string {
	t.Helper()
	b, err := find(blocksOf(read(t, page)), words)
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	return replaced(t, page, b.text, replace)
}

// Code returns a command that the page has within a line, in backticks.
func Code(t testing.TB, page, command string, replace ...string) string {
	t.Helper()
	if !slices.Contains(codeOf(read(t, page)), command) {
		t.Fatalf("%s: there is no `%s`", page, command)
	}
	return replaced(t, page, command, replace)
}

func read(t testing.TB, page string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root(), filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func replaced(t testing.TB, page, text string, replace []string) string {
	t.Helper()
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			t.Fatalf("%s: there is no %q to replace in\n%s", page, replace[i], text)
		}
	}
	return strings.NewReplacer(replace...).Replace(text)
}

// Lines are the lines of a block of commands which people type at different times or in
// different places.
func Lines(text string) []string {
	return strings.Split(strings.TrimSuffix(strings.ReplaceAll(text, "\\\n", ""), "\n"), "\n")
}

// find chooses the block of commands with this line.
func find(blocks []block, words string) (found block, err error) {
	whole := 0
	var begun []block
	for _, b := range blocks {
		switch lines := "\n" + b.text; {
		case !b.hasCommands():
		case strings.Contains(lines, "\n"+words+"\n"):
			found = b
			whole++
		case strings.Contains(lines, "\n"+words):
			begun = append(begun, b)
		}
	}
	if whole == 0 && len(begun) == 1 {
		return begun[0], nil
	}
	if whole != 1 {
		return block{}, fmt.Errorf("%d blocks of commands have the line %q and %d a line that begins with it, want one", whole, words, len(begun))
	}
	return found, nil
}

// hasCommands says that people type or paste it. Other languages have tests of their own.
func (b block) hasCommands() bool {
	return b.language == "sh" || b.language == "sql" || b.language == "js"
}

var fence = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")

func blocksOf(page string) (found []block) {
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		found = append(found, block{m[1], m[2]})
	}
	return found
}

var inLine = regexp.MustCompile("`([^`\n]+)`")

// codeOf is all that a page has in backticks within its lines.
func codeOf(page string) (found []string) {
	for _, m := range inLine.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		found = append(found, m[1])
	}
	return found
}

// root is the directory of the module.
func root() string {
	dir, err := os.Getwd()
	for ; err == nil && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	return "" // no test can run outside of the module
}
