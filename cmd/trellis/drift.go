package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

func (a *app) driftCommand() *cobra.Command {
	var every time.Duration
	var never, now, follow bool
	var out format
	cmd := &cobra.Command{
		Use:   "drift [WORKSPACE]",
		Short: "Show what has changed outside, or have it looked for",
		Long: `Shows where the infrastructure differs from what Terraform's state says: for all
workspaces that are looked at, or for one with the resources concerned. Looking changes
nothing, neither the infrastructure nor the state.

With --now it is looked for at once, with --every by a schedule.`,
		Example: `  trellis drift
  trellis drift demo/hello --now --follow
  trellis drift demo/hello --every 24h`,
		Args: atMostOne("a workspace's name or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			schedule := cmd.Flags().Changed("every")
			switch {
			case len(args) == 0 && (schedule || never || now):
				return wrongUsage("name the workspace")
			case schedule && (never || every < 5*time.Minute || every > 366*24*time.Hour):
				return wrongUsage("--every: how often, such as 24h, from 5m to 8784h (366 days); --never ends it")
			case len(args) == 0:
				return a.printDrifts(ctx, s, out)
			}
			w, err := s.FindWorkspace(ctx, args[0])
			if err != nil {
				return err
			}
			if schedule || never {
				if err := s.WatchDrift(ctx, w.ID, every); err != nil {
					return err
				}
				if out == "json" {
					d, err := s.Drift(ctx, w.ID)
					if err != nil {
						return err
					}
					return a.printJSON(d)
				}
				if never {
					return a.print("Workspace %s is not looked at for drift any more.", w.Name)
				}
				return a.print("Workspace %s is looked at for drift every %s.", w.Name, span(every))
			}
			if now {
				if err := followOrJSON(follow, out); err != nil {
					return err
				}
				queued, err := a.queueAgain(ctx, s, w, provision.OperationRefresh, choices{}, "trellis drift")
				if err != nil {
					return err
				}
				return a.tellQueued(ctx, s, cmd, queued, follow, out)
			}
			d, err := s.Drift(ctx, w.ID)
			switch {
			case err != nil:
				return err
			case out == "json":
				return a.printJSON(d)
			}
			return a.printDrift(cmd, d)
		}),
	}
	flags := cmd.Flags()
	flags.DurationVar(&every, "every", 0, "look for drift that often, from 5m on")
	flags.BoolVar(&never, "never", false, "end the schedule")
	flags.BoolVar(&now, "now", false, "look for drift now")
	addFollow(cmd, &follow, &out)
	return cmd
}

func (a *app) printDrifts(ctx context.Context, s *client.Client, out format) error {
	list, err := s.Drifts(ctx)
	if err != nil {
		return err
	}
	var rows []string
	for _, d := range list {
		rows = append(rows, row(d.Workspace, d.Cluster, drifted(d), at(d.LookedAt), interval(d)))
	}
	return a.listing(out, list, "No workspace is looked at for drift yet.", "WORKSPACE\tCLUSTER\tDRIFTED\tLOOKED AT\tEVERY", rows)
}

func (a *app) printDrift(cmd *cobra.Command, d store.Drift) error {
	if d.LookedAt == nil {
		a.say("Workspace %s was never looked at for drift. Do it now: %s", d.Workspace, a.hint(cmd, "drift "+d.Workspace+" --now --follow"))
		return nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s on cluster %s: %s (looked at %s, schedule: %s)\n", d.Workspace, d.Cluster, drifted(d), at(d.LookedAt), interval(d))
	for _, change := range d.Changes {
		text.WriteString(a.changeLines(change))
	}
	_, err := io.WriteString(a.out, a.out.fit(text.String()))
	return err
}

func drifted(d store.Drift) string {
	switch {
	case d.LookedAt == nil:
		return "not known"
	case d.Count == 0:
		return "no drift"
	case d.Count == 1:
		return "1 resource"
	}
	return fmt.Sprintf("%d resources", d.Count)
}

func interval(d store.Drift) string {
	if d.Every == nil {
		return "none"
	}
	return span(time.Duration(*d.Every * float64(time.Second)))
}
