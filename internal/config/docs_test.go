package config

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What people copy from a page into the agent's configuration has keys and values that
// exist. Files that the page names need not.
func TestDocumentedConfiguration(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range regexp.MustCompile("(?ms)^```toml\n(.*?)^```$").FindAllSubmatch(text, -1) {
			blocks++
			_, err := Load(write(t, "tendril.toml", string(block[1]), 0o600), minimal())
			if invalid, ok := errors.AsType[*Invalid](err); ok {
				for _, problem := range invalid.Problems {
					if !strings.Contains(problem, "no such file") && !strings.Contains(problem, "is no file that can be read") {
						t.Errorf("%s: %s in\n%s", page, problem, block[1])
					}
				}
			} else if err != nil {
				t.Errorf("%s: %v in\n%s", page, err, block[1])
			}
		}
	}
	if blocks < 4 {
		t.Errorf("%d blocks were found, want them all", blocks)
	}
}
