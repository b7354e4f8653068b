package executor_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/provision"
)

func variablesOf(c *child) []provision.Variable {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.reports {
		if r.Detail.Variables != nil {
			return r.Detail.Variables
		}
	}
	return nil
}

// An inspection tells what the template declares. It needs no engine and leaves
// no state.
func TestInspect(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": `
		variable "region" {}
		variable "big" { default = 1e500 }
		variable "odd" {
			description = "a\u0000b"
			default = "c\u0000d"
		}`}, map[string]any{"undeclared": 1})
	s.job.Settings.Engine.Dir = filepath.Join(s.dirs, "no-engine")
	s.job.Assignment.PinnedCommit = ""
	c := s.do(provision.OperationInspect)
	got := variablesOf(c)
	if len(got) != 3 || got[2].Name != "region" || !got[2].Required || got[0].Default != nil || got[1].Default != nil || strings.Contains(got[1].Description, "\x00") {
		t.Errorf("variables = %+v, want three, without what no database stores", got)
	}
	if about := last(c, func(d provision.Detail) *provision.About { return d.About }); about == nil || *about != (provision.About{Provisioner: "terraform"}) {
		t.Errorf("about = %+v, want that Terraform carries it out", about)
	}
	want := []provision.Stage{provision.StageCheckout, provision.StageValidate, provision.StageDone}
	if got := c.stages(); !slices.Equal(got, want) {
		t.Errorf("stages = %v, want %v", got, want)
	}
	if s.stateFile() != nil {
		t.Error("an inspection leaves a state")
	}

	// What the template says of itself is told, and nothing of it is run.
	machines := newLines(t, "not a program")
	machines.job.Assignment.PinnedCommit = ""
	machines.ask(machines.repo.URL, "v1", "", nil)
	machines.job.Assignment.Operation = provision.OperationInspect
	inspected, run := machines.run()
	wantEnd(t, inspected, provision.Success, "")
	if about := last(run, func(d provision.Detail) *provision.About { return d.About }); about == nil || *about != (provision.About{Title: "Class", Icon: "people", Provisioner: "script"}) {
		t.Errorf("about = %+v, want title, icon and that a script carries it out", about)
	}

	// A template that cannot be read says so, and so does a tendril.hcl.
	for name, files := range map[string]map[string]string{
		"a syntax error": {"main.tf": `variable "a" {`}, "a wrong tendril.hcl": {"variables.tf": `variable "a" {}`, "tendril.hcl": `titel = "x"`},
		"a variable that is not there": {"variables.tf": `variable "a" {}`, "tendril.hcl": "placement {\n  variable = \"b\"\n}\n"},
	} {
		s = newSite(t)
		s.template(files, nil)
		s.job.Assignment.Operation = provision.OperationInspect
		if end, _ := s.run(); end.Status != provision.Failed || end.Detail.ErrorCode != provision.CodeTemplateInvalid {
			t.Errorf("inspection of %s = %s %s, want FAILED with %s", name, end.Status, end.Detail.ErrorCode, provision.CodeTemplateInvalid)
		}
	}
}

// The first run of a version tells what it declares, later ones need not.
func TestFirstRunTellsVariables(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.template(map[string]string{"main.tf": two}, nil)
	c := s.do(provision.OperationPlan)
	if got := variablesOf(c); len(got) != 1 || got[0].Name != "input" {
		t.Errorf("variables told by the first run = %+v, want input", got)
	}
	s.job.Assignment.PinnedCommit = last(c, func(d provision.Detail) string { return d.Commit })
	if got := variablesOf(s.do(provision.OperationPlan)); got != nil {
		t.Errorf("variables told by a later run = %+v, want none", got)
	}
}
