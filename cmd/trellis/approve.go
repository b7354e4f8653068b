package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

func (a *app) approveCommand() *cobra.Command {
	var digest string
	var yes, follow bool
	var out format
	cmd := &cobra.Command{
		Use:   "approve NUMBER|ID",
		Short: "Let a plan be applied",
		Long: `Shows the plan that awaits approval and, when you say so, has exactly that plan
applied. Another plan is never applied in its place: had it changed meanwhile, or has
the state moved on, the apply is refused.

A plan that is still being made is waited for. On a terminal it asks for the
provision's number; elsewhere give --digest with the digest that "trellis status" showed
you, or --yes for the plan as it is now.`,
		Example: `  trellis approve 12 --follow`,
		Args:    one("a provision's number or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			if err := followOrJSON(follow, out); err != nil {
				return err
			}
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			if digest == "" && p.PlanDigest == nil && !p.Status.EndsRun() {
				if p, err = a.await(ctx, s, p.ID); err != nil { // it is still planning
					return err
				}
			}
			if digest == "" && p.Status == provision.AwaitingApproval {
				if err := a.showPlan(p, out); err != nil {
					return err
				}
				if err := a.confirm(yes, fmt.Sprint(p.Number), "This applies the plan above."); err != nil {
					return err
				}
				digest = deref(p.PlanDigest)
			}
			if digest == "" {
				return &store.RefusedError{Code: "PT409", Reason: "not_awaiting_approval", Message: fmt.Sprintf("provision %d is %s and awaits no approval", p.Number, p.Status)}
			}
			if _, err := s.Approve(ctx, p.ID, digest); err != nil {
				return err
			}
			if out == "json" {
				return a.printStanding(ctx, s, p.ID)
			}
			if follow {
				a.say("The plan of provision %d is approved.", p.Number)
				return a.followToEnd(ctx, s, cmd, p.ID, p.Number, out, false)
			}
			return a.print("The plan of provision %d is approved and will be applied. Watch it: %s", p.Number, a.hint(cmd, fmt.Sprintf("logs %d --follow", p.Number)))
		}),
	}
	cmd.Flags().StringVar(&digest, "digest", "", "digest of the plan that you have seen")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	addFollow(cmd, &follow, &out)
	return cmd
}

