package main

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
)

func (a *app) clustersTokensCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tokens [NAME|ID]",
		Short:   "List and revoke the tokens of a cluster's agents",
		Example: `  trellis clusters tokens prod`,
		Args:    atMostOne("a cluster's name or id"),
	}
	var list, revoke format
	lists := &cobra.Command{
		Use:     "list [NAME|ID]",
		Short:   "List the agent tokens of a cluster; default: the only cluster's",
		Example: `  trellis clusters tokens list prod`,
		Args:    atMostOne("a cluster's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			c, err := s.FindCluster(ctx, strings.Join(args, ""))
			if err != nil {
				return err
			}
			tokens, err := s.ClusterTokens(ctx, c.ID)
			if err != nil {
				return err
			}
			var rows []string
			for _, t := range tokens {
				rows = append(rows, row(t.ID, t.CreatedAt.Local().Format(time.DateTime), at(t.ExpiresAt)))
			}
			return a.listing(list, tokens, "Cluster "+c.Name+" has no token.", "ID\tMADE\tENDS", rows)
		}),
	}
	addFormat(lists, &list)
	revokes := &cobra.Command{
		Use:     "revoke NAME|ID TOKEN-ID",
		Short:   "Revoke an agent token of a cluster at once",
		Long:    `Revokes an agent token of a cluster at once: agents that use it are refused from then on. "trellis clusters rotate-token" makes a new one first.`,
		Example: `  trellis clusters tokens revoke prod 6ba7b810-9dad-11d1-80b4-00c04fd430c8`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return wrongUsage("give two arguments, a cluster and a token's id")
			}
			return nil
		},
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			id, err := uuid.Parse(args[1])
			if err != nil {
				return wrongUsage("%q is no token's id: trellis clusters tokens list %s", args[1], args[0])
			}
			c, err := s.FindCluster(ctx, args[0])
			if err != nil {
				return err
			}
			if err := s.RevokeClusterToken(ctx, c.ID, id); err != nil {
				return err
			}
			return a.answer(revoke, map[string]any{"cluster": c.Name, "id": id, "revoked": true}, "The token %s of cluster %s is revoked.", id, c.Name)
		}),
	}
	addFormat(revokes, &revoke)
	cmd.AddCommand(lists, revokes)
	listAlone(cmd)
	return cmd
}
