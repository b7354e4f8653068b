package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

func logsCommand(a *app) *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs NUMBER|ID",
		Short: "Print a run's log",
		Long: `Prints a run's log. With --follow, goes on until the run has ended and
exits with its outcome: 0 when it succeeded, 1 when it failed or was cancelled.
Ctrl-C stops following; the run goes on. What is cut is taken up again where it
was: no line is lost or shown twice. Where the agent was lost, it goes on while that may
still deliver lines and a result, for a day at most.

With -o json each line printed is an object: seq, stream, text (some lines, or a part of
one) and emitted_at.`,
		Example: `  trellis logs 12
  trellis logs 12 --follow`,
		Args: one("a run's number or id"),
		RunE: about(a, (*client.Client).Provision, func(ctx context.Context, s *client.Client, cmd *cobra.Command, p wire.Provision) error {
			if follow {
				return followToEnd(ctx, a, s, cmd, p.ID, p.Number, true)
			}
			f := newFollower(a)
			return errors.Join(s.Log(ctx, p.ID, f.line), f.screen.close())
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run has ended")
	addFormat(a, cmd)
	return cmd
}

func eventsCommand(a *app) *cobra.Command {
	return formatted(a, &cobra.Command{
		Use:     "events NUMBER|ID",
		Short:   "List what happened to a run: stages, resources, cancels",
		Example: `  trellis events 12`,
		Args:    one("a run's number or id"),
		RunE: about(a, (*client.Client).Provision, func(ctx context.Context, s *client.Client, _ *cobra.Command, p wire.Provision) error {
			events, err := s.Events(ctx, p.ID)
			return listing(&a.printer, events, err, "Nothing has happened yet.", "AT\tWHAT\tDETAIL", func(e wire.Event) []any {
				return []any{e.At.Local().Format("2006-01-02 15:04:05.000"), e.Kind, oneLine(e.Detail)}
			})
		}),
	})
}

func auditCommand(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:     "audit",
		Short:   "List who did what in the organisation, the newest first",
		Example: `  trellis audit -n 20`,
		Args:    none,
		RunE: withServer(a, func(ctx context.Context, s *client.Client, _ *cobra.Command, _ []string) error {
			if limit < 1 || limit > 10000 {
				return wrongUsage("--limit: from 1 to 10000 are possible")
			}
			entries, err := s.Audit(ctx, limit)
			return listing(&a.printer, entries, err, "Nothing is in the audit yet.", "AT\tWHO\tDID\tTO\tDETAIL", func(e wire.AuditEvent) []any {
				return []any{e.At.Local().Format(time.DateTime), whoDid(e), e.Action, strings.TrimSpace(e.Object + " " + e.Called), oneLine(e.Detail)}
			})
		}),
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "how many to list")
	addFormat(a, cmd)
	return cmd
}

// oneLine is JSON without blanks; "" for an empty object.
func oneLine(data json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, data) != nil || b.String() == "{}" || b.String() == "null" {
		return ""
	}
	return b.String()
}

func whoDid(e wire.AuditEvent) string {
	switch {
	case e.ActorName != "":
		return e.ActorName
	case e.Actor != nil:
		return e.Actor.String()
	}
	return "the control plane"
}

// follower shows a provision until it has ended.
type follower struct {
	app    *app
	screen *screen
	told   string // the reason for waiting that was told last
	late   bool   // what a lost agent still delivers is waited for
	lost   bool   // it was told that it is
	json   bool   // rows are wanted as such
}

func newFollower(a *app) *follower {
	f := &follower{app: a, screen: newScreen(a.out)}
	if a.json() {
		f.screen = newScreen(a.err) // for how far it is
		f.json = true
	}
	return f
}

// followRun shows a provision's log until its end, or until it awaits a person, and
// returns how it stands then. When ctx ends first the error is its. late: also what
// a lost agent still delivers.
func followRun(ctx context.Context, a *app, s *client.Client, id uuid.UUID, late bool) (ended wire.Provision, err error) {
	f := newFollower(a)
	f.late = late
	ended, err = s.Follow(ctx, id, client.Follower{Line: f.line, Stands: f.progress, Late: late})
	return ended, errors.Join(err, f.screen.close())
}

// awaitRun waits until a provision has ended, or awaits a person, and shows nothing
// of its log.
func awaitRun(ctx context.Context, a *app, s *client.Client, id uuid.UUID) (ended wire.Provision, err error) {
	f := &follower{app: a, screen: newScreen(a.err)}
	ended, err = s.Follow(ctx, id, client.Follower{Stands: f.progress})
	return ended, errors.Join(err, f.screen.close())
}

// awaitSuccess is awaitRun for a provision of which only a success is wanted.
func awaitSuccess(ctx context.Context, a *app, s *client.Client, id uuid.UUID) (wire.Provision, error) {
	p, err := awaitRun(ctx, a, s, id)
	if err == nil && p.Status != provision.Success {
		err = conclude(a, p)
	}
	return p, err
}

