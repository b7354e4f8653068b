package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// orphaned are the codes of runs whose end nobody saw.
var orphaned = []provision.Code{
	provision.CodeAgentLost, provision.CodeAgentRestarted, provision.CodeAgentDrained, provision.CodeExecDied,
}

// planAgain is what to do about an apply whose end nobody saw, with what is
// known of it; "" for any other provision.
func (a *app) planAgain(cmd *cobra.Command, p store.Provision) string {
	applied := slices.ContainsFunc(p.Stages, func(s store.StageTime) bool { return s.Stage == provision.StageApply })
	if p.Status != provision.Failed || !applied || p.Operation != provision.OperationApply || !slices.Contains(orphaned, provision.Code(deref(p.ErrorCode))) {
		return ""
	}
	return fmt.Sprintf("Apply had begun. What is recorded of it:  %s\nPlan again, to see what is still to be done:  %s",
		a.hint(cmd, "resources "+p.Workspace), a.hint(cmd, fmt.Sprintf("retry %d --plan --follow", p.Number)))
}

// planOf queues a plan of what a provision asked for.
func (a *app) planOf(ctx context.Context, s *client.Client, p store.Provision) (store.Deployed, error) {
	if p.Operation != provision.OperationApply && p.Operation != provision.OperationPlan {
		return store.Deployed{}, wrongUsage("provision %d is a %s, of which there is no plan", p.Number, p.Operation)
	}
	c, err := s.FindCluster(ctx, p.Cluster)
	if err != nil {
		return store.Deployed{}, err
	}
	return s.Deploy(ctx, c.ID, provision.OperationPlan, p.Snapshot)
}
