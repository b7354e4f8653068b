package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/seal"
)

func clustersCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "Make, list and pause clusters, let agents join",
		Args:  verb,
	}
	cmd.AddCommand(clustersCreateCommand(a), clustersListCommand(a), clustersPauseCommand(a, true), clustersPauseCommand(a, false), clustersJoinCommand(a), clustersJoinTokenCommand(a), clustersTrustCommand(a), clustersKeysCommand(a), clustersRotateCommand(a), clustersTokensCommand(a), clustersPolicyCommand(a))
	return cmd
}

func clustersCreateCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:   "create NAME",
		Short: "Make a cluster, and say how agents join it",
		Long: `Makes a cluster, says how agents join it by key, and prints a token for agents that
reach the database directly, which is shown only once. In a database that has just
been migrated "trellis admin init" makes the first organisation.`,
		Example: `  trellis clusters create prod`,
		Args:    one("the cluster's name"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			made, err := s.CreateCluster(ctx, args[0])
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(made)
			}
			a.say("Cluster %s is made (id %s). On an agent's machine:\n  tendril join %s --cluster %s\nAgents that reach the database directly take this token as TENDRIL_API_TOKEN; it is shown only now:", args[0], made.ID, s.URL(), args[0])
			return a.print("%s", made.Token)
		}),
	})
}

func clustersListCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "list",
		Short:   "List clusters and their agents",
		Example: `  trellis clusters list`,
		Args:    none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			clusters, err := s.Clusters(ctx)
			return listing(&a.printer, clusters, err, "There is no cluster yet: an admin makes one with trellis clusters create.", "NAME\tSTATE\tLAST SEEN\tAGENTS\tKEY", func(c wire.Cluster) []any {
				return []any{c.Name, c.Connectivity, lastSeen(c), agents(c), keyOf(c)}
			})
		}),
	})
}

// keyOf is the fingerprint of what variables are sealed to.
func keyOf(c wire.Cluster) string {
	if c.AgePublicKey == "" {
		return "none yet"
	}
	return seal.Fingerprint(c.AgePublicKey)
}

func lastSeen(c wire.Cluster) string {
	if c.LastSeenAt == nil {
		return "never"
	}
	return ago(time.Since(*c.LastSeenAt)) + " ago"
}

// agents names those that are alive, with their slots.
func agents(c wire.Cluster) string {
	var alive []string
	for _, agent := range c.Agents {
		if agent.Alive {
			alive = append(alive, fmt.Sprintf("%s (%d slots)", agent.Name, agent.Slots))
		}
	}
	return strings.Join(alive, ", ")
}

