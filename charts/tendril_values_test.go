package charts

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/config"
)

func TestAgentValues(t *testing.T) {
	t.Parallel()
	testValues(t, agentChart)
}

// The value config takes the agent's keys and no others, and what the chart sets
// itself is named after a key that there is.
func TestAgentConfigKeys(t *testing.T) {
	t.Parallel()
	var keys []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|").FindAllStringSubmatch(config.Reference(), -1) {
		keys = append(keys, row[1])
	}
	var taken []string
	for path := range schemaOf(t, agentChart, func(path string) bool { return path == "config.git.hosts" || path == "config.state.config" }) {
		if key, ok := strings.CutPrefix(path, "config."); ok {
			taken = append(taken, key)
		}
	}
	for _, key := range keys {
		if !slices.Contains(taken, key) {
			t.Errorf("tendril/values.schema.json: config.%s: missing; the agent knows it, so add it there, and to tendril.ownKeys if a value of the chart sets it", key)
		}
	}
	for _, key := range taken {
		if !slices.Contains(keys, key) {
			t.Errorf("tendril/values.schema.json: config.%s: the agent knows no such key", key)
		}
	}
	template, err := os.ReadFile("tendril/templates/_validate.tpl")
	if err != nil {
		t.Fatal(err)
	}
	_, own, _ := strings.Cut(string(template), `{{- define "tendril.ownKeys" -}}`)
	own, _, _ = strings.Cut(own, "{{- end -}}")
	lines := strings.Split(strings.TrimSpace(own), "\n")
	if len(lines) < 20 {
		t.Fatalf("tendril.ownKeys has %d lines: %s", len(lines), own)
	}
	for _, line := range lines {
		if key, _, _ := strings.Cut(line, ":"); !slices.Contains(keys, key) {
			t.Errorf("tendril.ownKeys: %s: the agent knows no such key", key)
		}
	}
}
