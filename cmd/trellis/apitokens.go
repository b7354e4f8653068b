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
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var list, revoke format
	lists := &cobra.Command{
		Use:   "list",
		Short: "List your own API tokens",
		Args:  none,
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
		Use:   "revoke ID",
		Short: "Revoke one of your own API tokens",
		Args:  one("the token's id"),
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
