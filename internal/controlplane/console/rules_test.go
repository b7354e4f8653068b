package console_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// What the Content-Security-Policy forbids, a browser ignores without a word to
// the reader: so it is refused here.
func TestTemplatesHaveNothingInline(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*/*.html")
	if err != nil || len(files) < 5 {
		t.Fatalf("Glob(*/*.html) = %d files, %v, want them all", len(files), err)
	}
	forbidden := map[string]*regexp.Regexp{
		"an inline script":      regexp.MustCompile(`(?i)<script(?:\s+[^>]*)?>\s*[^<\s]|<script(?:\s+(?:defer|async|type="[^"]*"))*\s*>`),
		"an inline style":       regexp.MustCompile(`(?i)<style|\sstyle\s*=`),
		"an event handler":      regexp.MustCompile(`(?i)\s(?:on[a-z]+|hx-on[^=\s]*|hx-vals)\s*=`),
		"a javascript: address": regexp.MustCompile(`(?i)javascript:`),
		"an htmx filter":        regexp.MustCompile(`hx-trigger="[^"]*\[`),
		"a foreign address":     regexp.MustCompile(`(?i)(?:src|<link[^>]*href)="(?:https?:)?//`),
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for what, pattern := range forbidden {
			if found := pattern.Find(content); found != nil {
				t.Errorf("%s has %s: %s", file, what, found)
			}
		}
	}
}
