package charts

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// Each value has a default, a schema and a line in the README, and nothing has
// those that is no value.
func TestTrellisValuesAreDocumented(t *testing.T) {
	t.Parallel()
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(string(trellis), name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	var defaults, schema map[string]any
	if err := yaml.Unmarshal(read("values.yaml"), &defaults); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(read("values.schema.json"), &schema); err != nil {
		t.Fatal(err)
	}
	given, allowed := valuesOf("", defaults, schema, schema), declaredOf("", schema, schema)
	for _, value := range given {
		if !slices.Contains(allowed, value) {
			t.Errorf("values.yaml has %s, which the schema refuses", value)
		}
	}
	readme := string(read("README.md"))
	for _, value := range allowed {
		if !slices.Contains(given, value) && value != "global" { // Helm's own
			t.Errorf("the schema has %s, of which values.yaml says nothing", value)
		}
		// A line may have several, which share what stands before their last dot.
		top, _, _ := strings.Cut(value, ".")
		last := value[strings.LastIndex(value, ".")+1:]
		documented := slices.ContainsFunc(strings.Split(readme, "\n"), func(line string) bool {
			name, row := strings.CutPrefix(line, "| `")
			name, _, _ = strings.Cut(name, " | ")
			return row && strings.Contains("`"+name, "`"+top) && (strings.Contains(name, last) || strings.Contains(line, "`"+last+"`"))
		})
		if !documented && value != "global" {
			t.Errorf("the README's table lacks %s", value)
		}
	}
}

// valuesOf are the paths of the values in defaults: a map whose keys the schema
// does not name is one.
func valuesOf(path string, defaults map[string]any, schema, root map[string]any) (paths []string) {
	for key, value := range defaults {
		at := strings.TrimPrefix(path+"."+key, ".")
		below, _ := value.(map[string]any)
		if property, ok := propertyOf(schema, key, root); ok && property["properties"] != nil && below != nil {
			paths = append(paths, valuesOf(at, below, property, root)...)
		} else {
			paths = append(paths, at)
		}
	}
	return paths
}

// declaredOf are the paths of the values in a schema.
func declaredOf(path string, schema, root map[string]any) (paths []string) {
	properties, _ := schema["properties"].(map[string]any)
	for key := range properties {
		at := strings.TrimPrefix(path+"."+key, ".")
		if property, _ := propertyOf(schema, key, root); property["properties"] != nil {
			paths = append(paths, declaredOf(at, property, root)...)
		} else {
			paths = append(paths, at)
		}
	}
	return paths
}

// propertyOf is what a schema says of a key, by reference or itself.
func propertyOf(schema map[string]any, key string, root map[string]any) (map[string]any, bool) {
	property, ok := follow(schema, "properties", key).(map[string]any)
	if reference, _ := property["$ref"].(string); reference != "" {
		property, ok = follow(root, "$defs", strings.TrimPrefix(reference, "#/$defs/")).(map[string]any)
	}
	return property, ok
}
