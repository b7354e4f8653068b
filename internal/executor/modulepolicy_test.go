package executor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/testkit/gittest"
)

// Sources that nobody has let in are refused: those that the checkout names
// before anything is fetched, those that fetched modules name before a plan.
func TestModulesThatThePolicyDoesNotName(t *testing.T) {
	t.Parallel()
	const registryModule = `module "vpc" { source = "acme/vpc/aws" }`
	for name, test := range map[string]struct {
		files   map[string]string // %[1]s is the URL of a server that the policy does not name
		modules []string
		path    string
		stage   provision.Stage
		want    []string
	}{
		"of a registry": {map[string]string{"main.tf": registryModule}, nil, "", provision.StageValidate,
			[]string{"module.vpc (main.tf:1): this agent refuses the source acme/vpc/aws", `"registry.terraform.io/acme/vpc/aws" among [policy] modules would allow it`}},
		"of another registry": {map[string]string{"main.tf": registryModule}, []string{"registry.example/acme/*/*"}, "", provision.StageValidate,
			[]string{"module.vpc"}},
		"an archive": {map[string]string{"main.tf": `module "x" { source = "%[1]s/x.zip" }`}, []string{"%[1]s/**"}, "", provision.StageValidate,
			[]string{`"archive::https://127.0.0.1:`}},
		"named by a module of the checkout": {map[string]string{"main.tf": `module "a" { source = "./a" }`, "a/main.tf": `module "b" { source = "git::%[1]s/mods/b.git" }`}, nil, "", provision.StageValidate,
			[]string{"module.a.module.b (a/main.tf:1)", "/mods/b.git"}},
		"a path out of the checkout": {map[string]string{"main.tf": `module "a" { source = "../../../state" }`}, nil, "", provision.StageValidate,
			[]string{"module.a (main.tf:1)", "it leads out of the template's checkout"}},
		"a path of the machine": {map[string]string{"main.tf": `module "a" { source = "/etc" }`}, nil, "", provision.StageValidate,
			[]string{"module.a (main.tf:1)", "/etc"}},
		"in an override": {map[string]string{"main.tf": `module "a" { source = "./a" }`, "a/main.tf": "", "override.tf": `module "a" { source = "hg::https://x/y" }`}, nil, "", provision.StageValidate,
			[]string{"module.a (override.tf:1)", `"hg::https://x/y" among [policy] modules`}},
		"named by a fetched module": {map[string]string{"main.tf": `module "outer" { source = "git::%[1]s/mods/outer.git" }`}, []string{"%[1]s/mods/outer"}, "", provision.StageInit,
			[]string{"module.outer.module.inner: this agent refuses the source git::https://127.0.0.1:", "/mods/inner.git"}},
		"credentials in a source": {map[string]string{"main.tf": `module "a" { source = "git::https://bob:hunter2@x/y" }`}, nil, "", provision.StageValidate,
			[]string{"module.a (main.tf:1): this agent refuses the source git::https://…@x/y"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			other := s.strangers()
			for _, pattern := range test.modules {
				s.job.Settings.Policy.Modules = append(s.job.Settings.Policy.Modules, strings.ReplaceAll(pattern, "%[1]s", other.URL))
			}
			s.template(on(other, test.files), nil)
			got, c := s.run()
			wantEnd(t, got, provision.Failed, provision.CodeRepoRefused)
			for _, want := range test.want {
				if !strings.Contains(got.Detail.ErrorMessage, want) {
					t.Errorf("message = %q, want %q in it", got.Detail.ErrorMessage, want)
				}
			}
			if strings.Contains(got.Detail.ErrorMessage, "hunter2") {
				t.Errorf("message = %q, shows the password", got.Detail.ErrorMessage)
			}
			if stage := last(c, func(d provision.Detail) provision.Stage { return d.Stage }); stage != test.stage {
				t.Errorf("the last stage is %s, want %s", stage, test.stage)
			}
			s.wantNothingLeft()
		})
	}
}

// What the policy names is fetched, with the modules within it.
func TestModulesThatThePolicyNames(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	other := s.strangers()
	s.job.Settings.Policy.Modules = []string{other.URL + "/mods/*"}
	s.template(on(other, map[string]string{
		"main.tf":   `module "outer" { source = "git::%[1]s/mods/outer.git" }` + "\n" + `module "a" { source = "./a" }` + "\n" + `output "text" { value = "${module.outer.text} ${module.a.text}" }`,
		"a/main.tf": `module "b" { source = "../b" }` + "\n" + `output "text" { value = module.b.text }`, "b/main.tf": `output "text" { value = "local" }`,
	}), nil)
	got, c := s.run()
	wantEnd(t, got, provision.Success, "")
	if !strings.Contains(c.text(), "inner deep local") {
		t.Errorf("log lacks the modules' output:\n%s", c.text())
	}
}