// line shows a row of the log.
func (f *follower) line(row wire.LogRow) error {
	var err error
	if f.json {
		var line bytes.Buffer
		encoder := json.NewEncoder(&line)
		encoder.SetEscapeHTML(false)
		if err = encoder.Encode(row); err == nil {
			_, err = f.app.out.Write(printable.JSON(line.Bytes()))
		}
	} else {
		err = f.screen.write(row.Stream, row.Text)
	}
	if err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	return nil
}

// progress shows how far it has come. Without a TTY only a reason for waiting
// is told, once.
func (f *follower) progress(p wire.Provision) error {
	if p.Status.EndsRun() {
		if f.late && !f.lost && client.Lost(p) {
			f.lost = true
			f.app.say("The agent of run %d was lost. Lines that it still delivers are shown here. Ctrl-C stops following.", p.Number)
		}
		return f.screen.show("")
	}
	// By the reason: messages change with what they tell of.
	why := ""
	if len(p.Why) > 0 {
		why = p.Why[0].Reason
		if !f.screen.tty && why != f.told {
			f.app.say("Waiting: %s.", p.Why[0].Message)
		}
	}
	f.told = why
	return f.screen.show(printable.Text(statusLine(p)))
}

// statusLine says in one line how far a provision has come.
func statusLine(p wire.Provision) string {
	text := fmt.Sprintf("▸ #%d %s · ", p.Number, p.Workspace)
	since := p.CreatedAt
	switch {
	case p.Status == provision.Queued:
		text += "queued"
		if p.Waiting != "" {
			text += ": " + p.Waiting
		}
	case p.CancelRequestedAt != nil:
		text += "stopping"
	case p.Stage != nil:
		text += string(*p.Stage)
		reached := provision.Stages[1:] // all but queued
		if n := slices.Index(reached, *p.Stage); n >= 0 && p.Percent == nil {
			text += fmt.Sprintf(" (%d of %d)", n+1, len(reached))
		}
	}
	if p.StartedAt != nil {
		since = *p.StartedAt
		if p.Percent != nil {
			text += fmt.Sprintf(" %d %%", *p.Percent)
		}
	}
	return text + " · " + max(0, p.AsOf.Sub(since)).Truncate(time.Second).String() + runningShort(p)
}

// followToEnd follows, tells how it ended and returns that as an exit code.
func followToEnd(ctx context.Context, a *app, s *client.Client, cmd *cobra.Command, id uuid.UUID, number int64, late bool) error {
	p, err := followRun(ctx, a, s, id, late)
	if err != nil && ctx.Err() != nil && client.Lost(p) {
		a.say("Stopped following. Run %d has failed for now: its agent was lost, and may still report another result.", number)
		return outcome(exitInterrupted)
	}
	if err != nil && ctx.Err() != nil {
		a.say("Stopped following; run %d goes on. Stop it with: %s", number, a.hint(cmd, fmt.Sprintf("cancel %d", number)))
		return outcome(exitInterrupted)
	}
	if err != nil {
		return err
	}
	if p.Status == provision.AwaitingApproval {
		a.say("Run %d needs approval: %s\nReview the plan and approve it:  %s\nTurn it down:                     %s", number, summaryOf(p),
			a.hint(cmd, fmt.Sprintf("approve %d --follow", number)), a.hint(cmd, fmt.Sprintf("reject %d", number)))
		return outcome(exitAwaits)
	}
	if p.Status == provision.AwaitingInput {
		a.say("Run %d waits for a person to do its work. Show what is to be done, and say that it is:  %s", number, a.hint(cmd, fmt.Sprintf("input %d", number)))
		return outcome(exitAwaits)
	}
	return conclude(a, p)
}

func summaryOf(p wire.Provision) string {
	if p.Plan == nil {
		return "a plan is made."
	}
	return planCounts(*p.Plan) + "."
}

// conclude tells how a provision ended and returns the exit code for it.
func conclude(a *app, p wire.Provision) error {
	took := ""
	if p.StartedAt != nil && p.FinishedAt != nil {
		took = " after " + seconds(p.FinishedAt.Sub(*p.StartedAt))
	}
	if p.Status == provision.Success {
		a.say("%s", a.err.paint(green, fmt.Sprintf("Run %d succeeded%s.", p.Number, took)))
		for _, line := range outputLines(p.Outputs) {
			a.say("  %s", line)
		}
		return nil
	}
	verb := "failed"
	if p.Status == provision.Cancelled {
		verb = "was cancelled"
	}
	a.say("%s", a.err.paint(red, fmt.Sprintf("Run %d %s%s%s", p.Number, verb, took, problemOf(p))))
	return outcome(exitFailed)
}

// problemOf is what went wrong, to follow "failed".
func problemOf(p wire.Provision) string {
	text := "."
	if p.ErrorMessage != nil && *p.ErrorMessage != "" {
		text = ": " + printable.Text(*p.ErrorMessage)
	}
	if p.ErrorCode != nil && p.Status != provision.Cancelled {
		text = " (" + *p.ErrorCode + ")" + text
	}
	return text
}
