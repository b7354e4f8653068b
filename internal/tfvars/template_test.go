package tfvars

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

func TestLoadReportsFileAndLine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		files map[string]string
		want  []string // each is part of the message, in this order
	}{
		"syntax": {map[string]string{"main.tf": "variable \"a\" {\n  type = \n}\n"},
			[]string{"main.tf:2: Invalid expression: "}},
		"syntax of long ago": {map[string]string{"main.tf": "resource \"x\" \"y\" {\n  count = \"${var.a\"\n}\n"},
			[]string{"main.tf:2: "}},
		"JSON": {map[string]string{"main.tf.json": "{\n \"variable\": {,}\n}"},
			[]string{"main.tf.json:2: "}},
		"every file": {map[string]string{"a.tf": "x = \n", "b.tf": "\n}\n"},
			[]string{"a.tf:1: ", "b.tf:2: "}},
		"a tfvars file": {map[string]string{"a.tf": "", "x.auto.tfvars": "a = b\n"},
			[]string{"x.auto.tfvars:1: Variables not allowed"}},
		"a label": {map[string]string{"a.tf": "variable {}\n"}, []string{"a.tf:1: Missing name for variable"}},
		"a name":  {map[string]string{"a.tf": "variable \"1 x\" {}\n"}, []string{"a.tf:1: Invalid variable name"}},
		"a type":  {map[string]string{"a.tf": "variable \"a\" {\n  type = strnig\n}"}, []string{"a.tf:2: Invalid type specification"}},
		"a quoted type": {map[string]string{"a.tf": "variable \"a\" {\n  type = \"string\"\n}"},
			[]string{"a.tf:2: Invalid type specification"}},
		"a default": {map[string]string{"a.tf": "variable \"a\" {\n  type = number\n  default = \"x\"\n}"},
			[]string{"a.tf:3: Invalid default of variable a: The default does not fit the variable's type: a number is required."}},
		"a null default": {map[string]string{"a.tf": "variable \"a\" {\n  nullable = false\n  default = null\n}"},
			[]string{"a.tf:3: Invalid default of variable a: A null default"}},
		"a flag":        {map[string]string{"a.tf": "variable \"a\" {\n  sensitive = var.x\n}"}, []string{"a.tf:2: Variables not allowed"}},
		"twice":         {map[string]string{"a.tf": "variable \"a\" {}\n", "b.tf": "\nvariable \"a\" {}"}, []string{`b.tf:2: variable "a" is declared at a.tf:1 already`}},
		"no base":       {map[string]string{"a.tf": "", "override.tf": "variable \"a\" {}"}, []string{`override.tf:1: there is no variable "a" to override`}},
		"nothing":       {map[string]string{"README.md": ""}, []string{"the template's directory holds no configuration (no *.tf or *.tf.json file)"}},
		"too large":     {map[string]string{"a.tf": strings.Repeat("#\n", maxFile)}, []string{"a.tf: is too large"}},
		"too deep":      {map[string]string{"a.tf": "a = " + strings.Repeat("(", 5000)}, []string{"a.tf:1: nested more than 1000 levels deep"}},
		"too deep JSON": {map[string]string{"a.tf.json": strings.Repeat("[\n", 5000)}, []string{"a.tf.json:1001: nested more than 1000 levels deep"}},
		"too deep in a JSON type": {map[string]string{"a.tf.json": `{"variable":{"a":{"type":"` + strings.Repeat("list(", 5000) + `"}}}`},
			[]string{"a.tf.json:1: Invalid type: a.tf.json:1: nested more than 1000 levels deep"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Load(writeTemplate(t, tc.files), "terraform")
			f, ok := errors.AsType[*provision.Failure](err)
			if !ok || f.Code != provision.CodeTemplateInvalid {
				t.Fatalf("Load() error = %v, want a Failure with %s", err, provision.CodeTemplateInvalid)
			}
			rest := f.Message
			for _, want := range tc.want {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Fatalf("Load() error = %s\nwant %q in it (in this order: %q)", f.Message, want, tc.want)
				}
				rest = after
			}
		})
	}
}

func TestDepthIsMeasuredWithoutBracketsToo(t *testing.T) {
	t.Parallel()
	const deep = 1200
	for _, source := range []string{
		"a = " + strings.Repeat("!", deep),
		"a = " + strings.Repeat("- ", deep),
		"a = " + strings.Repeat("1 + ", deep),
		"a = a" + strings.Repeat(".b", deep),
		"a = a" + strings.Repeat("[*]", deep),
		"a = " + strings.Repeat("true ? 1 : ", deep),
		"a = (" + strings.Repeat("true ? 1 :\n", deep),
		"a = " + strings.Repeat("[", deep),
		"a = " + strings.Repeat("[1, ", deep),
		"a = " + strings.Repeat("{ a = ", deep),
		"a = " + strings.Repeat("{\n a = ", deep),
		"a = " + strings.Repeat("f(", deep),
		"a = " + strings.Repeat(`"${`, deep),
		"a = " + strings.Repeat("<<X\n${", deep),
		`a = "` + strings.Repeat("%{ if a }", deep),
		strings.Repeat("a {\n", deep),
	} {
		if err := CheckNesting("a.tf", []byte(source)); err == nil {
			t.Errorf("CheckNesting(%.40q…) = nil, want an error", source)
		}
	}
}

