package tfvars

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// FuzzRender looks for templates and values that bring the reader down, for
// failures without a code, and for secrets in messages.
func FuzzRender(f *testing.F) {
	for _, pair := range verdicts {
		f.Add("variable \"x\" {\n  "+pair.declaration+"\n}\n", pair.value)
	}
	f.Add(clusterTemplate, `"hunter2hunter2"`)
	f.Add("variable \"x\" {\n type = map(number)\n sensitive = true\n}", `{"hunter2hunter2": "hunter2hunter2"}`)
	f.Fuzz(func(t *testing.T, config, value string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "main.tf"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		template, err := Load(dir, "terraform")
		if err != nil {
			if code := provision.AsFailure(err).Code; code != provision.CodeTemplateInvalid {
				t.Fatalf("Load(%q) error = %v with code %s, want %s", config, err, code, provision.CodeTemplateInvalid)
			}
			return
		}
		if _, err := template.Declared(); err != nil {
			t.Fatalf("Declared(%q) error: %v", config, err)
		}
		vars := map[string]json.RawMessage{}
		for _, name := range slices.Sorted(maps.Keys(template.variables)) {
			vars[name] = json.RawMessage(value)
		}
		rendered, err := template.Render(Given{Plain: vars, PlainSensitive: true})
		if err == nil {
			var back map[string]json.RawMessage
			if err := json.Unmarshal(rendered.JSON, &back); err != nil || len(back) != len(vars) {
				t.Fatalf("Render(%q).JSON = %s (%v), want %d values", vars, rendered.JSON, err, len(vars))
			}
			return
		}
		if code := provision.AsFailure(err).Code; code != provision.CodeVariablesInvalid {
			t.Fatalf("Render(%q) error = %v with code %s, want %s", vars, err, code, provision.CodeVariablesInvalid)
		}
		if x, ok := template.variables["x"]; ok && len(vars) == 1 && x.isSensitive() &&
			!strings.Contains(config, "hunter2hunter2") && strings.Contains(err.Error(), "hunter2hunter2") {
			t.Fatalf("Render(%q) error = %v, want one without the secret", vars, err)
		}
		// What came sealed is secret whatever the template says.
		if _, err := template.Render(Given{Sealed: vars}); err == nil || !strings.Contains(config, "hunter2hunter2") && strings.Contains(err.Error(), "hunter2hunter2") {
			t.Fatalf("Render(%q, sealed) error = %v, want one without the secret", vars, err)
		}
	})
}
