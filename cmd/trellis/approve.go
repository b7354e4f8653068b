package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/problem"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

func approveCommand(a *app) *cobra.Command {
	var digest string
	var yes, follow bool
	cmd := &cobra.Command{
		Use:   "approve NUMBER|ID",
		Short: "Let a plan be applied",
		Long: `Shows the plan that needs approval and, when you confirm, applies exactly that plan
applied. Another plan is never applied in its place: had it changed meanwhile, or has
the state moved on, the apply is refused.

A plan that is still being made is waited for. On a terminal it asks for the
run's number; elsewhere give --digest with the digest that "trellis status" showed
you, or --yes for the plan as it is now.`,
		Example: `  trellis approve 12 --follow`,
		Args:    one("a run's number or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			if err := followOrJSON(a, follow); err != nil {
				return err
			}
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			if digest == "" && p.PlanDigest == nil && !p.Status.EndsRun() {
				if p, err = awaitRun(ctx, a, s, p.ID); err != nil { // it is still planning
					return err
				}
			}
			if digest == "" && p.Status == provision.AwaitingApproval {
				if err := showPlan(a, p); err != nil {
					return err
				}
				if err := confirm(a, yes, fmt.Sprint(p.Number), "This applies the plan above."); err != nil {
					return err
				}
				digest = deref(p.PlanDigest)
			}
			if digest == "" {
				return &problem.RefusedError{Code: "PT409", Reason: "not_awaiting_approval", Message: fmt.Sprintf("run %d is %s and awaits no approval", p.Number, p.Status)}
			}
			if _, err := s.Approve(ctx, p.ID, digest); err != nil {
				return err
			}
			if a.json() {
				return printStanding(ctx, a, s, p.ID)
			}
			if follow {
				a.say("The plan of run %d is approved.", p.Number)
				return followToEnd(ctx, a, s, cmd, p.ID, p.Number, false)
			}
			return a.print("The plan of run %d is approved and will be applied. Watch it: %s", p.Number, a.hint(cmd, fmt.Sprintf("logs %d --follow", p.Number)))
		}),
	}
	cmd.Flags().StringVar(&digest, "digest", "", "digest of the plan that you have seen")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	addFollow(a, cmd, &follow)
	return cmd
}

func rejectCommand(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:     "reject NUMBER|ID",
		Short:   "Turn a plan down",
		Long:    `Rejects a plan that needs approval. Its run ends as CANCELLED, nothing is changed, and the workspace is free for what is queued behind it.`,
		Example: `  trellis reject 12 --reason "not before the weekend"`,
		Args:    one("a run's number or id"),
		RunE: about(a, (*client.Client).Provision, func(ctx context.Context, s *client.Client, _ *cobra.Command, p wire.Provision) error {
			if err := s.Reject(ctx, p.ID, reason); err != nil {
				return err
			}
			if a.json() {
				return printStanding(ctx, a, s, p.ID)
			}
			return a.print("The plan of run %d is rejected; nothing was changed.", p.Number)
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the log and the audit")
	addFormat(a, cmd)
	return cmd
}

func retryCommand(a *app) *cobra.Command {
	var follow, plan bool
	cmd := &cobra.Command{
		Use:   "retry NUMBER|ID",
		Short: "Ask for the same once more",
		Long: `Queues what an ended run asked for once more, as a new run that is linked
to it: the same template at the same version, the same variables. A new plan is made.

With --plan it is planned only: after an apply whose end nobody saw, that says what is
still to be done.`,
		Example: `  trellis retry 12 --follow
  trellis retry 12 --plan --follow`,
		Args: one("a run's number or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			if err := followOrJSON(a, follow); err != nil {
				return err
			}
			p, err := s.Provision(ctx, args[0])
			if err != nil {
				return err
			}
			if plan {
				queued, err := planOf(ctx, a, s, p)
				if err != nil {
					return err
				}
				return tellQueued(ctx, a, s, cmd, queued, follow)
			}
			key, err := requester(a, "")
			if err != nil {
				return err
			}
			queued, err := s.Retry(ctx, p.ID, key)
			if err != nil {
				return err
			}
			return tellQueued(ctx, a, s, cmd, queued, follow)
		}),
	}
	cmd.Flags().BoolVar(&plan, "plan", false, "only plan it: what is still to be done")
	addFollow(a, cmd, &follow)
	return cmd
}

// planMarks are the signs that Terraform has for what it will do.
var planMarks = map[string][2]string{
	"create": {"+", green}, "update": {"~", yellow}, "delete": {"-", red}, "replace": {"±", red},
	"import": {"←", green}, "move": {"→", dim}, "forget": {"✗", yellow},
}

