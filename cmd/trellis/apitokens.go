package main

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
)

func (a *app) apiTokensCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "api-tokens",
		Short: "List and revoke your own API tokens",
		Long: `Lists and revokes your own API tokens, those of "trellis login" among them. A token
cannot make others: do that on the server's account page.`,
		Args: verb,
	}
	var list, revoke format
	lists := &cobra.Command{
		Use:     "list",
		Short:   "List your own API tokens",
		Example: `  trellis api-tokens list`,
		Args:    none,
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			tokens, err := s.APITokens(ctx)
			if err != nil {
				return err
			}
			var rows []string
			for _, t := range tokens {
				rows = append(rows, row(t.ID, t.Name, t.CreatedAt.Local().Format(time.DateTime), at(t.LastUsedAt), at(t.ExpiresAt)))
			}
			return a.listing(list, tokens, "You have no API token.", "ID\tNAME\tMADE\tLAST USED\tENDS", rows)
		}),
	}
	addFormat(lists, &list)
	revokes := &cobra.Command{
		Use:     "revoke ID",
		Short:   "Revoke one of your own API tokens",
		Example: `  trellis api-tokens revoke 3f0c2a10-6a2b-4f4e-9a58-0c1d2e3f4a5b`,
		Args:    one("the token's id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			id, err := uuid.Parse(args[0])
			if err != nil {
				return wrongUsage("%q is no token's id: trellis api-tokens list", args[0])
			}
			if err := s.RevokeAPIToken(ctx, id); err != nil {
				return err
			}
			return a.answer(revoke, map[string]any{"id": id, "revoked": true}, "The token %s is revoked.", id)
		}),
	}
	addFormat(revokes, &revoke)
	cmd.AddCommand(lists, revokes)
	return cmd
}
