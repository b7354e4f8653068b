package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func (a *app) clustersPolicyCommand() *cobra.Command {
	var approval, approvers, expiry string
	var fourEyes bool
	var out format
	cmd := &cobra.Command{
		Use:   "policy NAME|ID",
		Short: "Show or set when plans must be approved, and by whom",
		Long: `Shows when plans for a cluster must be approved and by whom. With flags it sets what
they name and leaves the rest, which is an admin's to do.

Of the cluster's policy, the template's and the deploy's own the strictest counts, and
so does what an agent's configuration asks for.`,
		Example: `  trellis clusters policy prod
  trellis clusters policy prod --approval destructive --approvers admin`,
		Args: one("a cluster's name or id"),
	}
	flags := cmd.Flags()
	cmd.RunE = a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
		c, err := s.FindCluster(ctx, args[0])
		if err != nil {
			return err
		}
		var change store.PolicyChange
		if flags.Changed("approval") {
			change.Approval = &approval
		}
		if flags.Changed("approvers") {
			change.Approvers = &approvers
		}
		if flags.Changed("four-eyes") {
			change.FourEyes = &fourEyes
		}
		if flags.Changed("approval-expiry") {
			change.ApprovalExpiry = &expiry
		}
		var policy store.Policy
		if change == (store.PolicyChange{}) {
			policy, err = s.Policy(ctx, c.ID)
		} else {
			policy, err = s.SetPolicy(ctx, c.ID, change)
		}
		switch {
		case err != nil:
			return err
		case out == "json":
			return a.printJSON(policy)
		}
		var text strings.Builder
		table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintf(table, "Cluster\t%s\nApproval\t%s\nApprovers\t%s\nFour eyes\t%t\nExpiry\t%s", // to memory
			c.Name, policy.Approval, policy.Approvers, policy.FourEyes, policy.ApprovalExpiry)
		_ = table.Flush() // likewise
		return a.print("%s", text.String())
	})
	flags.StringVar(&approval, "approval", "", "which plans wait for approval: never, destructive (those that destroy, replace or forget something) or always")
	flags.StringVar(&approvers, "approvers", "", "the least role of who may approve: operator or admin")
	flags.BoolVar(&fourEyes, "four-eyes", false, "whoever asked for it may not approve it; --four-eyes=false ends that")
	flags.StringVar(&expiry, "approval-expiry", "", `how long a plan waits before its provision is cancelled, such as 12h or "7 days"`)
	addFormat(cmd, &out)
	return cmd
}
