package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

func (a *app) statusCommand() *cobra.Command {
	var limit int
	var out format
	cmd := &cobra.Command{
		Use:   "status [NUMBER|ID]",
		Short: "List the latest provisions, or show one",
		Long: `Lists the latest provisions, newest first, or shows one: why it waits and what to do
about that, how far it is and how long each stage took, its outputs, what went wrong.
All times are by the database's clock. The exit code says whether that could be read, not how the provision
fared: for that, see "trellis logs --follow".`,
		Example: `  trellis status
  trellis status 12
  trellis status 12 -o json`,
		Args: atMostOne("a provision's number or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				p, err := s.Provision(ctx, args[0])
				if err == nil && out == "json" {
					return a.printJSON(p)
				}
				if err != nil {
					return err
				}
				return a.printProvision(cmd, p)
			}
			if limit < 1 || limit > 1000 {
				return wrongUsage("--limit: from 1 to 1000 are possible")
			}
			list, err := s.Provisions(ctx, limit)
			if err != nil {
				return err
			}
			return a.printList(cmd, list, out)
		}),
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 20, "how many to list")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) printList(cmd *cobra.Command, list []store.Provision, out format) error {
	var rows []string
	for _, p := range list {
		name := strings.TrimSuffix(path.Base(path.Join(p.Template.Repo, p.Template.Path)), ".git")
		rows = append(rows, row(p.Number, p.Status, p.Workspace, name+" "+p.Template.Version, ago(p.AsOf.Sub(p.CreatedAt)), took(p), where(p)))
	}
	if err := a.listing(out, list, "Nothing has been deployed yet.", "NUMBER\tSTATUS\tWORKSPACE\tTEMPLATE\tAGE\tTOOK\tWHERE", rows); err != nil {
		return err
	}
	if out != "json" && slices.ContainsFunc(list, func(p store.Provision) bool { return len(p.Why) > 0 }) {
		a.say("What to do about one that waits: %s", a.hint(cmd, "status NUMBER"))
	}
	return nil
}

// took is how long a provision has run so far, or ran.
func took(p store.Provision) string {
	switch {
	case p.StartedAt == nil:
		return "-"
	case p.FinishedAt == nil:
		return seconds(max(0, p.AsOf.Sub(*p.StartedAt)))
	}
	return seconds(p.FinishedAt.Sub(*p.StartedAt))
}

// where is how far a provision has come, or why it came no further.
func where(p store.Provision) string {
	switch {
	case p.Status == provision.Queued:
		return p.Waiting
	case p.ErrorCode != nil && p.Status != provision.Cancelled:
		return *p.ErrorCode
	case p.Stage == nil || p.Status.Terminal():
		return ""
	case p.Percent != nil:
		return fmt.Sprintf("%s %d %%", *p.Stage, *p.Percent)
	}
	return string(*p.Stage)
}

func (a *app) printProvision(cmd *cobra.Command, p store.Provision) error {
	lines := [][2]string{
		{"id", p.ID.String()},
		{"workspace", p.Workspace + " on cluster " + p.Cluster},
		{"operation", string(p.Operation)},
		{"template", strings.TrimSpace(p.Template.Repo + " " + p.Template.Version + " " + p.Template.Path)},
		{"commit", deref(p.Commit)},
		{"engine", deref(p.Engine)},
		{"waits", a.whyLines(cmd, p)},
		{"lock", a.lockLines(cmd, p)},
	}
	if p.Plan != nil {
		lines = append(lines, [2]string{"plan", planCounts(*p.Plan)})
	}
	if p.Status == provision.Processing {
		lines = append(lines, [2]string{"now", where(p)}, [2]string{"works on", runningLines(p)})
	}
	lines = append(lines, [2]string{"queued", p.CreatedAt.Local().Format(time.DateTime)})
	if p.StartedAt != nil {
		lines = append(lines, [2]string{"started", p.StartedAt.Local().Format(time.DateTime)})
	}
	if p.FinishedAt != nil {
		lines = append(lines, [2]string{"finished", fmt.Sprintf("%s (took %s)", p.FinishedAt.Local().Format(time.DateTime), took(p))})
	}
	lines = append(lines,
		[2]string{"stages", stageLines(p)}, [2]string{"error", deref(p.ErrorCode)}, [2]string{"", deref(p.ErrorMessage)}, [2]string{"then", a.planAgain(cmd, p)})

	var text strings.Builder
	fmt.Fprintf(&text, "Provision %d: %s\n", p.Number, p.Status)
	for _, line := range lines {
		if line[1] != "" {
			fmt.Fprintf(&text, "  %-10s %s\n", line[0], strings.ReplaceAll(line[1], "\n", "\n             "))
		}
	}
	if len(p.Outputs) > 0 {
		text.WriteString("  outputs\n")
		for _, line := range outputLines(p.Outputs) {
			text.WriteString("    " + line + "\n")
		}
	}
	_, err := fmt.Fprint(a.out, printable.Text(text.String()))
	return err
}

func deref(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// outputLines are outputs as NAME = JSON, by name; a sensitive one has no value, unless
// it was revealed.
func outputLines(outputs map[string]provision.Output) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(outputs)) {
		value := string(outputs[name].Value)
		if outputs[name].Sensitive && outputs[name].Value == nil {
			value = "(sensitive)"
		} else if compact, err := json.Marshal(outputs[name].Value); err == nil {
			value = string(compact)
		}
		lines = append(lines, name+" = "+value)
	}
	return lines
}
