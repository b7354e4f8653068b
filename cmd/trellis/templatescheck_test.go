package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/testkit/pages"
)

// templateDir is a template of these files.
func templateDir(t *testing.T, variables, tendril string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"variables.tf": variables, "tendril.hcl": tendril} {
		if content == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestTemplatesCheck(t *testing.T) {
	t.Parallel()
	const variables = "variable \"class\" {}\nvariable \"students\" { type = set(string) }\nvariable \"password\" {\n  sensitive = true\n  default = \"hunter2\"\n}\n"
	page, err := os.ReadFile("../../docs/TEMPLATES.md")
	if err != nil {
		t.Fatal(err)
	}
	class := strings.Replace(regexp.MustCompile("(?s)```hcl\n(.*?)```").FindStringSubmatch(string(page))[1], "var.pool", `"lab"`, 1)
	const validated = "variable \"size\" {\n  default = 20\n  validation {\n    condition     = var.size < 10\n    error_message = \"${var.size} is too large.\"\n  }\n}\n"
	const other = "variable \"name\" {\n  type = string\n  validation {\n    condition     = startswith(var.name, \"n${var.size}\")\n    error_message = \"Begin with n and the size.\"\n  }\n}\n"
	const onlyTerraforms = "variable \"file\" {\n  default = \"a\"\n  validation {\n    condition     = fileexists(var.file)\n    error_message = \"No file.\"\n  }\n}\n"
	manual := "provisioner \"manual\" {\n  instructions = \"variables.tf\"\n}\n"
	for name, tt := range map[string]struct {
		variables, tendril string
		args               []string
		code               int
		want               []string
	}{
		"no tendril.hcl":     {variables, "", nil, exitOK, []string{"provisioner  terraform\nvariables    3: class, password, students\n", "give them with --var: class, students"}},
		"no variables":       {"# none\n", "", nil, exitOK, []string{"variables    none", "No problems found."}},
		"without values":     {variables, class, nil, exitOK, []string{"title        Class of Linux machines\nprovisioner  machine\n", "steps        1: Creating VM from template"}},
		"machines":           {variables, class, []string{"--var", "class=c1", "--var-json", `students=["ada"]`}, exitOK, []string{"MACHINE     POOL  IMAGE      CORES  MEMORY    DISK\nc1-ada      lab   debian-13  2      2048 MiB  20 GiB\nc1-teacher  lab"}},
		"machines as JSON":   {variables, class, []string{"--var", "class=c1", "--var-json", `students=[]`, "-o", "json"}, exitOK, []string{`"name": "c1-teacher"`, `"memory_mib": 2048`, `"provisioner": "machine"`}},
		"a secret in plain":  {variables, class, []string{"--var", "class=c1", "--var-json", `students=[]`, "--var", "password=x"}, exitOK, []string{"c1-teacher"}},
		"a value":            {variables, class, []string{"--var", "class=C 1", "--var-json", `students=["ada"]`}, exitUsage, []string{`tendril.hcl:8:16: each.key "ada": "C 1-ada" is not a valid machine name`, "    8 |     name     = \"${var.class}-${each.key}\"\n      |                ^^^"}},
		"a missing value":    {variables, class, []string{"--var", "class=c1"}, exitUsage, []string{"terraform_vars.students: missing (set(string))"}},
		"no such variable":   {variables, class, []string{"--var", "student=c1"}, exitUsage, []string{`terraform_vars.student: the template has no such variable; did you mean "students"?`}},
		"not declared":       {variables, strings.Replace(class, "var.class", "var.klass", 1), nil, exitFailed, []string{`the template declares no variable "klass"; did you mean "class"?`}},
		"both files":         {"variable {\n", "titel = 1\n", nil, exitFailed, []string{"variables.tf:1: ", `tendril.hcl:1:1: tendril.hcl has no argument "titel"; did you mean "title"?`}},
		"instructions":       {"variable \"a\" { default = 1 }\n# ${var.b}\n", manual, nil, exitFailed, []string{`variables.tf:2:5: the template declares no variable "b"`}},
		"no variables.tf":    {"", class, nil, exitFailed, []string{"holds no configuration"}},
		"a refused default":  {validated, "", nil, exitUsage, []string{"The template refuses a value: terraform_vars.size: 20 is too large."}},
		"with a missing one": {validated + other, "", nil, exitUsage, []string{"terraform_vars.size: 20 is too large."}},
		"a refused value":    {validated + other, "", []string{"--var-json", "size=5", "--var", "name=x"}, exitUsage, []string{"terraform_vars.name: Begin with n and the size."}},
		"both refused":       {validated + other, "", []string{"--var-json", "size=50", "--var", "name=x"}, exitUsage, []string{"terraform_vars.name: Begin", "terraform_vars.size: 50 is"}},
		"an accepted value":  {validated + other, "", []string{"--var-json", "size=5", "--var", "name=n5"}, exitOK, []string{"No problems found."}},
		"only Terraform's":   {onlyTerraforms, "", nil, exitOK, []string{"Only Terraform can evaluate a validation block.", `There is no function named "fileexists".`, "No problems found."}},
		"not even Terraform": {onlyTerraforms, manual, nil, exitUsage, []string{`There is no function named "fileexists".`}},
		"not a value at all": {variables, class, []string{"--var", "class"}, exitUsage, []string{"--var must be NAME=TEXT"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := templateDir(t, tt.variables, tt.tendril)
			r := trellis(t, append([]string{"templates", "check", dir}, tt.args...)...)
			r.want(t, name, tt.code, tt.want...)
			if tt.code != exitOK && r.out != "" || strings.Contains(r.out+r.stderr, "hunter2") {
				t.Errorf("it says on stdout: %s, on stderr: %s", r.out, r.stderr)
			}
		})
	}
	documented := pages.Code(t, "docs/TEMPLATES.md", "trellis templates check DIR", "DIR", templateDir(t, variables, class))
	trellis(t, strings.Fields(documented)[1:]...).want(t, documented, exitOK, "No problems found.")
	trellis(t, "template", "check", filepath.Join(t.TempDir(), "none")).want(t, "a directory that is not there", exitUsage, "none is not a directory", "trellis templates check DIR")
}