func (a *app) rejectCommand() *cobra.Command {
	var reason string
	var out format
	cmd := &cobra.Command{
		Use:     "reject NUMBER|ID",
		Short:   "Turn a plan down",
		Long:    `Turns down a plan that awaits approval. Its provision ends as CANCELLED, nothing is changed, and the workspace is free for what is queued behind it.`,
		Example: `  trellis reject 12 --reason "not before the weekend"`,
		Args:    one("a provision's number or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, _ *cobra.Command, args []string) error {
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			if err := s.Reject(ctx, p.ID, reason); err != nil {
				return err
			}
			if out == "json" {
				return a.printStanding(ctx, s, p.ID)
			}
			return a.print("The plan of provision %d is rejected; nothing was changed.", p.Number)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the log and the audit")
	addFormat(cmd, &out)
	return cmd
}

func (a *app) retryCommand() *cobra.Command {
	var follow, plan bool
	var out format
	cmd := &cobra.Command{
		Use:   "retry NUMBER|ID",
		Short: "Ask for the same once more",
		Long: `Queues what an ended provision asked for once more, as a new provision that is linked
to it: the same template at the same version, the same variables. A new plan is made.

With --plan it is planned only: after an apply whose end nobody saw, that says what is
still to be done.`,
		Example: `  trellis retry 12 --follow
  trellis retry 12 --plan --follow`,
		Args: one("a provision's number or id"),
		RunE: a.withServer(func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			if err := followOrJSON(follow, out); err != nil {
				return err
			}
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			if plan {
				queued, err := a.planOf(ctx, s, p)
				if err != nil {
					return err
				}
				return a.tellQueued(ctx, s, cmd, queued, follow, out)
			}
			queued, err := s.Retry(ctx, p.ID)
			if err != nil {
				return err
			}
			return a.tellQueued(ctx, s, cmd, queued, follow, out)
		}),
	}
	cmd.Flags().BoolVar(&plan, "plan", false, "only plan it: what is still to be done")
	addFollow(cmd, &follow, &out)
	return cmd
}

// planMarks are the signs that Terraform has for what it will do.
var planMarks = map[string][2]string{
	"create": {"+", green}, "update": {"~", yellow}, "delete": {"-", red}, "replace": {"±", red},
	"import": {"←", green}, "move": {"→", dim}, "forget": {"✗", yellow},
}

// showPlan shows what is to be approved: to the person, where a program reads
// what is printed.
func (a *app) showPlan(p store.Provision, out format) error {
	if out == "json" {
		_, err := io.WriteString(a.err, a.err.fit(a.planText(p)))
		return err
	}
	_, err := io.WriteString(a.out, a.out.fit(a.planText(p)))
	return err
}

// planText shows what a plan would change, a line for each resource and each
// attribute.
func (a *app) planText(p store.Provision) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Provision %d: %s on workspace %s, cluster %s\n", p.Number, p.Operation, p.Workspace, p.Cluster)
	fmt.Fprintf(&text, "Template %s\n", strings.TrimSpace(p.Template.Repo+" "+p.Template.Version+" "+p.Template.Path))
	if digest := deref(p.PlanDigest); digest != "" {
		fmt.Fprintf(&text, "Digest   %s\n", digest)
	}
	if p.Plan != nil {
		text.WriteString("\n")
		for _, change := range p.Plan.Resources {
			text.WriteString(a.changeLines(change))
		}
		if p.Plan.Truncated > 0 {
			fmt.Fprintf(&text, "  … and %d more that are not listed\n", p.Plan.Truncated)
		}
		fmt.Fprintf(&text, "\n%s\n", planCounts(*p.Plan))
	}
	return text.String()
}

// changeLines are one resource of a plan. What it says is somebody else's text.
func (a *app) changeLines(change provision.PlannedChange) string {
	var text strings.Builder
	mark, colour := planMarks[change.Action][0], planMarks[change.Action][1]
	line := fmt.Sprintf("%1s %s (%s)", mark, printable.Text(change.Address), change.Action)
	if change.From != "" {
		line += ", before " + printable.Text(change.From)
	}
	if change.ID != "" {
		line += ", id " + printable.Text(change.ID)
	}
	text.WriteString("  " + a.out.paint(colour, line) + "\n")
	for _, attribute := range change.Attributes {
		fmt.Fprintf(&text, "      %s\n", printable.Text(attributeLine(attribute)))
	}
	if change.Truncated > 0 {
		fmt.Fprintf(&text, "      … and %d more attributes\n", change.Truncated)
	}
	return text.String()
}

// attributeLine says how an attribute changes; "" stands for no value.
func attributeLine(c provision.AttributeChange) string {
	side := func(value []byte, unknown bool) string {
		switch {
		case c.Sensitive:
			return "(sensitive)"
		case len(value) > 0:
			return string(value)
		case unknown:
			return "(known after apply)"
		case c.Long:
			return "(too long to show)"
		}
		return "(none)"
	}
	line := fmt.Sprintf("%s: %s → %s", c.Path, side(c.Before, false), side(c.After, c.Unknown))
	if c.Replaces {
		line += "  # forces replacement"
	}
	return line
}

// planCounts says in one line what a plan would do.
func planCounts(p provision.PlanSummary) string {
	if p.Empty() {
		return "No changes to resources."
	}
	var parts []string
	for _, count := range []struct {
		n    int
		what string
	}{
		{p.Add, "to add"}, {p.Change, "to change"}, {p.Replace, "to replace"}, {p.Destroy, "to destroy"},
		{p.Import, "to import"}, {p.Move, "to move"}, {p.Forget, "to forget"},
	} {
		if count.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count.n, count.what))
		}
	}
	return strings.Join(parts, ", ")
}
