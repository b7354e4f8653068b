package tfvars

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/provision"
)

func TestSealedValues(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{"main.tf": `
variable "password" {
  type      = string
  sensitive = true
}
variable "once" {
  type      = object({ key = string })
  ephemeral = true
}
variable "open" {
  type    = string
  default = "an-open-default"
}
variable "region" { type = string }
`})
	got, err := render(dir, Given{
		Plain: map[string]json.RawMessage{"region": json.RawMessage(`"eu"`)},
		Sealed: map[string]json.RawMessage{
			"password": json.RawMessage(`"sealed-password"`), "once": json.RawMessage(`{"key": "first-line\nsecond-line"}`), "open": json.RawMessage(`"sealed-open"`),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if text := string(got.JSON); strings.Contains(text, "sealed-") || !strings.Contains(text, "eu") {
		t.Errorf("Render().JSON = %s, want the plain values alone", text)
	}
	if text := string(got.Sealed); !strings.Contains(text, "sealed-password") || !strings.Contains(text, "second-line") || strings.Contains(text, "region") {
		t.Errorf("Render().Sealed = %s, want the sealed values alone", text)
	}
	if text := string(got.Ephemeral); !strings.Contains(text, "second-line") || strings.Contains(text, "password") {
		t.Errorf("Render().Ephemeral = %s, want what came sealed and is ephemeral", text)
	}
	for _, secret := range []string{"sealed-password", "first-line\nsecond-line", "sealed-open"} {
		if !slices.Contains(got.Sensitive, secret) {
			t.Errorf("Render().Sensitive = %q, want %q in it", got.Sensitive, secret)
		}
	}
	if slices.Contains(got.Sensitive, "an-open-default") {
		t.Error("Render().Sensitive has the default of a variable that nobody called sensitive")
	}
	if len(got.Warnings) != 2 || !strings.HasPrefix(got.Warnings[0], "sealed_vars.once: ") || !strings.HasPrefix(got.Warnings[1], "sealed_vars.open: the template does not declare this variable sensitive") {
		t.Errorf("Render().Warnings = %q, want one for each that is not declared sensitive", got.Warnings)
	}
}

func TestSealedProblemsShowNoValue(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{"main.tf": `
variable "count_of" { type = number }
variable "list" { type = list(number) }
variable "map" { type = map(object({ a = number })) }
`})
	const secret = "hunter2hunter2"
	_, err := render(dir, Given{Sealed: map[string]json.RawMessage{
		"count_of": json.RawMessage(`"` + secret + `"`), "list": json.RawMessage(`["` + secret + `"]`),
		"map": json.RawMessage(`{"` + secret + `": {"a": "` + secret + `"}}`), "none": json.RawMessage(`"` + secret + `"`),
	}})
	f, ok := errors.AsType[*provision.Failure](err)
	if !ok || f.Code != provision.CodeVariablesInvalid {
		t.Fatalf("Render() = %v, want a Failure with %s", err, provision.CodeVariablesInvalid)
	}
	for _, want := range []string{"sealed_vars.count_of: a number is required, not a string", "sealed_vars.list[0]: ", "sealed_vars.map[…].a: ", "sealed_vars.none: the template has no such variable"} {
		if !strings.Contains(f.Message, want) {
			t.Errorf("Render() = %s, want %q in it", f.Message, want)
		}
	}
	if strings.Contains(f.Message, secret) {
		t.Errorf("Render() = %s, which shows the value", f.Message)
	}
}

func TestSensitiveInPlain(t *testing.T) {
	t.Parallel()
	dir := writeTemplate(t, map[string]string{"main.tf": `
variable "password" {
  type      = string
  sensitive = true
  default   = "a-default"
}
variable "token" {
  type      = string
  sensitive = true
}
`, "terraform.tfvars": `token = "from-the-template"`})
	plain := map[string]json.RawMessage{"password": json.RawMessage(`"in-plain-sight"`)}
	_, err := render(dir, Given{Plain: plain})
	if f, ok := errors.AsType[*provision.Failure](err); !ok || f.Code != provision.CodeVariablesInvalid ||
		!strings.Contains(f.Message, "terraform_vars.password: sensitive") || !strings.Contains(f.Message, "trellis seal password --cluster") || strings.Contains(f.Message, "in-plain") {
		t.Errorf("Render(sensitive in plain) = %v, want a refusal that says how to seal it", err)
	}
	if _, err := render(dir, Given{Plain: plain, PlainSensitive: true}); err != nil {
		t.Errorf("Render(sensitive in plain, allowed) = %v", err)
	}
	// What the template itself gives is not ours to keep, and null gives nothing.
	got, err := render(dir, Given{Plain: map[string]json.RawMessage{"password": json.RawMessage(`null`)}})
	if err != nil || !slices.Contains(got.Sensitive, "a-default") || !slices.Contains(got.Sensitive, "from-the-template") {
		t.Errorf("Render(null) = %q, %v, want it accepted and the template's own values masked", got.Sensitive, err)
	}
}

// Values are what the engine would use, and sensitive ones are marked.
func TestValues(t *testing.T) {
	t.Parallel()
	template, err := Load(writeTemplate(t, map[string]string{"main.tf": `
variable "given" { type = number }
variable "loaded" { type = string }
variable "unset" {
  type    = object({ a = optional(string, "x") })
  default = {}
}
variable "null" {
  nullable = false
  default  = "not null"
}
variable "nothing" { default = null }
variable "sealed" {}
variable "secret" {
  sensitive = true
  default   = "hunter2"
}
`, "terraform.tfvars": `loaded = 7`}), "terraform")
	if err != nil {
		t.Fatal(err)
	}
	got, err := template.Values(Given{
		Plain:  map[string]json.RawMessage{"given": json.RawMessage(`"3"`), "null": json.RawMessage(`null`)},
		Sealed: map[string]json.RawMessage{"sealed": json.RawMessage(`"s3cret"`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]cty.Value{
		"given": cty.NumberIntVal(3), "loaded": cty.StringVal("7"), "unset": cty.ObjectVal(map[string]cty.Value{"a": cty.StringVal("x")}),
		"null": cty.StringVal("not null"), "nothing": cty.NullVal(cty.DynamicPseudoType),
		"sealed": cty.StringVal("s3cret").Mark(Sensitive), "secret": cty.StringVal("hunter2").Mark(Sensitive),
	}
	for name, value := range want {
		if !got[name].RawEquals(value) {
			t.Errorf("%s = %#v, want %#v", name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("Values() has %d variables, want %d", len(got), len(want))
	}
	if _, err := template.Values(Given{}); err == nil || !strings.Contains(err.Error(), "terraform_vars.given: missing") {
		t.Errorf("Values() of nothing: %v", err)
	}
}