// showPlan shows what is to be approved: to the person, where a program reads
// what is printed.
func showPlan(a *app, p wire.Provision) error {
	if a.json() {
		_, err := io.WriteString(a.err, a.err.fit(planText(a, p)))
		return err
	}
	_, err := io.WriteString(a.out, a.out.fit(planText(a, p)))
	return err
}

// planText shows what a plan would change, a line for each resource and each
// attribute.
func planText(a *app, p wire.Provision) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Run %d: %s on workspace %s, cluster %s\n", p.Number, p.Operation, p.Workspace, p.Cluster)
	fmt.Fprintf(&text, "Template %s\n", strings.TrimSpace(p.Template.Repo+" "+p.Template.Version+" "+p.Template.Path))
	if digest := deref(p.PlanDigest); digest != "" {
		fmt.Fprintf(&text, "Digest   %s\n", digest)
	}
	if p.Plan != nil {
		text.WriteString("\n")
		for _, change := range p.Plan.Resources {
			text.WriteString(changeLines(a, change))
		}
		if p.Plan.Truncated > 0 {
			fmt.Fprintf(&text, "  … and %d more that are not listed\n", p.Plan.Truncated)
		}
		fmt.Fprintf(&text, "\n%s\n", planCounts(*p.Plan))
	}
	return text.String()
}

// changeLines are one resource of a plan. What it says is somebody else's text.
func changeLines(a *app, change provision.PlannedChange) string {
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

func cancelCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:   "cancel NUMBER|ID",
		Short: "Cancel a run",
		Long: `Cancels a run. One that waits is cancelled at once; of one that runs,
Terraform is interrupted once and may write its state. A success that was
reported first wins.`,
		Example: `  trellis cancel 12`,
		Args:    one("a run's number or id"),
		RunE: about(a, (*client.Client).Provision, func(ctx context.Context, s *client.Client, cmd *cobra.Command, p wire.Provision) error {
			status, err := s.Cancel(ctx, p.ID)
			if err != nil {
				return err
			}
			if a.json() {
				return printStanding(ctx, a, s, p.ID)
			}
			if status == provision.Cancelled {
				return a.print("Run %d is cancelled.", p.Number)
			}
			return a.print("Run %d is asked to stop. Watch it: %s", p.Number, a.hint(cmd, fmt.Sprintf("logs %d --follow", p.Number)))
		}),
	})
}

// printStanding prints a provision as it is after something was done about it.
func printStanding(ctx context.Context, a *app, s *client.Client, id uuid.UUID) error {
	p, err := s.Provision(ctx, id.String())
	if err != nil {
		return err
	}
	return a.printJSON(p)
}

// orphaned are the codes of runs whose end nobody saw.
var orphaned = []provision.Code{
	provision.CodeAgentLost, provision.CodeAgentRestarted, provision.CodeAgentDrained, provision.CodeExecDied,
}

// planAgain is what to do about an apply whose end nobody saw, with what is
// known of it; "" for any other provision.
func planAgain(a *app, cmd *cobra.Command, p wire.Provision) string {
	applied := slices.ContainsFunc(p.Stages, func(s wire.StageTime) bool { return s.Stage == provision.StageApply })
	if p.Status != provision.Failed || !applied || p.Operation != provision.OperationApply || !slices.Contains(orphaned, provision.Code(deref(p.ErrorCode))) {
		return ""
	}
	return fmt.Sprintf("Apply had begun. What is recorded of it:  %s\nPlan again, to see what is still to be done:  %s",
		a.hint(cmd, "resources "+p.Workspace), a.hint(cmd, fmt.Sprintf("retry %d --plan --follow", p.Number)))
}

// planOf queues a plan of what a provision asked for.
func planOf(ctx context.Context, a *app, s *client.Client, p wire.Provision) (wire.QueuedAnswer, error) {
	if p.Operation != provision.OperationApply && p.Operation != provision.OperationPlan {
		return wire.QueuedAnswer{}, wrongUsage("run %d is a %s, of which there is no plan", p.Number, p.Operation)
	}
	c, err := s.FindCluster(ctx, p.Cluster)
	if err != nil {
		return wire.QueuedAnswer{}, err
	}
	key, err := requester(a, "")
	if err != nil {
		return wire.QueuedAnswer{}, err
	}
	var snapshot map[string]json.RawMessage
	if err := json.Unmarshal(p.Snapshot, &snapshot); err != nil {
		return wire.QueuedAnswer{}, fmt.Errorf("read the snapshot of run %d: %w", p.Number, err)
	}
	if delete(snapshot, "requester_key"); key != "" {
		snapshot["requester_key"] = jsonText(key)
	}
	data, err := json.Marshal(snapshot)
	if err != nil {
		return wire.QueuedAnswer{}, fmt.Errorf("encode the request: %w", err)
	}
	return s.Deploy(ctx, c.ID, provision.OperationPlan, data)
}
