package e2e

import (
	"errors"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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
	for _, match := range regexp.MustCompile(`(?m)^\t"([a-z_]+)":\s+"`).FindAllStringSubmatch(readFile(t, filepath.Join("..", "internal", "controlplane", "console", "nextsteps.go")), -1) {
		reasons = append(reasons, match[1])
	}
	for _, c := range []struct {
		section string
		want    []string
		least   int
	}{{"A provision has failed", codes, 30}, {"A provision does not start", reasons, 12}} {
		got := rowsOf(t, page, c.section)
		slices.Sort(got)
		slices.Sort(c.want)
		if len(c.want) < c.least || !slices.Equal(got, c.want) {
			t.Errorf("%q has %d rows %q, want one for each of %d: %q", c.section, len(got), got, len(c.want), c.want)
		}
	}
}

// A link within the documentation leads to a file and a heading that are there.
func TestLinksWithinTheDocumentation(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	charts, err := filepath.Glob("../charts/*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(append(append(pages, more...), charts...), "../README.md")
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
			for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllStringSubmatch(readFile(t, path), -1) {
				there[match[1]] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(readFile(t, filepath.Join("..", "docs", "SECURITY.md")), "\n## Threats\n")
	text, _, _ = strings.Cut(text, "\n### ")
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
