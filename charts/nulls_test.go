package charts

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestAgentTakesOrNamesNulls(t *testing.T) {
	t.Parallel()
	rendered := testNulls(t, agentChart, three, "cluster", "queue.url", "queue.tokenSecret", "queue.join.tokenSecret")
	if _, err := start(t, rendered); err != nil {
		t.Errorf("the agent refuses what nulls make: %v", err)
	}
}

func TestTrellisTakesOrNamesNulls(t *testing.T) {
	t.Parallel()
	testNulls(t, trellis, trellisLeast, "publicURL", "database.urlSecret.name")
}

// A key without a value, as in "tolerations:", takes the chart's default away. So
// does an upgrade that reuses the values of a chart that had no such key. What
// cannot be without is asked for by its name; all else is as if it were empty.
// Least are values that suffice, needed those that the chart asks for in better
// words than its schema could. It returns what nulls make.
func testNulls(t *testing.T, c chart, least string, needed ...string) objects {
	may, tables, leaves := nulls(t, c, needed)
	rendered, complaint := c.template(t, may.values(t, least))
	if complaint != "" {
		t.Fatalf("the chart cannot do without what its schema does not require:\n%s\n%s", complaint, may.values(t, least))
	}
	if no := nonconforming(t, oldestKubernetes, rendered); no != "" || strings.Contains(rendered, "%!") {
		t.Errorf("nulls make what is none of Kubernetes': %s\n%s", no, rendered)
	}
	all := decode(t, rendered)
	usual, _ := c.template(t, least)
	if got, want := fmt.Sprint(all.names()), fmt.Sprint(decode(t, usual).names()); got != want {
		t.Errorf("nulls make %s, want %s: a protection must not go because its line was left empty", got, want)
	}
	for _, o := range all {
		for _, wrong := range unrestricted(o) {
			t.Errorf("nulls make %v %v unfit for a namespace of the restricted profile: %s", o.get("kind"), o.get("metadata", "name"), wrong)
		}
	}
	for _, never := range []nullValues{tables, leaves} {
		_, complaint := c.template(t, never.values(t, least))
		if len(never) < 10 {
			t.Errorf("%d values are required, want them: %v", len(never), never)
		}
		for _, path := range never {
			table, key := "(root)", path
			if i := strings.LastIndex(path, "."); i >= 0 {
				table, key = path[:i], path[i+1:]
			}
			if want := fmt.Sprintf("- %s: %s is required", table, key); !strings.Contains(complaint, want) {
				t.Errorf("helm template without %s says:\n%s\nwant %q in it", path, complaint, want)
			}
		}
	}
	return all
}

// nullValues are the paths of values that are null.
type nullValues []string

// nulls tells apart which of the chart's values may be null, and which tables and
// which others may not.
func nulls(t *testing.T, c chart, needed []string) (may, tables, leaves nullValues) {
	t.Helper()
	var standard, schema map[string]any
	for file, into := range map[string]*map[string]any{"values.yaml": &standard, "values.schema.json": &schema} {
		data, err := os.ReadFile(filepath.Join(string(c), file))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(data, into); err != nil {
			t.Fatal(err)
		}
	}
	var walk func(prefix string, standard, schema map[string]any)
	walk = func(prefix string, standard, schema map[string]any) {
		required, _ := schema["required"].([]any)
		for _, key := range slices.Sorted(maps.Keys(standard)) {
			path := prefix + key
			below, _ := follow(schema, "properties", key).(map[string]any)
			table, _ := standard[key].(map[string]any)
			isTable := below["properties"] != nil && len(table) > 0
			switch {
			case slices.Contains(needed, path):
			case !slices.Contains(required, any(key)):
				may = append(may, path)
				continue
			case isTable && prefix == "":
				tables = append(tables, path)
			case !isTable && prefix != "":
				leaves = append(leaves, path)
			}
			if isTable {
				walk(path+".", table, below)
			}
		}
	}
	walk("", standard, schema)
	return may, tables, leaves
}

// values are those that suffice, with the nulls.
func (paths nullValues) values(t *testing.T, least string) string {
	t.Helper()
	var values map[string]any
	if err := yaml.Unmarshal([]byte(least), &values); err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		in := values
		keys := strings.Split(path, ".")
		for _, key := range keys[:len(keys)-1] {
			next, ok := in[key].(map[string]any)
			if !ok {
				next = map[string]any{}
				in[key] = next
			}
			in = next
		}
		in[keys[len(keys)-1]] = nil
	}
	text, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
