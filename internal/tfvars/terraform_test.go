package tfvars

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// verdicts is the corpus on which we and Terraform must agree: a variable's
// declaration, and a value.
var verdicts = []struct {
	declaration, value string
	accepted           bool
}{
	{`type = string`, `"x"`, true},
	{`type = string`, `5`, true},
	{`type = string`, `true`, true},
	{`type = string`, `null`, true},
	{`type = string`, `[]`, false},
	{`type = string`, `{}`, false},
	{`type = string`, `"${nope} %{if}"`, true},
	{`type = number`, `5`, true},
	{`type = number`, `"5"`, true},
	{`type = number`, `" 5"`, false},
	{`type = number`, `"0x10"`, false},
	{`type = number`, `"1e3"`, true},
	{`type = number`, `"two"`, false},
	{`type = number`, `""`, false},
	{`type = number`, `true`, false},
	{`type = number`, `123456789012345678901234567890.125`, true},
	{`type = number`, `1e400`, true},
	{`type = bool`, `true`, true},
	{`type = bool`, `"true"`, true},
	{`type = bool`, `"True"`, false},
	{`type = bool`, `"1"`, true},
	{`type = bool`, `1`, false},
	{`type = list(string)`, `["a", 1, true]`, true},
	{`type = list(string)`, `["a", ["b"]]`, false},
	{`type = list(string)`, `"a"`, false},
	{`type = list(string)`, `{"0": "a"}`, false},
	{`type = list(string)`, `[null]`, true},
	{`type = list`, `[1, "a"]`, true},
	{`type = list`, `[1, {"a": 1}]`, false},
	{`type = map`, `{"a": 1}`, true},
	{`type = set(number)`, `[1, "1", 2]`, true},
	{`type = set(number)`, `[1, "x"]`, false},
	{`type = map(number)`, `{"a": 1, "b c": "2"}`, true},
	{`type = map(number)`, `{"a": "x"}`, false},
	{`type = map(number)`, `[]`, false},
	{`type = map(any)`, `{"a": 1, "b": "x"}`, true},
	{`type = map(any)`, `{"a": 1, "b": [1]}`, false},
	{`type = tuple([string, number])`, `["a", 1]`, true},
	{`type = tuple([string, number])`, `["a"]`, false},
	{`type = tuple([string, number])`, `["a", "b"]`, false},
	{`type = any`, `{"a": [1, {"b": null}]}`, true},
	{``, `[1, "a", {}]`, true},
	{``, `null`, true},
	{`type = object({ a = string })`, `{"a": "x", "zz": 1}`, true},
	{`type = object({ a = string })`, `{}`, false},
	{`type = object({ a = string })`, `{"a": null}`, true},
	{`type = object({ a = string })`, `[]`, false},
	{`type = object({ a = optional(number, 3) })`, `{}`, true},
	{`type = object({ a = optional(number, 3) })`, `{"a": "x"}`, false},
	{`type = object({ a = optional(object({ b = optional(string, "d") }), {}) })`, `{}`, true},
	{`type = list(object({ name = string, min_size = optional(number) }))`, `[{"name": "a"}, {"name": "b", "min_size": "2"}]`, true},
	{`type = list(object({ name = string, min_size = optional(number) }))`, `[{"name": "a", "min_size": "two"}]`, false},
	{`type = list(object({ name = string }))`, `[{"nome": "a"}]`, false},
	{"type = string\n  nullable = false", `null`, false},
	{"type = string\n  default = \"d\"\n  nullable = false", `null`, true},
	{"type = string\n  default = \"d\"", `null`, true},
	{"type = number\n  sensitive = true", `"two"`, false},
	{"type = number\n  ephemeral = true", `"2"`, true},
	{`type = string`, `{"a": 1, "a": 2}`, false},
	{`type = any`, `{"a": 1, "a": 2}`, false},
}

