package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

// follower shows a provision until it has ended.
type follower struct {
	app    *app
	screen *screen
	told   string // the reason for waiting that was told last
	late   bool   // what a lost agent still delivers is waited for
	lost   bool   // it was told that it is
	json   bool   // rows are wanted as such
}

func (a *app) newFollower(out format) *follower {
	f := &follower{app: a, screen: newScreen(a.out)}
	if out == "json" {
		f.screen = newScreen(a.err) // for how far it is
		f.json = true
	}
	return f
}

// follow shows a provision's log until its end, or until it awaits approval, and
// returns how it stands then. When ctx ends first the error is its. late: also what
// a lost agent still delivers.
func (a *app) follow(ctx context.Context, s *client.Client, id uuid.UUID, out format, late bool) (ended store.Provision, err error) {
	f := a.newFollower(out)
	f.late = late
	ended, err = s.Follow(ctx, id, client.Follower{Line: f.line, Stands: f.progress, Late: late})
	return ended, errors.Join(err, f.screen.close())
}

// await waits until a provision has ended, or awaits approval, and shows nothing
// of its log.
func (a *app) await(ctx context.Context, s *client.Client, id uuid.UUID) (ended store.Provision, err error) {
	f := &follower{app: a, screen: newScreen(a.err)}
	ended, err = s.Follow(ctx, id, client.Follower{Stands: f.progress})
	return ended, errors.Join(err, f.screen.close())
}

// line shows a row of the log.
func (f *follower) line(row store.LogRow) error {
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
func (f *follower) progress(p store.Provision) error {
	if p.Status.EndsRun() {
		if f.late && !f.lost && client.Lost(p) {
			f.lost = true
			f.app.say("The agent of provision %d was lost. Lines that it still delivers are shown here. Ctrl-C stops following.", p.Number)
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
func statusLine(p store.Provision) string {
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
func (a *app) followToEnd(ctx context.Context, s *client.Client, cmd *cobra.Command, id uuid.UUID, number int64, out format, late bool) error {
	p, err := a.follow(ctx, s, id, out, late)
	if err != nil && ctx.Err() != nil && client.Lost(p) {
		a.say("Stopped following. Provision %d has failed for now: its agent was lost, and may still report another result.", number)
		return outcome(exitInterrupted)
	}
	if err != nil && ctx.Err() != nil {
		a.say("Stopped following; provision %d goes on. Stop it with: %s", number, a.hint(cmd, fmt.Sprintf("cancel %d", number)))
		return outcome(exitInterrupted)
	}
	if err != nil {
		return err
	}
	if p.Status == provision.AwaitingApproval {
		a.say("Provision %d awaits approval: %s\nLook at the plan and approve it:  %s\nTurn it down:                     %s", number, summaryOf(p),
			a.hint(cmd, fmt.Sprintf("approve %d --follow", number)), a.hint(cmd, fmt.Sprintf("reject %d", number)))
		return outcome(exitAwaits)
	}
	return a.conclude(p)
}

func summaryOf(p store.Provision) string {
	if p.Plan == nil {
		return "a plan is made."
	}
	return planCounts(*p.Plan) + "."
}

// conclude tells how a provision ended and returns the exit code for it.
func (a *app) conclude(p store.Provision) error {
	took := ""
	if p.StartedAt != nil && p.FinishedAt != nil {
		took = " after " + seconds(p.FinishedAt.Sub(*p.StartedAt))
	}
	if p.Status == provision.Success {
		a.say("%s", a.err.paint(green, fmt.Sprintf("Provision %d succeeded%s.", p.Number, took)))
		for _, line := range outputLines(p.Outputs) {
			a.say("  %s", line)
		}
		return nil
	}
	verb := "failed"
	if p.Status == provision.Cancelled {
		verb = "was cancelled"
	}
	a.say("%s", a.err.paint(red, fmt.Sprintf("Provision %d %s%s%s", p.Number, verb, took, problemOf(p))))
	return outcome(exitFailed)
}

// problemOf is what went wrong, to follow "failed".
func problemOf(p store.Provision) string {
	text := "."
	if p.ErrorMessage != nil && *p.ErrorMessage != "" {
		text = ": " + printable.Text(*p.ErrorMessage)
	}
	if p.ErrorCode != nil && p.Status != provision.Cancelled {
		text = " (" + *p.ErrorCode + ")" + text
	}
	return text
}
