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
	want := []provision.Stage{provision.StageCheckout, provision.StageValidate, provision.StageDone}
	if got := c.stages(); !slices.Equal(got, want) {
		t.Errorf("stages = %v, want %v", got, want)
	}
	if s.stateFile() != nil {
		t.Error("an inspection leaves a state")
	}

	// A template that cannot be read says so.
	s = newSite(t)
	s.template(map[string]string{"main.tf": `variable "a" {`}, nil)
	s.job.Assignment.Operation = provision.OperationInspect
	end, _ := s.run()
	wantEnd(t, end, provision.Failed, provision.CodeTemplateInvalid)
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