// clustersPauseCommand is pause, or resume.
func clustersPauseCommand(a *app, pause bool) *cobra.Command {
	var reason string
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
	cmd.RunE = about(a, (*client.Client).FindCluster, func(ctx context.Context, s *client.Client, _ *cobra.Command, c wire.Cluster) error {
		if err := s.Pause(ctx, c.ID, pause, reason); err != nil {
			return err
		}
		var err error
		if a.json() {
			c, err = s.FindCluster(ctx, c.ID.String())
		}
		return a.answer(err, c, done, c.Name)
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	addFormat(a, cmd)
	return cmd
}

func clustersRotateCommand(a *app) *cobra.Command {
	var overlap time.Duration
	cmd := &cobra.Command{
		Use:   "rotate-token NAME|ID",
		Short: "Make a new agent token, and let the old ones run out",
		Long: `Makes a new token for a cluster's agents and prints it, which happens only once. The
tokens before it go on being valid for --overlap: give the new one to the agents and
start them again within that time.`,
		Example: `  trellis clusters rotate-token prod --overlap 2h`,
		Args:    one("a cluster's name or id"),
		RunE: about(a, (*client.Client).FindCluster, func(ctx context.Context, s *client.Client, _ *cobra.Command, c wire.Cluster) error {
			token, err := s.RotateToken(ctx, c.ID, overlap)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(wire.NewCluster{ID: c.ID, Token: token})
			}
			a.say("The new agent token of cluster %s, which is shown only now; those before it end in %s:", c.Name, span(overlap))
			return a.print("%s", token)
		}),
	}
	cmd.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long the tokens before it stay valid, at most 720h")
	addFormat(a, cmd)
	return cmd
}

func clustersPolicyCommand(a *app) *cobra.Command {
	var approval, approvers, expiry string
	var fourEyes bool
	cmd := &cobra.Command{
		Use:   "policy NAME|ID",
		Short: "Show or set when plans must be approved, and by whom",
		Long: `Shows when plans for a cluster must be approved and by whom. With flags it sets what
they name and leaves the rest, which is an admin's to do.

Of the cluster's policy, the template's and the deploy's own the strictest counts, and
so does what an agent's configuration asks for.`,
		Example: `  trellis clusters policy prod
  trellis clusters policy prod --approval destructive --approvers admin`,
		Args: one("a cluster's name or id"),
	}
	flags := cmd.Flags()
	cmd.RunE = about(a, (*client.Client).FindCluster, func(ctx context.Context, s *client.Client, _ *cobra.Command, c wire.Cluster) error {
		var change wire.PolicyChange
		if flags.Changed("approval") {
			change.Approval = &approval
		}
		if flags.Changed("approvers") {
			change.Approvers = &approvers
		}
		if flags.Changed("four-eyes") {
			change.FourEyes = &fourEyes
		}
		if flags.Changed("approval-expiry") {
			change.ApprovalExpiry = &expiry
		}
		var policy wire.Policy
		var err error
		if change == (wire.PolicyChange{}) {
			policy, err = s.Policy(ctx, c.ID)
		} else {
			policy, err = s.SetPolicy(ctx, c.ID, change)
		}
		switch {
		case err != nil:
			return err
		case a.json():
			return a.printJSON(policy)
		}
		return a.pairs([]string{"Cluster", c.Name}, []string{"Approval", policy.Approval}, []string{"Approvers", policy.Approvers},
			[]string{"Four eyes", fmt.Sprint(policy.FourEyes)}, []string{"Expiry", policy.ApprovalExpiry})
	})
	flags.StringVar(&approval, "approval", "", "which plans wait for approval: never, destructive (those that destroy, replace or forget something) or always")
	flags.StringVar(&approvers, "approvers", "", "the least role of who may approve: operator or admin")
	flags.BoolVar(&fourEyes, "four-eyes", false, "the requester may not approve it; --four-eyes=false ends that")
	flags.StringVar(&expiry, "approval-expiry", "", `how long a plan waits before its run is cancelled, such as 12h or "7 days"`)
	addFormat(a, cmd)
	return cmd
}

func clustersTokensCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "tokens [NAME|ID]",
		Short:   "List and revoke the tokens of a cluster's agents",
		Example: `  trellis clusters tokens prod`,
		Args:    atMostOne("a cluster's name or id"),
	}
	lists := &cobra.Command{
		Use:     "list [NAME|ID]",
		Short:   "List the agent tokens of a cluster; default: the only cluster's",
		Example: `  trellis clusters tokens list prod`,
		Args:    atMostOne("a cluster's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			c, tokens, err := credentialsOf(ctx, s, strings.Join(args, ""), "token")
			return listing(&a.printer, tokens, err, "Cluster "+c.Name+" has no token.", "ID\tMADE\tENDS", func(t wire.ClusterToken) []any {
				return []any{t.ID, t.CreatedAt.Local().Format(time.DateTime), ends(t)}
			})
		}),
	}
	addFormat(a, lists)
	cmd.AddCommand(lists, revokeCommand(a, "token", `Revokes an agent token of a cluster at once, or a join token: agents that use it are
refused from then on. "trellis clusters rotate-token" makes a new one first.`, "tokens"))
	listAlone(cmd)
	return cmd
}
