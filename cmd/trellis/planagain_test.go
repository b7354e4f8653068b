package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/provision"
)

func TestPlanAgainIsOfferedForOrphansOnly(t *testing.T) {
	t.Parallel()
	a := &app{program: "trellis"}
	orphan := func(status provision.Status, operation provision.Operation, code provision.Code, stage provision.Stage) wire.Provision {
		text := string(code)
		return wire.Provision{Number: 7, Workspace: "w", Status: status, Operation: operation, ErrorCode: &text, Stages: []wire.StageTime{{Stage: stage}}}
	}
	for name, c := range map[string]struct {
		p       wire.Provision
		offered bool
	}{
		"lost in the apply": {orphan(provision.Failed, provision.OperationApply, provision.CodeAgentLost, provision.StageApply), true},
		"killed":            {orphan(provision.Failed, provision.OperationApply, provision.CodeExecDied, provision.StageApply), true},
		"lost in the plan":  {orphan(provision.Failed, provision.OperationApply, provision.CodeAgentLost, provision.StagePlan), false},
		"failed by itself":  {orphan(provision.Failed, provision.OperationApply, provision.CodeApplyFailed, provision.StageApply), false},
		"a destroy":         {orphan(provision.Failed, provision.OperationDestroy, provision.CodeAgentLost, provision.StageApply), false},
		"settled after all": {orphan(provision.Success, provision.OperationApply, "", provision.StageApply), false},
	} {
		got := planAgain(a, &cobra.Command{}, c.p)
		if offered := strings.Contains(got, "trellis retry 7 --plan --follow") && strings.Contains(got, "trellis resources w"); offered != c.offered || !c.offered && got != "" {
			t.Errorf("%s: planAgain() = %q, want it to be offered: %t", name, got, c.offered)
		}
	}
}
