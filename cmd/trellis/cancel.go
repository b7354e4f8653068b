package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

func (a *app) cancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel NUMBER|ID",
		Short: "Cancel a provision",
		Long: `Cancels a provision. One that waits is cancelled at once; of one that runs,
Terraform is interrupted once and may write its state. A success that was
reported first wins.`,
		Example: `  trellis cancel 12`,
		Args:    one("a provision's number or id"),
		RunE: a.withStore(func(ctx context.Context, s *store.Store, cmd *cobra.Command, args []string) error {
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			status, err := s.Cancel(ctx, p.ID)
			if err != nil {
				return err
			}
			if status == provision.Cancelled {
				return a.print("Provision %d is cancelled.", p.Number)
			}
			return a.print("Provision %d is asked to stop. Watch it: %s", p.Number, a.hint(cmd, fmt.Sprintf("logs %d --follow", p.Number)))
		}),
	}
}
