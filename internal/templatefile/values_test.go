package templatefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/tfvars"
)

// What a validation block refuses is refused, with the template's own message.
func TestCheckValues(t *testing.T) {
	t.Parallel()
	const template, variables = provision.CodeTemplateInvalid, provision.CodeVariablesInvalid
	long := strings.Repeat("a", 1000)
	for name, tt := range map[string]struct {
		condition, message string
		value              cty.Value
		code               provision.Code // "": it holds
		want               string
	}{
		"it holds":             {`length(var.v) <= 2`, `"two"`, cty.StringVal("ab"), "", ""},
		"it does not":          {`length(var.v) <= 2`, `"at most 2, not ${length(var.v)}"`, cty.StringVal("abc"), variables, "terraform_vars.v: at most 2, not 3"},
		"a name":               {`can(regex("^[a-z][a-z0-9-]{0,30}$", var.v))`, `"no name"`, cty.StringVal("A"), variables, "terraform_vars.v: no name"},
		"each":                 {`alltrue([for one in var.v : one > 1])`, `"all must be more than 1"`, cty.ListVal([]cty.Value{cty.NumberIntVal(1)}), variables, "all must be more"},
		"what others are":      {`var.v != var.other`, `"other than ${var.other}"`, cty.StringVal("x"), variables, "terraform_vars.v: other than x"},
		"a secret":             {`var.v != "hunter2"`, `"${var.v} is known to all"`, cty.StringVal("hunter2").Mark(tfvars.Sensitive), variables, "the reason is not shown"},
		"an unknown function":  {`fileexists(var.v)`, `"no file"`, cty.StringVal("x"), variables, "The validation of the variable v can't be evaluated"},
		"no condition":         {`var.v`, `"no"`, cty.StringVal("x"), template, "this must be bool"},
		"something else":       {`local.x`, `"no"`, cty.StringVal("x"), template, `"local" is not known here`},
		"what takes very long": {`can(regex("(a|b|ab)*c(.{1,900}){1}", join("", [for i in split("", "` + long + `") : "` + long[:60] + `"])))`, `"slow"`, cty.StringVal("x"), variables, "slow"},
		"a pattern too long":   {`regex("(a{500})*", join("", [for i in split("", "` + long + `") : "` + long[:60] + `"])) != ""`, `"no"`, cty.StringVal("x"), template, "the pattern and the text are too long"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			text := "variable \"other\" { default = \"x\" }\nvariable \"v\" {\n  validation {\n    condition     = " + tt.condition + "\n    error_message = " + tt.message + "\n  }\n}\n"
			if err := os.WriteFile(filepath.Join(dir, "variables.tf"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			read, err := tfvars.Load(dir, "terraform")
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			err = CheckValues(read.Validations(), map[string]cty.Value{"v": tt.value, "other": cty.StringVal("x")})
			t.Logf("it took %s", time.Since(began))
			f, failed := errors.AsType[*provision.Failure](err)
			if failed != (tt.code != "") || failed && (f.Code != tt.code || !strings.Contains(f.Message, tt.want) || strings.Contains(f.Message, "hunter2")) {
				t.Errorf("CheckValues() = %v, want a Failure with %s and %q", err, tt.code, tt.want)
			}
		})
	}
}
