package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const page = "# Head\n\n<!-- figures -->\nold\n<!-- /figures -->\n\nBetween.\n\n<!-- missed -->\n<!-- /missed -->\n\nWhy.\n"

func TestDocsAreReplacedBetweenMarkers(t *testing.T) {
	t.Parallel()
	path := document(t, page)
	o := options{input: "testdata/bench.txt", docs: path}
	for range 2 { // the second finds the first's markers
		if err := run(t.Context(), o, nil, &bytes.Buffer{}, &bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
	}
	want := "# Head\n\n<!-- figures -->\n" + strings.TrimSpace(content(t, "testdata/page.md")) + "\n<!-- /figures -->\n\nBetween.\n\n<!-- missed -->\n" +
		strings.TrimSpace(content(t, "testdata/missed.md")) + "\n<!-- /missed -->\n\nWhy.\n"
	if got := content(t, path); got != want {
		t.Errorf("document = %s\nwant %s", got, want)
	}
}

func TestDocsWithoutMarkersStayAsTheyAre(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ page, want string }{
		"none":     {"# Head\n", "and, below it, <!-- /"},
		"no end":   {strings.Replace(page, "<!-- /missed -->", "", 1), "wants <!-- missed -->"},
		"twice":    {page + page, "each once"},
		"reversed": {"<!-- /figures -->\n<!-- figures -->\n<!-- /missed -->\n<!-- missed -->\n", "below it"},
	} {
		path := document(t, test.page)
		err := writeDocs(path, "figures", "missed")
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: writeDocs = %v, want %q and the path", name, err, test.want)
		}
		if got := content(t, path); got != test.page {
			t.Errorf("%s: document = %s, want it untouched", name, got)
		}
	}
}

// What a failed run has measured is shown and goes no further.
func TestAFailedRunWritesNothing(t *testing.T) {
	t.Parallel()
	path, out := document(t, page), bytes.Buffer{}
	input := content(t, filepath.Join("testdata", "bench.txt")) + "--- FAIL: BenchmarkFleet\n    x_test.go:1: rows are missing\nFAIL\n"
	err := run(t.Context(), options{docs: path}, strings.NewReader(input), &out, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "--- FAIL: BenchmarkFleet") {
		t.Errorf("run = %v, want what failed", err)
	}
	if !strings.Contains(out.String(), "| figure |") {
		t.Errorf("output = %s, want the tables", out.String())
	}
	if got := content(t, path); got != page {
		t.Errorf("document = %s, want it untouched", got)
	}
}

func document(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "PAGE.md")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
