package scripts

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPagesReadAsAnOutline has each page begin with what it is for, and use one level of
// headings below its title. What is generated is free.
func TestPagesReadAsAnOutline(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, pattern := range []string{"../README.md", "../CONTRIBUTING.md", "../docs/*.md", "../docs/*/*.md", "../charts/*/README.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(found), err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(page) == "CONTRACT.md" {
			continue
		}
		for _, problem := range outline(string(text)) {
			t.Errorf("%s: %s", page, problem)
		}
	}
}

// TestOutline shows what the rule refuses.
func TestOutline(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"# A\n\nThis page says a.\n\n## B\n\nb\n\n```sh\n### c\n```\n": "",
		"# A\n\n<!-- figures -->\n### B\n<!-- /figures -->\n":          "says nothing below its title",
		"# A\n\n## B\n":                          "says nothing below its title",
		"# A\n\nThis page says a.\n\n### B\n":    "has the heading ### B",
		"# A\n\nThis page says a.\n\n# B\n":      "has the heading # B",
		"This page says a.\n\n## B\n":            "has no title",
		"# A\n\nThis page.\n\n### B\n\n#### C\n": "has the heading ### B; has the heading #### C",
	} {
		if got := strings.Join(outline(text), "; "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// outline says what is wrong with the headings of a page.
func outline(page string) (problems []string) {
	page = blank(page, "(?ms)^ *```.*?^ *```", `(?s)<!-- (\w+) -->.*?<!-- /\w+ -->`)
	title, rest, _ := strings.Cut(page, "\n")
	if !strings.HasPrefix(title, "# ") {
		return []string{"has no title"}
	}
	if !regexp.MustCompile(`^\s*[A-Z]`).MatchString(rest) {
		problems = append(problems, "says nothing below its title")
	}
	for _, heading := range regexp.MustCompile(`(?m)^(?:#|###+) .+$`).FindAllString(rest, -1) {
		problems = append(problems, "has the heading "+heading)
	}
	return problems
}

// TestPagesThatAreReadWhole keeps the pages short that are read to the end.
func TestPagesThatAreReadWhole(t *testing.T) {
	t.Parallel()
	for page, most := range map[string]int{"../README.md": 1500, "../docs/ARCHITECTURE.md": 3000, "../docs/MCP.md": 1500} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if words := len(strings.Fields(string(text))); words > most {
			t.Errorf("%s has %d words, want %d at most", page, words, most)
		}
	}
}