// TestVerdictsAgreeWithTerraform asks the real Terraform about the corpus: all
// that it refuses it names in one plan.
func TestVerdictsAgreeWithTerraform(t *testing.T) {
	t.Parallel()
	ours := map[string]bool{}
	var config, values strings.Builder
	values.WriteString("{")
	for i, pair := range verdicts {
		name := fmt.Sprintf("v%02d", i)
		declaration := fmt.Sprintf("variable %q {\n  %s\n}\n", name, pair.declaration)

		dir := writeTemplate(t, map[string]string{"main.tf": declaration})
		_, err := renderPlain(dir, map[string]json.RawMessage{name: json.RawMessage(pair.value)})
		if got := err == nil; got != pair.accepted {
			t.Errorf("Render(%s = %s) accepted = %t (%v), want %t", pair.declaration, pair.value, got, err, pair.accepted)
		}
		ours[name] = err == nil

		if strings.Contains(pair.value, `"a": 1, "a": 2`) {
			continue // it would end the reading of the file for all the others
		}
		config.WriteString(declaration)
		fmt.Fprintf(&values, "%q: %s,\n", name, pair.value)
	}
	dir := writeTemplate(t, map[string]string{
		"main.tf":         config.String(),
		"values.var.json": strings.TrimSuffix(values.String(), ",\n") + "}",
		"double.var.json": `{"double": {"a": 1, "a": 2}}`,
		"sub/main.tf":     `variable "double" { type = any }`,
	})

	refused := planErrors(t, dir, filepath.Join(dir, "values.var.json"))
	for i, pair := range verdicts {
		name := fmt.Sprintf("v%02d", i)
		if !strings.Contains(config.String(), `"`+name+`"`) {
			continue
		}
		theirs := !slices.ContainsFunc(refused, func(diagnostic string) bool { return strings.Contains(diagnostic, `"`+name+`"`) })
		if ours[name] != theirs {
			t.Errorf("%s = %s: we accept: %t, Terraform accepts: %t", pair.declaration, pair.value, ours[name], theirs)
		}
	}
	if got := planErrors(t, filepath.Join(dir, "sub"), filepath.Join(dir, "double.var.json")); len(got) == 0 {
		t.Errorf("Terraform accepts an object with a key given twice, we do not")
	}
}

func TestMissingAndAutoloadedAgreeWithTerraform(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{
		"main.tf":               "variable \"a\" {}\nvariable \"b\" {}\nvariable \"c\" {}\nvariable \"d\" {}\nvariable \"e\" {}\nvariable \"f\" { type = number }",
		"z_override.tf":         "variable \"e\" { default = 1 }",
		"terraform.tfvars":      "a = 1\nf = \"x\"\n",
		"terraform.tfvars.json": `{"b": 2}`,
		"x.auto.tfvars":         "c = 3",
		"y.auto.tfvars.json":    `{"f": "4", "undeclared": 1}`,
		"other.tfvars":          "d = 4",
		"values.var.json":       `{}`,
	})
	refused := planErrors(t, dir, filepath.Join(dir, "values.var.json"))
	if len(refused) != 1 || !strings.Contains(refused[0], `"d"`) {
		t.Errorf("terraform plan errors = %q, want one, of variable d", refused)
	}
	_, err := renderPlain(dir, nil)
	if want := "terraform_vars.d: missing"; err == nil || err.Error() != want {
		t.Errorf("Render(nothing) error = %v, want %s", err, want)
	}
}

// TestEphemeralIsWhatApplyWants shows why Rendered.Ephemeral is there.
func TestEphemeralIsWhatApplyWants(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{
		"main.tf": "variable \"e\" {\n ephemeral = true\n}\nvariable \"v\" {}\noutput \"o\" { value = var.v }\n",
	})
	rendered, err := renderPlain(dir, map[string]json.RawMessage{"e": json.RawMessage(`"x"`), "v": json.RawMessage(`1`)})
	if err != nil {
		t.Fatalf("Render() error: %v", err)
	}
	for name, content := range map[string][]byte{"all.json": rendered.JSON, "ephemeral.json": rendered.Ephemeral} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if output, err := terraform(t, dir, "plan", "-input=false", "-out=p", "-var-file=all.json"); err != nil {
		t.Fatalf("terraform plan: %v\n%s", err, output)
	}
	if output, err := terraform(t, dir, "apply", "-input=false", "p"); err == nil {
		t.Errorf("terraform apply without the ephemeral value succeeded, want an error:\n%s", output)
	}
	if output, err := terraform(t, dir, "apply", "-input=false", "-var-file=ephemeral.json", "p"); err != nil {
		t.Errorf("terraform apply with the ephemeral value: %v\n%s", err, output)
	}
}

// planErrors returns the error diagnostics of a plan as JSON texts.
func planErrors(t *testing.T, dir, varFile string) []string {
	t.Helper()
	output, err := terraform(t, dir, "plan", "-json", "-input=false", "-var-file="+varFile)
	var found []string
	lines := bufio.NewScanner(bytes.NewReader(output))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var message struct {
			Level      string `json:"@level"`
			Diagnostic struct {
				Summary, Detail string
				Snippet         struct{ Context, Code string }
			}
		}
		if json.Unmarshal(lines.Bytes(), &message) == nil && message.Level == "error" {
			found = append(found, fmt.Sprint(message.Diagnostic))
		}
	}
	if (err != nil) != (len(found) > 0) {
		t.Fatalf("terraform plan: %v, with error diagnostics %q\n%s", err, found, output)
	}
	return found
}

func terraform(t *testing.T, dir string, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "terraform", args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "CHECKPOINT_DISABLE=1"}
	return cmd.CombinedOutput()
}

// writeTemplate writes files to a new directory.
func writeTemplate(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
