package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
)

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	var out format
	cmd := &cobra.Command{
		Use:   "logs NUMBER|ID",
		Short: "Print a provision's log",
		Long: `Prints a provision's log. With --follow, goes on until the provision has ended and
exits with its outcome: 0 when it succeeded, 1 when it failed or was cancelled.
Ctrl-C stops following; the provision goes on. What is cut is taken up again where it
was: no line is lost or shown twice. Where the agent was lost, it goes on while that may
still deliver lines and a result, for a day at most.

With -o json each line printed is an object: seq, stream, text (some lines, or a part of
one) and emitted_at.`,
		Example: `  trellis logs 12
  trellis logs 12 --follow`,
		Args: one("a provision's number or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			if follow {
				return a.followToEnd(ctx, s, cmd, p.ID, p.Number, out, true)
			}
			f := a.newFollower(out)
			return errors.Join(s.Log(ctx, p.ID, f.line), f.screen.close())
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the provision has ended")
	addFormat(cmd, &out)
	return cmd
}
