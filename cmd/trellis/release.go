package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
)

func (a *app) releaseCommand() *cobra.Command {
	var reason string
	var out format
	cmd := &cobra.Command{
		Use:   "release WORKSPACE",
		Short: "Free a workspace whose agent will not come back",
		Long: `Frees a workspace that an agent holds although it runs nothing there: the agent was
lost while it applied, or it keeps a state that it could not store. Both end by
themselves when that agent comes back; this is for one that will not.

Make sure first that its Terraform no longer runs: whatever is queued for the
workspace starts at once, and a state that the lost agent could not store is given
up. Should the agent come back after all it is told to stop, and its result is
recorded unless the workspace has been used since.

A workspace whose state is a file on its agent stays with that agent: only it can
run the workspace, before and after the release.`,
		Example: `  trellis release acme/prod --reason "the node is gone"`,
		Args:    one("a workspace's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			if err := s.Release(ctx, w.ID, reason); err != nil {
				return err
			}
			if w.Home != "" {
				return a.answer(out, w, "Workspace %s on cluster %s is released. Its state is a file on agent %s; only that agent can run it.", w.Name, w.Cluster, w.Home)
			}
			return a.answer(out, w, "Workspace %s on cluster %s is released; what is queued there may start.", w.Name, w.Cluster)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the log and the audit")
	addFormat(cmd, &out)
	return cmd
}
