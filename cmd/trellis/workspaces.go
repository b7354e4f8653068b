package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

func (a *app) workspacesCommand() *cobra.Command {
	var limit int
	var out format
	cmd := &cobra.Command{
		Use:     "workspaces",
		Short:   "List workspaces, and what goes on there",
		Example: `  trellis workspaces`,
		Args:    none,
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			if limit < 1 || limit > 10000 {
				return wrongUsage("--limit: from 1 to 10000 are possible")
			}
			list, err := s.Workspaces(ctx, limit)
			if err != nil {
				return err
			}
			var rows []string
			for _, w := range list {
				latest, since := "-", "-"
				if w.Number != nil {
					latest, since = fmt.Sprintf("%d %s", *w.Number, *w.Status), ago(time.Since(*w.Since))
				}
				rows = append(rows, row(w.Name, w.Cluster, w.Resources, latest, since, w.Doing))
			}
			return a.listing(out, list, "There is no workspace yet: the first deploy makes one.", "WORKSPACE\tCLUSTER\tRESOURCES\tLATEST\tAGE\tDOING", rows)
		}),
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 1000, "how many to list")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) resourcesCommand() *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:     "resources WORKSPACE",
		Short:   "List what exists in a workspace",
		Long:    `Lists the resources that the workspace's state recorded at the end of its newest apply or destroy. Sensitive attributes are never among what is shown.`,
		Example: `  trellis resources demo/hello`,
		Args:    one("a workspace's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			list, err := s.Resources(ctx, w.ID)
			if err != nil {
				return err
			}
			var rows []string
			for _, r := range list {
				rows = append(rows, row(r.Address, deref(r.ExternalID), strings.Join(r.IPAddresses, " "), deref(r.Status)))
			}
			return a.listing(out, list, "Nothing exists in workspace "+w.Name+", as far as its runs have told.", "ADDRESS\tID\tIP\tSTATUS", rows)
		}),
	}
	addFormat(cmd, &out)
	return cmd
}

func (a *app) outputsCommand() *cobra.Command {
	var out format
	var reveal bool
	cmd := &cobra.Command{
		Use:   "outputs WORKSPACE|NUMBER",
		Short: "Show the outputs of a workspace, or of one provision",
		Long: `Shows the newest outputs of a workspace, or those of one provision, as NAME = JSON. A
sensitive output is recorded sealed to the key of the person who deployed ("trellis keys"), if the
agent's policy.requester_keys name that key; --reveal opens those that are sealed to yours.
-o json has the age message in the field "sealed".`,
		Example: `  trellis outputs demo/hello
  trellis outputs demo/hello --reveal
  trellis outputs 12 -o json`,
		Args: one("a workspace's name or a provision's number"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			p, err := a.outputsOf(ctx, s, args[0])
			if err != nil {
				return err
			}
			if err := a.revealed(p.Outputs, reveal); err != nil {
				return err
			}
			switch {
			case out == "json":
				if p.Outputs == nil {
					p.Outputs = map[string]provision.Output{}
				}
				return a.printJSON(p.Outputs)
			case len(p.Outputs) == 0:
				a.say("Provision %d has no outputs.", p.Number)
				return nil
			}
			return a.print("%s", printable.Text(strings.Join(outputLines(p.Outputs), "\n")))
		}),
	}
	addFormat(cmd, &out)
	cmd.Flags().BoolVar(&reveal, "reveal", false, "show sensitive outputs that are sealed to your key")
	return cmd
}

// revealed opens sealed outputs if that was asked for, and says what it could not open.
func (a *app) revealed(outputs map[string]provision.Output, asked bool) error {
	sealed := 0
	for _, o := range outputs {
		if o.Sealed != "" {
			sealed++
		}
	}
	switch {
	case sealed == 0:
		return nil
	case !asked:
		a.say("Sealed outputs: %d. --reveal shows those that are sealed to your key.", sealed)
		return nil
	}
	opened, err := a.reveal(outputs)
	if err == nil && opened < sealed {
		a.say("Outputs that are sealed to a key that you don't have here: %d.", sealed-opened)
	}
	return err
}

// outputsOf finds the provision that is meant by a number, an id or a workspace.
func (a *app) outputsOf(ctx context.Context, s *client.Client, ref string) (store.Provision, error) {
	if isProvision(ref) {
		return s.Provision(ctx, ref)
	}
	w, err := s.FindWorkspace(ctx, ref)
	if err != nil {
		return store.Provision{}, err
	}
	return s.LastOutputs(ctx, w)
}

// isProvision tells a provision's number from a workspace's name.
func isProvision(ref string) bool {
	return strings.Trim(strings.TrimPrefix(ref, "#"), "0123456789") == ""
}

func (a *app) lockCommand() *cobra.Command {
	var reason string
	var out format
	cmd := &cobra.Command{
		Use:   "lock WORKSPACE --reason WHY",
		Short: "Keep a workspace from running anything until it is unlocked",
		Long: `Keeps a workspace from running anything until it is unlocked. What runs there goes on;
deploys are queued and wait. Others see who locked it, since when and why.`,
		Example: `  trellis lock acme/prod --reason "migrating the database by hand"`,
		Args:    one("a workspace's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			if reason == "" {
				return wrongUsage("--reason is missing: why, for others to read")
			}
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			if err := s.Lock(ctx, w.ID, reason); err != nil {
				return err
			}
			return a.answer(out, w, "Workspace %s on cluster %s is locked: nothing starts there until it is unlocked.", w.Name, w.Cluster)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for others to read (required)")
	addFormat(cmd, &out)
	return cmd
}
