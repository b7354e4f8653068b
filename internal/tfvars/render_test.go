package tfvars

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

// parseVars makes the argument of Render from one JSON object.
func parseVars(t testing.TB, object string) map[string]json.RawMessage {
	t.Helper()
	var vars map[string]json.RawMessage
	if err := json.Unmarshal([]byte(object), &vars); err != nil {
		t.Fatalf("vars %s: %v", object, err)
	}
	return vars
}

const clusterTemplate = `
variable "region" {
  type        = string
  description = "Where it runs."
}
variable "node_groups" {
  type = list(object({
    name     = string
    min_size = optional(number, 1)
    labels   = optional(map(string), {})
  }))
  default = []
}
variable "limits" {
  type    = map(number)
  default = {}
}
variable "pair" {
  type    = tuple([string, number])
  default = ["a", 1]
}
variable "password" {
  type      = object({ pins = optional(map(number)), port = optional(number), on = optional(bool) })
  default   = {}
  sensitive = true
}
variable "fixed" {
  type     = string
  nullable = false
}
`

func TestRenderNamesEveryProblem(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{"variables.tf": clusterTemplate})
	for name, tc := range map[string]struct{ vars, want string }{
		"missing": {`{}`, "terraform_vars.fixed: missing (string)\nterraform_vars.region: missing (string: Where it runs.)"},
		"all at once": {`{"regoin": "x", "fixed": null, "node_groups": [{"min_size": "two"}, 5], "limits": {"a b": [], "cpu": true}}`,
			"terraform_vars.fixed: must not be null\n" +
				`terraform_vars.limits["a b"]: a number is required, not a list` + "\n" +
				"terraform_vars.limits.cpu: a number is required, not bool true\n" +
				`terraform_vars.node_groups[0].min_size: a number is required, not string "two"` + "\n" +
				"terraform_vars.node_groups[0].name: missing\n" +
				"terraform_vars.node_groups[1]: an object is required, not number 5\n" +
				`terraform_vars.regoin: the template has no such variable; did you mean "region"?` + "\n" +
				"terraform_vars.region: missing (string: Where it runs.)"},
		"nothing near": {`{"region": "r", "fixed": "f", "colour": 1}`,
			"terraform_vars.colour: the template has no such variable; known: fixed, limits, node_groups, pair, password, region"},
		"a tuple's length": {`{"region": "r", "fixed": "f", "pair": ["a"]}`,
			"terraform_vars.pair: a list of 2 elements is required, not of 1"},
		"a tuple's element": {`{"region": "r", "fixed": "f", "pair": ["a", null]}`, ""},
		"a key twice": {`{"region": "r", "fixed": "f", "limits": {"cpu": 1, "cpu": 2}}`,
			"terraform_vars.limits: cannot be read: Duplicate object attribute"},
		"wrong kinds": {`{"region": {}, "fixed": [], "node_groups": "x", "limits": 1.50}`,
			"terraform_vars.fixed: a string is required, not a list\n" +
				"terraform_vars.limits: a map is required, not number 1.5\n" +
				`terraform_vars.node_groups: a list is required, not string "x"` + "\n" +
				"terraform_vars.region: a string is required, not an object"},
		"a sensitive value": {`{"region": "r", "fixed": "f", "password": {"pins": {"hunter2": "hunter3"}, "port": "hunter4", "on": "hunter5"}}`,
			"terraform_vars.password.on: a bool is required, not a string\n" +
				"terraform_vars.password.pins[…]: a number is required, not a string\n" +
				"terraform_vars.password.port: a number is required, not a string"},
		"sensitive, of the wrong kind": {`{"region": "r", "fixed": "f", "password": 31337}`,
			"terraform_vars.password: an object is required, not a number"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := renderPlain(dir, parseVars(t, tc.vars))
			if tc.want == "" {
				if err != nil {
					t.Errorf("Render(%s) error: %v", tc.vars, err)
				}
				return
			}
			f, ok := errors.AsType[*provision.Failure](err)
			if !ok || f.Code != provision.CodeVariablesInvalid {
				t.Fatalf("Render(%s) error = %v, want a Failure with %s", tc.vars, err, provision.CodeVariablesInvalid)
			}
			if f.Message != tc.want {
				t.Errorf("Render(%s) error =\n%s\nwant\n%s", tc.vars, f.Message, tc.want)
			}
		})
	}
}

func TestRenderBoundsItsMessage(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{"main.tf": `variable "n" { type = list(number) }`})
	_, err := renderPlain(dir, parseVars(t, `{"n": [`+strings.Repeat(`"`+strings.Repeat("ä", 2000)+`",`, 80)+`"x"]}`))
	if err == nil || len(err.Error()) > maxProblems*600 {
		t.Fatalf("Render(81 wrong elements) error has %d bytes, want at most %d", len(fmt.Sprint(err)), maxProblems*600)
	}
	if want := "\n… and 31 more"; !strings.HasSuffix(err.Error(), want) {
		t.Errorf("Render(81 wrong elements) error ends %q, want %q", err.Error()[len(err.Error())-40:], want)
	}
}

