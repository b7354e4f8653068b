package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
)

func clustersJoinCommand(a *app) *cobra.Command {
	var cluster, fingerprint string
	var yes, refuse bool
	cmd := &cobra.Command{
		Use:   "join CODE",
		Short: "Let an agent that shows a code join a cluster",
		Long: `Shows the agent that waits with a code, which "tendril join" prints, and lets it join
a cluster once you confirm. Compare the words of its fingerprint with those that the
agent shows: with the same words it is the same key.

Elsewhere than on a terminal give --fingerprint with what the agent shows, its words
or all its digits, or --yes for whichever agent has the code.`,
		Example: `  trellis clusters join BCDF-GHJK --cluster prod
  trellis clusters join BCDF-GHJK --cluster prod \
    --fingerprint "grid duck problem valid cloth roof rate wealth"
  trellis clusters join BCDF-GHJK --refuse`,
		Args: one("the code that the agent shows"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			expected, err := expectedKey(fingerprint)
			if err != nil {
				return err
			}
			found, err := s.JoinRequest(ctx, args[0])
			if err != nil {
				return err
			}
			if refuse {
				return a.answer(s.RefuseJoin(ctx, args[0]), map[string]any{"refused": true, "agent": found}, "Agent %s on %s is refused.", found.Name, found.Host)
			}
			if fingerprint != "" && !expected.MatchesText(found.Fingerprint) {
				return &problem.RefusedError{Code: "PT409", Reason: "join_changed", Message: fmt.Sprintf("the agent with this code has another key: %s (%s)", found.Words, found.Fingerprint),
					Hint: "it is not the agent that you mean: refuse it with --refuse"}
			}
			if cluster == "" {
				cluster = found.Wanted
			}
			c, err := s.FindCluster(ctx, cluster)
			if err != nil {
				return err
			}
			if !a.json() {
				if err := a.pairs(aboutJoin(found)...); err != nil {
					return err
				}
			}
			if err := confirm(a, yes || fingerprint != "", "yes", fmt.Sprintf("This agent joins cluster %s and gets its runs.", c.Name)); err != nil {
				return err
			}
			joined, err := s.ApproveJoin(ctx, args[0], c.ID, found.Fingerprint)
			return a.answer(err, joined, "Agent %s has joined cluster %s.", found.Name, c.Name)
		}),
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "cluster that it joins, by name or id; default: the one it asks for, else the only one")
	cmd.Flags().StringVar(&fingerprint, "fingerprint", "", "fingerprint that the agent shows, in words or digits: an agent with another one is refused")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&refuse, "refuse", false, "refuse the agent instead")
	addFormat(a, cmd)
	return cmd
}

// expectedKey is the fingerprint that a person gave, which may be none.
func expectedKey(text string) (agentkey.Expected, error) {
	if text == "" {
		return agentkey.Expected{}, nil
	}
	expected, err := agentkey.ParseFingerprint(text)
	if err != nil {
		return expected, wrongUsage("--fingerprint: %v", err)
	}
	return expected, nil
}

// aboutJoin is what an admin sees of an agent before they let it join.
func aboutJoin(r wire.JoinRequest) [][]string {
	may := strings.Join(r.Operations, ", ")
	if may == "" {
		may = "all operations that its version knows"
	}
	return [][]string{
		{"Agent", r.Name}, {"Host", r.Host}, {"Address", r.Address}, {"Version", r.Version}, {"Slots", fmt.Sprint(r.Slots)}, {"Operations", may},
		{"Words", r.Words}, {"Fingerprint", r.Fingerprint}, {"Expires", at(&r.ExpiresAt)},
	}
}

