package main

import (
	"fmt"
	"os"
	"strings"
)

// writeDocs replaces what the document says of the figures. The rest of it is
// written by people.
func writeDocs(path string, now, before *measured) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the document: %w", err)
	}
	document := string(text)
	for _, part := range []struct{ name, text string }{
		{"figures", now.where() + tables(groups, now, before)},
		{"missed", missed(groups, now)},
	} {
		if document, err = replaced(document, part.name, part.text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := os.WriteFile(path, []byte(document), 0o644); err != nil { //nolint:gosec // a page of the documentation
		return fmt.Errorf("writing the document: %w", err)
	}
	return nil
}

// replaced puts a text between <!-- name --> and <!-- /name -->.
func replaced(document, name, text string) (string, error) {
	begin, end := "<!-- "+name+" -->", "<!-- /"+name+" -->"
	if strings.Count(document, begin) != 1 || strings.Count(document, end) != 1 {
		return "", fmt.Errorf("wants %s and, below it, %s, each once", begin, end)
	}
	before, rest, _ := strings.Cut(document, begin)
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		return "", fmt.Errorf("has %s above %s", end, begin)
	}
	return before + begin + "\n" + strings.TrimSpace(text) + "\n" + end + after, nil
}