func TestNestingLetsLongFilesPass(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("locals {\n  a = [\n"+strings.Repeat("    var.a.b ? !c : -d + 1, # x\n", 600)+"  ]\n  b = <<EOT\n"+
		strings.Repeat("${var.a} %{ if x }y%{ endif }\n", 300)+"EOT\n}\n", 2)
	if _, err := Load(writeTemplate(t, map[string]string{"a.tf": long}), "terraform"); err != nil {
		t.Errorf("Load(a long flat file) error: %v", err)
	}
}

func TestLoadFollowsNoLinkToADevice(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{"a.tf": ""})
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "terraform.tfvars")); err != nil {
		t.Fatal(err)
	}
	_, err := Load(dir, "terraform")
	if want := "terraform.tfvars: is not a regular file"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Load() error = %v, want %q in it", err, want)
	}
}

func TestReaderBoundsTheWhole(t *testing.T) {
	t.Parallel()
	r := newReader(writeTemplate(t, map[string]string{"a": "12345", "b": "1234567890"}))
	r.left = 15
	for _, name := range []string{"a", "b"} {
		if _, err := r.read(name); err != nil {
			t.Errorf("read(%s) error: %v; 15 bytes may be read", name, err)
		}
	}
	if _, err := r.read("a"); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("read(a) beyond the limit error = %v, want one", err)
	}
}

func TestLoadReadsWhatTheEngineReads(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{
		"a.tf":         `variable "from_tf" {}`,
		"a.tofu":       `variable "from_tofu" {}`,
		"b.tf.json":    `{"variable": {"from_json": {"type": "list(string)", "default": ["${x}"]}}}`,
		".hidden.tf":   "}",
		"#swap.tf#":    "}",
		"backup.tf~":   "}",
		"x.tftest.hcl": "}",
		"sub/deep.tf":  "}",
	})
	for engine, want := range map[string]string{"terraform": "from_json from_tf", "tofu": "from_json from_tofu"} {
		template, err := Load(dir, engine)
		if err != nil {
			t.Fatalf("Load(%s) error: %v", engine, err)
		}
		declared, err := template.Declared()
		if err != nil {
			t.Fatalf("Declared(%s) error: %v", engine, err)
		}
		var names []string
		for _, v := range declared {
			names = append(names, v.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("Load(%s) variables = %s, want %s", engine, got, want)
		}
	}
}

func TestDeclared(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{
		"a.tf": `
variable "any" { default = { a = null, b = [1.50, true, "x"] } }
variable "merged" {
  description = "First."
  type        = string
}
variable "node" {
  type    = object({ size = optional(number, 1) })
  default = {}
}
variable "preset" { type = string }
variable "secret" {
  type      = string
  default   = "hunter2"
  sensitive = true
  nullable  = false
  ephemeral = true
}`,
		"b_override.tf":    "variable \"merged\" {\n  default = 5\n}",
		"terraform.tfvars": `preset = "p"`,
	})
	got, err := Declared(dir)
	if err != nil {
		t.Fatalf("Declared() error: %v", err)
	}
	want := []Variable{
		{Name: "any", TypeJSON: json.RawMessage(`"dynamic"`), Default: json.RawMessage(`{"a":null,"b":[1.5,true,"x"]}`), Nullable: true},
		{Name: "merged", Type: "string", TypeJSON: json.RawMessage(`"string"`), Description: "First.", Default: json.RawMessage(`"5"`), Nullable: true},
		{Name: "node", Type: "object({ size = optional(number, 1) })", TypeJSON: json.RawMessage(`["object",{"size":"number"},["size"]]`),
			Default: json.RawMessage(`{"size":1}`), Nullable: true},
		{Name: "preset", Type: "string", TypeJSON: json.RawMessage(`"string"`), Default: json.RawMessage(`"p"`), Nullable: true},
		{Name: "secret", Type: "string", TypeJSON: json.RawMessage(`"string"`), Sensitive: true, Ephemeral: true},
	}
	if !reflect.DeepEqual(got, want) {
		gotJSON, _ := json.MarshalIndent(got, "", " ")
		wantJSON, _ := json.MarshalIndent(want, "", " ")
		t.Errorf("Declared() = %s\nwant %s", gotJSON, wantJSON)
	}
}

// A text of many pieces, each of which the parser adds to all before it, is refused before
// it is parsed.
func TestTextOfManyPiecesIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source := "variable \"a\" {\n  default = \"" + strings.Repeat("%", 300_000) + "\"\n}\n"
	if err := os.WriteFile(filepath.Join(dir, "variables.tf"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, "terraform"); err == nil || !strings.Contains(err.Error(), "variables.tf:2: a text has too many lines or signs") {
		t.Errorf("Load() = %v, want the text refused", err)
	}
}
