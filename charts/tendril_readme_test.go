package charts

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What people copy from a README must work.
func TestAgentReadmeExamples(t *testing.T) {
	t.Parallel()
	examples := blocks(t, "tendril/README.md", "yaml")
	if len(examples) < 2 {
		t.Fatalf("tendril/README.md has %d examples of values, want them", len(examples))
	}
	for _, values := range examples {
		if !strings.HasPrefix(values, "cluster:") { // a part of some
			values = three + values
		}
		rendered, complaint := agentChart.template(t, values)
		if complaint != "" {
			t.Errorf("the chart refuses values of its README: %s\n%s", complaint, values)
			continue
		}
		if _, err := start(t, decode(t, rendered)); err != nil {
			t.Errorf("the agent refuses values of the chart's README: %v\n%s", err, values)
		}
	}
}

// blocks returns the fenced blocks of a language.
func blocks(t *testing.T, file, language string) (found []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		found = append(found, block[1])
	}
	return found
}
