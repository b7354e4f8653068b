package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/provision"
)

func (a *app) cancelCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "cancel NUMBER|ID",
		Short: "Cancel a provision",
		Long: `Cancels a provision. One that waits is cancelled at once; of one that runs,
Terraform is interrupted once and may write its state. A success that was
reported first wins.`,
		Example: `  trellis cancel 12`,
		Args:    one("a provision's number or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			status, err := s.Cancel(ctx, p.ID)
			if err != nil {
				return err
			}
			if out == "json" {
				return a.printStanding(ctx, s, p.ID)
			}
			if status == provision.Cancelled {
				return a.print("Provision %d is cancelled.", p.Number)
			}
			return a.print("Provision %d is asked to stop. Watch it: %s", p.Number, a.hint(cmd, fmt.Sprintf("logs %d --follow", p.Number)))
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

// printStanding prints a provision as it is after something was done about it.
func (a *app) printStanding(ctx context.Context, s *client.Client, id uuid.UUID) error {
	p, err := s.Provision(ctx, id.String())
	if err != nil {
		return err
	}
	return a.printJSON(p)
}
