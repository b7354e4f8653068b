package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// clustersPauseCommand is pause, or resume.
func (a *app) clustersPauseCommand(pause bool) *cobra.Command {
	var reason string
	var out format
	cmd := &cobra.Command{
		Use:     "pause NAME|ID",
		Short:   "Keep a cluster's agents from starting anything",
		Long:    `Keeps a cluster's agents from starting anything until it is resumed. What runs goes on; deploys are queued and wait.`,
		Example: `  trellis clusters pause prod --reason "maintenance of the network"`,
	}
	done := "Cluster %s is paused: nothing starts there until it is resumed."
	if !pause {
		cmd = &cobra.Command{
			Use:     "resume NAME|ID",
			Short:   "Let a paused cluster's agents start runs again",
			Example: `  trellis clusters resume prod`,
		}
		done = "Cluster %s is resumed."
	}
	cmd.Args = one("a cluster's name or id")
	cmd.RunE = a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
		c, err := s.FindCluster(ctx, args[0])
		if err != nil {
			return err
		}
		if err := s.Pause(ctx, c.ID, pause, reason); err != nil {
			return err
		}
		if out == "json" {
			c, err = s.FindCluster(ctx, c.ID.String())
			if err != nil {
				return err
			}
		}
		return a.answer(out, c, done, c.Name)
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) clustersRotateCommand() *cobra.Command {
	var overlap time.Duration
	var out format
	cmd := &cobra.Command{
		Use:   "rotate-token NAME|ID",
		Short: "Make a new agent token, and let the old ones run out",
		Long: `Makes a new token for a cluster's agents and prints it, which happens only once. The
tokens before it go on being valid for --overlap: give the new one to the agents and
start them again within that time.`,
		Example: `  trellis clusters rotate-token prod --overlap 2h`,
		Args:    one("a cluster's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			c, err := s.FindCluster(ctx, args[0])
			if err != nil {
				return err
			}
			token, err := s.RotateToken(ctx, c.ID, overlap)
			if err != nil {
				return err
			}
			if out == "json" {
				return a.printJSON(store.NewCluster{ID: c.ID, Token: token})
			}
			a.say("The new agent token of cluster %s, which is shown only now; those before it end in %s:", c.Name, span(overlap))
			return a.print("%s", token)
		}),
	}
	cmd.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long the tokens before it stay valid, at most 720h")
	addFormat(cmd, &out)
	return cmd
}
