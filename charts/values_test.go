package charts

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// value is one that a chart's values.yaml explains.
type value struct{ path, standard, about string }

// documented lists them in order. A table that has a comment of its own is one
// value; else what is in it is.
func documented(t *testing.T, c chart) (all []value) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(string(c), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	var walk func(prefix string, table *yaml.Node)
	walk = func(prefix string, table *yaml.Node) {
		for i := 0; i+1 < len(table.Content); i += 2 {
			key, at := table.Content[i], table.Content[i+1]
			path := prefix + key.Value
			if at.Kind == yaml.MappingNode && key.HeadComment == "" {
				walk(path+".", at)
				continue
			}
			about := strings.TrimSpace(strings.ReplaceAll(strings.TrimPrefix(key.HeadComment, "# "), "\n# ", " "))
			if about == "" {
				t.Errorf("%s/values.yaml: %s: has no comment that says what it is", c, path)
			}
			all = append(all, value{path, standard(t, at), about})
		}
	}
	walk("", document.Content[0])
	return all
}

// standard is a default as a README shows it.
func standard(t *testing.T, at *yaml.Node) string {
	t.Helper()
	var v any
	if err := at.Decode(&v); err != nil {
		t.Fatal(err)
	}
	if text, ok := v.(string); ok && text == "" {
		return ""
	}
	if text, ok := v.(string); ok {
		return "`" + text + "`"
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return "`" + string(text) + "`"
}

var valuesTable = regexp.MustCompile(`(?s)(<!-- values: begin -->\n).*(<!-- values: end -->)`)

// testValues holds the README's table and the schema against values.yaml.
func testValues(t *testing.T, c chart) {
	values := documented(t, c)
	var table strings.Builder
	table.WriteString("| value | default | what it is |\n|---|---|---|\n")
	for _, v := range values {
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", v.path, v.standard, strings.ReplaceAll(v.about, "|", `\|`))
	}
	readme := filepath.Join(string(c), "README.md")
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	if !valuesTable.Match(text) {
		t.Fatalf("%s has no place for the values, between <!-- values: begin --> and <!-- values: end -->", readme)
	}
	compare(t, readme, valuesTable.ReplaceAllStringFunc(string(text), func(string) string {
		return "<!-- values: begin -->\n" + table.String() + "<!-- values: end -->"
	}))

	var leaves []string
	for _, v := range values {
		leaves = append(leaves, v.path)
	}
	undescribed := slices.Clone(leaves)
	for path := range schemaOf(t, c, func(path string) bool { return slices.Contains(leaves, path) }) {
		if i := slices.Index(undescribed, path); i >= 0 {
			undescribed = slices.Delete(undescribed, i, i+1)
		} else if path != "global" && path != "enabled" { // a parent chart may have them
			t.Errorf("%s/values.schema.json: %s: is not in values.yaml", c, path)
		}
	}
	for _, path := range undescribed {
		t.Errorf("%s/values.schema.json: %s: missing, so it cannot be set", c, path)
	}
}

// schemaOf yields the paths of a chart's schema, down to those that stop, and
// wants each table to say whether it takes keys that it does not name.
func schemaOf(t *testing.T, c chart, stop func(path string) bool) map[string]bool {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(string(c), "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatalf("%s/values.schema.json: %v", c, err)
	}
	paths := map[string]bool{}
	var walk func(path string, schema map[string]any)
	walk = func(path string, schema map[string]any) {
		if _, said := schema["additionalProperties"]; schema["type"] == "object" && !said {
			t.Errorf("%s/values.schema.json: %s: is an object without additionalProperties, which takes every typo", c, path)
		}
		for _, inner := range []string{"items", "additionalProperties"} {
			if of, ok := schema[inner].(map[string]any); ok {
				walk(path+"[]", of)
			}
		}
		properties, _ := schema["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			property, _ := properties[name].(map[string]any)
			walk(strings.TrimPrefix(path+"."+name, "."), property)
		}
		inList := strings.Contains(path, "[]")
		if path != "" && !inList && (len(properties) == 0 || stop(path)) {
			paths[path] = true
		}
	}
	walk("", schema)
	for path := range paths { // what is within a leaf is not a path of its own
		for parent := path; strings.Contains(parent, "."); {
			parent = parent[:strings.LastIndex(parent, ".")]
			if stop(parent) {
				delete(paths, path)
			}
		}
	}
	return paths
}
