package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/seal"
)

func (a *app) clustersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "Make, list and pause clusters, set their policy and tokens",
		Args:  verb,
	}
	cmd.AddCommand(a.clustersCreateCommand(), a.clustersListCommand(), a.clustersPauseCommand(true), a.clustersPauseCommand(false), a.clustersRotateCommand(), a.clustersTokensCommand(), a.clustersPolicyCommand())
	return cmd
}

func (a *app) clustersCreateCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a cluster and print its agent token, which is shown once",
		Long: `Makes a cluster and prints its agent token, which is shown only once. In a database
that has just been migrated "trellis admin init" makes the first organisation.`,
		Example: `  trellis clusters create prod`,
		Args:    one("the cluster's name"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			made, err := s.CreateCluster(ctx, args[0])
			if err != nil {
				return err
			}
			if out == "json" {
				return a.printJSON(made)
			}
			a.say("Cluster %s is made (id %s). Its agent token, which is shown only now:", args[0], made.ID)
			if err := a.print("%s", made.Token); err != nil {
				return err
			}
			a.say("Give it to the agent there as TENDRIL_API_TOKEN, with TENDRIL_QUEUE_URL naming %s or its database.", s.URL())
			return nil
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) clustersListCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List clusters and their agents",
		Example: `  trellis clusters list`,
		Args:    none,
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			clusters, err := s.Clusters(ctx)
			if err != nil {
				return err
			}
			var rows []string
			for _, c := range clusters {
				rows = append(rows, row(c.Name, c.Connectivity, lastSeen(c), agents(c), keyOf(c)))
			}
			return a.listing(out, clusters, "There is no cluster yet: an admin makes one with trellis clusters create.", "NAME\tSTATE\tLAST SEEN\tAGENTS\tKEY", rows)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

// keyOf is the fingerprint of what variables are sealed to.
func keyOf(c store.Cluster) string {
	if c.AgePublicKey == "" {
		return "none yet"
	}
	return seal.Fingerprint(c.AgePublicKey)
}

func lastSeen(c store.Cluster) string {
	if c.LastSeenAt == nil {
		return "never"
	}
	return ago(time.Since(*c.LastSeenAt)) + " ago"
}

// agents names those that are alive, with their slots.
func agents(c store.Cluster) string {
	var alive []string
	for _, agent := range c.Agents {
		if agent.Alive {
			alive = append(alive, fmt.Sprintf("%s (%d slots)", agent.Name, agent.Slots))
		}
	}
	return strings.Join(alive, ", ")
}