func TestRenderWritesValuesAsTheyAre(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{"main.tf": `variable "b" {}
variable "a" {}
variable "t" { ephemeral = true }`})
	got, err := renderPlain(dir, parseVars(t, `{"b": {"z": 12345678901234567890.10, "a": "<&>\u00e9"}, "a": 1e2, "t": null}`))
	if err != nil {
		t.Fatalf("Render() error: %v", err)
	}
	want := `{
  "a": 1e2,
  "b": {
    "z": 12345678901234567890.10,
    "a": "<&>\u00e9"
  },
  "t": null
}
`
	if string(got.JSON) != want {
		t.Errorf("Render().JSON = %s, want %s", got.JSON, want)
	}
	if want := "{\n  \"t\": null\n}\n"; string(got.Ephemeral) != want {
		t.Errorf("Render().Ephemeral = %s, want %s", got.Ephemeral, want)
	}

	nothing := writeTemplate(t, map[string]string{"main.tf": `variable "a" { default = 1 }`})
	got, err = renderPlain(nothing, nil)
	if err != nil || string(got.JSON) != "{}\n" || got.Ephemeral != nil {
		t.Errorf("Render(nil) = %q, %q, %v, want {} and no ephemeral ones", got.JSON, got.Ephemeral, err)
	}
}

func TestRenderWarnsOfWhatIsIgnored(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{"variables.tf": clusterTemplate})
	got, err := renderPlain(dir, parseVars(t, `{"region": "r", "fixed": "f",
		"node_groups": [{"name": "a", "min_sise": 2, "labels": {"any": "thing"}}],
		"password": {"hunter2": 1, "hunter3": 2}}`))
	if err != nil {
		t.Fatalf("Render() error: %v", err)
	}
	want := []string{
		`terraform_vars.node_groups[0].min_sise: not declared by the template, so it is ignored; did you mean "min_size"?`,
		`terraform_vars.password: an attribute that the template does not declare is ignored`,
	}
	if !slices.Equal(got.Warnings, want) {
		t.Errorf("Render().Warnings = %q, want %q", got.Warnings, want)
	}
}

func TestRenderChecksAutoloadedValues(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{
		"main.tf":          `variable "n" { type = number }`,
		"terraform.tfvars": `n = "two"`,
	})
	_, err := renderPlain(dir, nil)
	if want := `the template's terraform.tfvars: n: a number is required, not string "two"`; err == nil || err.Error() != want {
		t.Errorf("Render() error = %v, want %s", err, want)
	}
	if _, err := renderPlain(dir, parseVars(t, `{"n": 2}`)); err != nil {
		t.Errorf("Render(n given) error: %v; the given value beats the file's", err)
	}
}

func TestSensitive(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{
		"main.tf": `
variable "plain"  { default = "not secret" }
variable "pw"     { sensitive = true }
variable "tree"   {
  type      = object({ list = list(string), pin = number, on = bool, opt = optional(string, "optional-default") })
  sensitive = true
}
variable "unused" {
  default   = "default-secret"
  sensitive = true
}
variable "loaded" { sensitive = true }
variable "pin"    { sensitive = true }
variable "empty"  { sensitive = true }
variable "number" {
  type      = number
  sensitive = true
}
`,
		"terraform.tfvars": `loaded = "overridden-later"`,
		"a.auto.tfvars":    `loaded = { key-is-no-secret = "loaded-secret" }`,
	})
	got, err := renderPlain(dir, parseVars(t, `{
		"plain": "visible",
		"pw": "-----BEGIN-----\n  indented line\nab\n\"quoted\" <b>",
		"tree": {"list": ["first-item", "abc", null], "pin": "0012345", "on": "true"},
		"pin": 123, "empty": "", "number": 1.5000e4
	}`))
	if err != nil {
		t.Fatalf("Render() error: %v", err)
	}
	want := []string{
		"-----BEGIN-----\n  indented line\nab\n\"quoted\" <b>",
		"first-item", "0012345", "12345", "optional-default", "default-secret",
		"overridden-later", "loaded-secret", "1.5000e4", "15000",
	}
	slices.Sort(want)
	if !slices.Equal(got.Sensitive, want) {
		t.Errorf("Render().Sensitive =\n%q, want\n%q", got.Sensitive, want)
	}
	if want := []string{"pin", "tree"}; !slices.Equal(got.Unmaskable, want) {
		t.Errorf("Render().Unmaskable = %q, want %q", got.Unmaskable, want)
	}
}

// renderPlain renders values that are all given in plain, as a policy may allow.
func renderPlain(dir string, vars map[string]json.RawMessage) (Rendered, error) {
	return render(dir, Given{Plain: vars, PlainSensitive: true})
}

// render renders values for the template in a directory, as Terraform reads it.
func render(dir string, given Given) (Rendered, error) {
	template, err := Load(dir, "terraform")
	if err != nil {
		return Rendered{}, err
	}
	return template.Render(given)
}
