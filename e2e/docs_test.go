package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pages"
)

// rowsOf returns the first cells, in backticks, of the tables in one section of a
// page.
func rowsOf(t *testing.T, page, section string) []string {
	t.Helper()
	_, text, found := strings.Cut(page, "\n## "+section+"\n")
	if !found {
		t.Fatalf("there is no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var cells []string
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(text, -1) {
		cells = append(cells, match[1])
	}
	return cells
}

// Whatever a provision can end with, or wait for, can be looked up.
func TestTroubleshootingKnowsEachCodeAndReason(t *testing.T) {
	t.Parallel()
	page := readFile(t, filepath.Join("..", "docs", "TROUBLESHOOTING.md"))
	var codes, reasons []string
	for _, match := range regexp.MustCompile(`Code\w+\s+Code = "([a-z_]+)"`).FindAllStringSubmatch(readFile(t, filepath.Join("..", "internal", "provision", "failure.go")), -1) {
		codes = append(codes, match[1])
	}
	for _, match := range regexp.MustCompile(`if eq \.Reason "([a-z_]+)"`).FindAllStringSubmatch(waitingSteps(t), -1) {
		reasons = append(reasons, match[1])
	}
	for _, c := range []struct {
		section string
		want    []string
		least   int
	}{{"A run has failed", codes, 30}, {"A run does not start", reasons, 12}} {
		got := rowsOf(t, page, c.section)
		slices.Sort(got)
		slices.Sort(c.want)
		if len(c.want) < c.least || !slices.Equal(got, c.want) {
			t.Errorf("%q has %d rows %q, want one for each of %d: %q", c.section, len(got), got, len(c.want), c.want)
		}
	}
}

// waitingSteps is the template with a line for each reason to wait.
func waitingSteps(t *testing.T) string {
	t.Helper()
	_, steps, _ := strings.Cut(readFile(t, filepath.Join("..", "internal", "controlplane", "console", "components", "waiting.html")), `{{define "waiting-step" -}}`)
	steps, _, _ = strings.Cut(steps, `{{define `)
	return steps
}

// allPages are the pages of the documentation.
func allPages(t *testing.T) (pages []string) {
	t.Helper()
	for _, pattern := range []string{"../README.md", "../CONTRIBUTING.md", "../docs/*.md", "../docs/*/*.md", "../charts/*/README.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(found), err)
		}
		pages = append(pages, found...)
	}
	return pages
}

// A link within the documentation leads to a file and a heading that are there.
func TestLinksWithinTheDocumentation(t *testing.T) {
	t.Parallel()
	pages := allPages(t)
	links := 0
	for _, page := range pages {
		for _, match := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(readFile(t, page), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(match[1], "#")
			to := page
			if file != "" {
				to = filepath.Join(filepath.Dir(page), file)
			}
			if found, err := filepath.Glob(to); err != nil || len(found) != 1 {
				t.Errorf("%s links to %s, which is not there", page, match[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(readFile(t, to)), anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", page, match[1], to)
			}
		}
	}
	if links < 20 {
		t.Errorf("%d links were found in %d pages, want them all", links, len(pages))
	}
}

// What a page says in a line about make, go test, scripts and tests can be done: make
// accepts it, and each pattern and name leads to a test.
func TestDocumentedTestsExist(t *testing.T) {
	t.Parallel()
	all, checked, made := tests(t), 0, map[string]bool{}
	for _, page := range allPages(t) {
		text := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(readFile(t, page), "")
		for _, match := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(text, -1) {
			code := match[1]
			if strings.HasPrefix(code, "make ") && !made[code] {
				made[code] = true
				typist{t: t, dir: "..", env: append(os.Environ(), "MAKEFLAGS=")}.run(strings.Replace(code, "make", "make --dry-run", 1))
			}
			if run := regexp.MustCompile(`^go test \./(\S+)(?: -run '?([^' ]+))?`).FindStringSubmatch(code); run != nil {
				for pattern := range strings.SplitSeq(run[2], "|") {
					if checked++; !has(all, run[1], pattern) {
						t.Errorf("%s names %q, and %q is no test there", page, code, pattern)
					}
				}
			}
			if bench := regexp.MustCompile(`BENCH='?(\w+)`).FindStringSubmatch(code); bench != nil && !has(all, "e2e/bench", "^Benchmark.*"+bench[1]) {
				t.Errorf("%s names %q, and no benchmark is called so", page, code)
			}
			for _, name := range regexp.MustCompile(`\b(?:Test|Benchmark|Fuzz)[A-Z]\w+`).FindAllString(code, -1) {
				if checked++; !has(all, "...", "^"+name) {
					t.Errorf("%s names %s, and no test is called so", page, name)
				}
			}
			for _, name := range regexp.MustCompile(`scripts/[a-z-]+\.sh`).FindAllString(code, -1) {
				if checked++; len(readFile(t, filepath.Join("..", name))) == 0 {
					t.Errorf("%s names %s, which is empty", page, name)
				}
			}
		}
	}
	typist{t: t, dir: "..", env: append(os.Environ(), "MAKEFLAGS=")}.run(pages.Block(t, "docs/PERFORMANCE.md", "make bench", "make ", "make --dry-run "))
	if checked < 30 || len(made) < 15 {
		t.Errorf("%d names and %d lines with make were found, want them all", checked, len(made))
	}
}

// has says whether a package, or with ... one below it, has a test with such a name.
func has(tests []string, pkg, pattern string) bool {
	above, below := strings.CutSuffix(pkg, "...")
	name := regexp.MustCompile(pattern)
	return slices.ContainsFunc(tests, func(test string) bool {
		dir, called, _ := strings.Cut(test, ".")
		return (dir == pkg || below && strings.HasPrefix(dir+"/", above)) && name.MatchString(called)
	})
}

// tests are all tests, benchmarks and fuzz targets, as DIRECTORY.NAME.
func tests(t *testing.T) (all []string) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != ".." {
			return nil // another package's tests have removed it
		}
		if err != nil {
			return err
		}
		if hidden := strings.HasPrefix(entry.Name(), ".") && path != ".."; entry.IsDir() && hidden {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, "_test.go") {
			dir := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")
			for _, match := range regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)\(\w+ \*testing\.[TBF]\)`).FindAllStringSubmatch(readFile(t, path), -1) {
				all = append(all, dir+"."+match[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// anchors are the headings of a page as links name them.
func anchors(page string) []string {
	var all []string
	for _, match := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(page, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(match[1]), "")
		all = append(all, strings.ReplaceAll(name, " ", "-"))
	}
	return all
}

// What is said to stop a threat is shown by tests that are there, whichever
// package has them.
func TestThreatsAreHeldByTests(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	for _, test := range tests(t) {
		_, name, _ := strings.Cut(test, ".")
		there[name] = true
	}
	_, text, _ := strings.Cut(readFile(t, filepath.Join("..", "docs", "SECURITY.md")), "\n## Threats\n")
	text, _, _ = strings.Cut(text, "\n## ")
	threats := 0
	for _, row := range regexp.MustCompile(`(?m)^\| .*\|$`).FindAllString(text, -1)[1:] { // without the heading
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		names := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(cells) != 4 || len(names) == 0 {
			t.Errorf("want four cells, the last with tests, in %s", row)
		}
		for _, name := range names {
			if !there[name[1]] {
				t.Errorf("there is no %s, which is to show of %s", name[1], row)
			}
		}
		threats++
	}
	if threats < 15 {
		t.Errorf("%d threats were found, want them all", threats)
	}
}