// OpenTofu evaluates sources, so what one comes to is judged when it is known.
func TestSourceThatOpenTofuEvaluates(t *testing.T) {
	t.Parallel()
	for name, allowed := range map[string]bool{"allowed": true, "refused": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.job.Settings.Engine.Kind = "tofu"
			other := s.strangers()
			if allowed {
				s.job.Settings.Policy.Modules = []string{other.URL + "/**"}
			}
			s.template(on(other, map[string]string{"main.tf": `
variable "from" { default = "%[1]s" }
module "m" { source = "git::${var.from}/mods/inner.git" }
output "text" { value = module.m.text }
`}), nil)
			got, c := s.run()
			if allowed {
				wantEnd(t, got, provision.Success, "")
				return
			}
			wantEnd(t, got, provision.Failed, provision.CodeRepoRefused)
			if planned := last(c, func(d provision.Detail) bool { return d.Stage == provision.StagePlan }); planned {
				t.Error("the run got to its plan, want it refused before")
			}
		})
	}
}

// The root's versions and those of its own modules choose the engine.
func TestTemplateChoosesTheEngine(t *testing.T) {
	t.Parallel()
	versioned := func(root, local string) map[string]string {
		return map[string]string{
			"main.tf":   fmt.Sprintf("terraform {\n  required_version = %q\n}\nmodule \"a\" { source = \"./a\" }\n", root),
			"a/main.tf": fmt.Sprintf("terraform {\n  required_version = %q\n}\n", local),
		}
	}
	for name, test := range map[string]struct {
		files map[string]string
		ask   string // the snapshot's version
		code  provision.Code
		want  string // of the log, or of the message
	}{
		"admits":              {versioned(">= 1.9", "< 2.0"), "", "", "Using terraform 1."},
		"admits none":         {versioned(">= 1.9", ">= 7.0"), "", provision.CodeEngineMissing, `The template wants required_version ">= 1.9" (main.tf:2), ">= 7.0" (a/main.tf:2). Passed over: `},
		"not what is asked":   {versioned(">= 1.9", "< 2.0"), "1.5.0", provision.CodeBadSnapshot, `asks for terraform 1.5.0, and the template for required_version ">= 1.9" (main.tf:2)`},
		"asked, and not here": {versioned(">= 1.9", "< 2.0"), "1.9.0", provision.CodeEngineMissing, "terraform 1.9.0 is not on this agent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.template(test.files, nil)
			if test.ask != "" {
				s.job.Assignment.Snapshot = []byte(strings.Replace(string(s.job.Assignment.Snapshot), `{`, fmt.Sprintf(`{"terraform":{"version":%q},`, test.ask), 1))
			}
			got, c := s.run()
			if test.code == "" {
				wantEnd(t, got, provision.Success, "")
			} else {
				wantEnd(t, got, provision.Failed, test.code)
			}
			if text := c.text() + got.Detail.ErrorMessage; !strings.Contains(text, test.want) {
				t.Errorf("the run said %q, want %q in it", text, test.want)
			}
			if strings.Contains(c.text(), "Initializing") != (test.code == "") {
				t.Errorf("init ran: %v, want %v", test.code != "", test.code == "")
			}
		})
	}
}

// strangers is a git server beside the one of templates.
func (s *site) strangers() *gittest.Server {
	s.t.Helper()
	other := gittest.NewServer(s.t)
	other.Repo("mods/inner", module("inner"), "v1")
	other.Repo("mods/outer", gittest.Text(map[string]string{
		"main.tf":      fmt.Sprintf("module \"inner\" { source = \"git::%s/mods/inner.git\" }\nmodule \"deep\" { source = \"./deep\" }\noutput \"text\" { value = \"${module.inner.text} ${module.deep.text}\" }\n", other.URL),
		"deep/main.tf": `output "text" { value = "deep" }`,
	}), "v1")
	return other
}

// on fills the server's URL in.
func on(server *gittest.Server, files map[string]string) map[string]string {
	filled := map[string]string{}
	for name, text := range files {
		filled[name] = strings.ReplaceAll(text, "%[1]s", server.URL)
	}
	return filled
}