func clustersJoinTokenCommand(a *app) *cobra.Command {
	var name string
	var valid time.Duration
	cmd := &cobra.Command{
		Use:   "join-token NAME|ID",
		Short: "Make a one-time token with which an agent joins without a person",
		Long: `Makes a token with which one agent joins a cluster without a person, for charts and
images, and prints it, which happens only once. It is of no use once an agent has
joined with it, or once it has expired.`,
		Example: `  trellis clusters join-token prod --valid 15m --name "chart of staging"`,
		Args:    one("a cluster's name or id"),
		RunE: about(a, (*client.Client).FindCluster, func(ctx context.Context, s *client.Client, _ *cobra.Command, c wire.Cluster) error {
			made, err := s.NewJoinToken(ctx, c.ID, name, valid)
			switch {
			case err != nil:
				return err
			case a.json():
				return a.printJSON(made)
			}
			a.say("One agent joins cluster %s with this token within %s; it is shown only now:", c.Name, span(valid))
			return a.print("%s", made.Token)
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "what it is for, for the audit")
	cmd.Flags().DurationVar(&valid, "valid", time.Hour, "how long it is valid, from 1m to 24h")
	addFormat(a, cmd)
	return cmd
}

func clustersKeysCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "keys [NAME|ID]",
		Short:   "List and revoke the keys of a cluster's agents",
		Example: `  trellis clusters keys prod`,
		Args:    atMostOne("a cluster's name or id"),
	}
	lists := formatted(a, &cobra.Command{
		Use:     "list [NAME|ID]",
		Short:   "List the keys of a cluster's agents; default: the only cluster's",
		Example: `  trellis clusters keys list prod`,
		Args:    atMostOne("a cluster's name or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			c, keys, err := credentialsOf(ctx, s, strings.Join(args, ""), "key")
			return listing(&a.printer, keys, err, "No agent has joined cluster "+c.Name+" by key.", "ID\tAGENT\tWORDS\tJOINED\tLAST USED\tFROM\tENDS", func(k wire.ClusterToken) []any {
				return []any{k.ID, k.Name, k.Words, k.CreatedAt.Local().Format(time.DateTime), at(k.LastUsedAt), k.LastAddress, ends(k)}
			})
		}),
	})
	cmd.AddCommand(lists, revokeCommand(a, "key", `Revokes the key of one agent at once: it is refused from then on, and so are the keys
that it has rotated to. Its runs end as those of a lost agent.`, "keys"))
	listAlone(cmd)
	return cmd
}

// credentialsOf are a cluster's tokens, or its keys.
func credentialsOf(ctx context.Context, s *client.Client, ref, kind string) (wire.Cluster, []wire.ClusterToken, error) {
	c, err := s.FindCluster(ctx, ref)
	if err != nil {
		return c, nil, err
	}
	all, err := s.ClusterTokens(ctx, c.ID)
	return c, slices.DeleteFunc(all, func(t wire.ClusterToken) bool { return t.Kind != kind }), err
}

// ends is when a token or key ends, or ended.
func ends(t wire.ClusterToken) string {
	if t.RevokedAt != nil {
		return "revoked " + at(t.RevokedAt)
	}
	return at(t.ExpiresAt)
}

// revokeCommand revokes a token or a key, which kind says, of the verb that lists them.
func revokeCommand(a *app, kind, long, verb string) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "revoke NAME|ID " + strings.ToUpper(kind) + "-ID",
		Short:   "Revoke a " + kind + " of a cluster's agents at once",
		Long:    long,
		Example: "  trellis clusters " + verb + " revoke prod 6ba7b810-9dad-11d1-80b4-00c04fd430c8",
		Args:    each("a cluster", "a "+kind+"'s id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			id, err := uuid.Parse(args[1])
			if err != nil {
				return wrongUsage("%q is no %s's id: trellis clusters %s list %s", args[1], kind, verb, args[0])
			}
			c, err := s.FindCluster(ctx, args[0])
			if err != nil {
				return err
			}
			return a.answer(s.RevokeClusterToken(ctx, c.ID, id), map[string]any{"cluster": c.Name, "id": id, "revoked": true}, "The %s %s of cluster %s is revoked.", kind, id, c.Name)
		}),
	})
}
