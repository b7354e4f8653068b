package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs NUMBER|ID",
		Short: "Print a provision's log",
		Long: `Prints a provision's log. With --follow, goes on until the provision has ended and
exits with its outcome: 0 when it succeeded, 1 when it failed or was cancelled.
Ctrl-C stops following; the provision goes on.`,
		Example: `  trellis logs 12
  trellis logs 12 --follow`,
		Args: one("a provision's number or id"),
		RunE: a.withStore(func(ctx context.Context, s *store.Store, cmd *cobra.Command, args []string) error {
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			if follow {
				return a.followToEnd(ctx, s, cmd, p.ID, p.Number)
			}
			f := &follower{app: a, store: s, id: p.ID, screen: newScreen(a.out)}
			return errors.Join(f.page(ctx), f.screen.close())
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the provision has ended")
	return cmd
}
