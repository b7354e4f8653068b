package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

func statusCommand(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "status [NUMBER|ID]",
		Short: "List the latest runs, or show one",
		Long: `Lists the latest runs, newest first, or shows one: why it waits and what to do
about that, how far it is and how long each stage took, its outputs, what went wrong.
All times are by the database's clock. The exit code says whether that could be read, not how the run
fared: for that, see "trellis logs --follow".`,
		Example: `  trellis status
  trellis status 12
  trellis status 12 -o json`,
		Args: atMostOne("a run's number or id"),
		RunE: withServer(a, func(ctx context.Context, s *client.Client, cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				p, err := s.Provision(ctx, args[0])
				if err == nil && a.json() {
					return a.printJSON(p)
				}
				if err != nil {
					return err
				}
				return printProvision(a, cmd, p)
			}
			if limit < 1 || limit > 1000 {
				return wrongUsage("--limit: from 1 to 1000 are possible")
			}
			list, err := s.Provisions(ctx, limit)
			if err != nil {
				return err
			}
			return printList(a, cmd, list)
		}),
	}
	cmd.Flags().IntVarP(&limit, "limit", "n", 20, "how many to list")
	addFormat(a, cmd)
	return cmd
}

func printList(a *app, cmd *cobra.Command, list []wire.Provision) error {
	if err := listing(&a.printer, list, nil, "Nothing has been deployed yet.", "NUMBER\tSTATUS\tWORKSPACE\tTEMPLATE\tAGE\tTOOK\tWHERE", func(p wire.Provision) []any {
		name := strings.TrimSuffix(path.Base(path.Join(p.Template.Repo, p.Template.Path)), ".git")
		return []any{p.Number, p.Status, p.Workspace, name + " " + p.Template.Version, ago(p.AsOf.Sub(p.CreatedAt)), took(p), where(p)}
	}); err != nil {
		return err
	}
	if !a.json() && slices.ContainsFunc(list, func(p wire.Provision) bool { return len(p.Why) > 0 }) {
		a.say("What to do about one that waits: %s", a.hint(cmd, "status NUMBER"))
	}
	return nil
}

// took is how long a provision has run so far, or ran.
func took(p wire.Provision) string {
	switch {
	case p.StartedAt == nil:
		return "-"
	case p.FinishedAt == nil:
		return seconds(max(0, p.AsOf.Sub(*p.StartedAt)))
	}
	return seconds(p.FinishedAt.Sub(*p.StartedAt))
}

// where is how far a provision has come, or why it came no further.
func where(p wire.Provision) string {
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

func printProvision(a *app, cmd *cobra.Command, p wire.Provision) error {
	lines := [][2]string{
		{"id", p.ID.String()},
		{"workspace", p.Workspace + " on cluster " + p.Cluster},
		{"operation", string(p.Operation)},
		{"template", strings.TrimSpace(p.Template.Repo + " " + p.Template.Version + " " + p.Template.Path)},
		{"commit", deref(p.Commit)},
		{"engine", deref(p.Engine)},
		{"waits", whyLines(a, cmd, p)},
		{"lock", lockLines(a, cmd, p)},
	}
	if p.Plan != nil {
		lines = append(lines, [2]string{"plan", planCounts(*p.Plan)})
	}
	if p.Status == provision.Processing {
		lines = append(lines, [2]string{"now", where(p)}, [2]string{"works on", runningLines(p)})
	}
	lines = append(lines, [2]string{"steps", stepLines(p)})
	lines = append(lines, [2]string{"queued", p.CreatedAt.Local().Format(time.DateTime)})
	if p.StartedAt != nil {
		lines = append(lines, [2]string{"started", p.StartedAt.Local().Format(time.DateTime)})
	}
	if p.FinishedAt != nil {
		lines = append(lines, [2]string{"finished", fmt.Sprintf("%s (took %s)", p.FinishedAt.Local().Format(time.DateTime), took(p))})
	}
	lines = append(lines,
		[2]string{"stages", stageLines(p)}, [2]string{"error", deref(p.ErrorCode)}, [2]string{"", deref(p.ErrorMessage)}, [2]string{"then", planAgain(a, cmd, p)})

	var text strings.Builder
	fmt.Fprintf(&text, "Run %d: %s\n", p.Number, p.Status)
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

// stageLines tell of each stage when it began and how long it took, a line each.
// Attempts are numbered where there is more than one.
func stageLines(p wire.Provision) string {
	if len(p.Stages) == 0 {
		return ""
	}
	several := p.Stages[len(p.Stages)-1].Attempt > 1
	lines := make([]string, len(p.Stages))
	for i, s := range p.Stages {
		took := ""
		switch {
		case s.EndedAt == nil:
			took = seconds(max(0, p.AsOf.Sub(s.StartedAt))) + " so far"
		case s.Stage != provision.StageDone: // which takes no time
			took = seconds(s.EndedAt.Sub(s.StartedAt))
		}
		name := string(s.Stage)
		if several {
			name = fmt.Sprintf("%d %s", s.Attempt, name)
		}
		lines[i] = strings.TrimRight(fmt.Sprintf("%-10s %s  %s", name, s.StartedAt.Local().Format(time.DateTime), took), " ")
	}
	return strings.Join(lines, "\n")
}

// mostRunning is how many resources that are being worked on are listed.
const mostRunning = 10

// stepSigns are what steps are shown by.
var stepSigns = map[string]string{"waiting": "·", "running": ">", "done": "✓", "failed": "✗"}

// stepLines are the run's steps, a line each, with how long they took.
func stepLines(p wire.Provision) string {
	var lines []string
	machine := ""
	for _, step := range p.Steps {
		if step.Machine != machine {
			machine = step.Machine
			lines = append(lines, printable.Text(machine))
		}
		line := stepSigns[step.State] + " " + printable.Text(step.Label)
		if step.StartedAt != nil {
			end := p.AsOf
			if step.EndedAt != nil {
				end = *step.EndedAt
			}
			line += "  " + seconds(max(0, end.Sub(*step.StartedAt)))
		}
		if step.Percent != nil {
			line += fmt.Sprintf(", %d %%", *step.Percent)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// runningLines are the resources that are being worked on, a line each.
func runningLines(p wire.Provision) string {
	var lines []string
	for i, r := range p.Running {
		if i == mostRunning {
			lines = append(lines, fmt.Sprintf("… and %d more", len(p.Running)-i))
			break
		}
		what := strings.TrimSpace(r.Address)
		if doing := cmp.Or(r.Step, r.Action); doing != "" {
			what = strings.TrimSpace(what + " (" + printable.Text(doing) + ")")
		}
		lines = append(lines, what+"  "+seconds(max(0, p.AsOf.Sub(r.Since))))
	}
	return strings.Join(lines, "\n")
}

// runningShort is what is being worked on, for the status line.
func runningShort(p wire.Provision) string {
	if len(p.Running) == 0 {
		return ""
	}
	text := fmt.Sprintf(" · %s %s", p.Running[0].Address, max(0, p.AsOf.Sub(p.Running[0].Since)).Truncate(time.Second))
	if more := len(p.Running) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// waited is what a reason is about.
type waited struct {
	Number    int64  `json:"number"`
	Status    string `json:"status"`
	Workspace string `json:"workspace"`
	Cluster   string `json:"cluster"`
	By        string `json:"by"`
}

// whyLines say why a provision waits and what to do about each reason, as
// sentences.
func whyLines(a *app, cmd *cobra.Command, p wire.Provision) string {
	var lines []string
	for _, r := range p.Why {
		line := sentence(r.Message)
		var about waited
		if json.Unmarshal(r.Detail, &about) == nil && about.By != "" {
			line += " By " + about.By + "."
		}
		lines = append(lines, line)
		if step := nextStep(a, cmd, p, r); step != "" {
			lines = append(lines, "→ "+step)
		}
	}
	return strings.Join(lines, "\n")
}

// nextStep is what a person can do about a reason for waiting; "" for nothing.
func nextStep(a *app, cmd *cobra.Command, p wire.Provision, r wire.Reason) string {
	var about waited
	if json.Unmarshal(r.Detail, &about) != nil {
		return ""
	}
	run := func(format string, args ...any) string { return a.hint(cmd, fmt.Sprintf(format, args...)) }
	switch r.Reason {
	case "workspace_locked":
		return "When it may be used again: " + run("unlock %s", about.Workspace)
	case "workspace_held":
		return "It is free when that agent comes back. Should it not, an admin frees it: " + run("release %s", about.Workspace)
	case "workspace_busy":
		return "Watch it: " + run("logs %d --follow", about.Number)
	case "workspace_reserved":
		if about.Status == string(provision.AwaitingApproval) {
			return fmt.Sprintf("Decide: %s, or %s", run("approve %d", about.Number), run("reject %d", about.Number))
		}
		if about.Status == string(provision.AwaitingInput) {
			return "Show what is to be done: " + run("input %d", about.Number)
		}
		return "Show it: " + run("status %d", about.Number)
	case "awaits_approval":
		return fmt.Sprintf("Decide: %s, or %s", run("approve %d", p.Number), run("reject %d", p.Number))
	case "set_down":
		return "No action needed: an agent takes it up when one is free."
	case "awaits_input":
		return "Show what is to be done, and say that it is: " + run("input %d", p.Number)
	case "higher_priority", "queued_behind":
		return "It starts when they are over. What is not needed: " + run("cancel NUMBER")
	case "cluster_paused":
		return "An admin resumes it: " + run("clusters resume %s", about.Cluster)
	case "no_agent":
		return "Start one there (tendril run), or see which there were: " + run("clusters list")
	case "home_away":
		return "Start that agent again, with the data directory that it had."
	case "state_kept":
		return "Start that agent again. Should it not come back, an admin gives that state up: " + run("release %s", p.Workspace)
	case "agent_too_old":
		return "Upgrade the agents of cluster " + about.Cluster + "."
	case "operation_refused":
		return "Have an agent grant it (policy.operations), or: " + run("cancel %d", p.Number)
	case "slots_busy":
		return "It starts when one of them is over. More at once: raise an agent's slots, or start another agent."
	case "no_room":
		return "It starts once a place becomes free. What each node has left: " + run("pools list")
	case "engine_missing", "not_due":
		return "See why: " + run("logs %d", about.Number)
	}
	return ""
}

// lockLines tell of a lock that keeps runs from the state, and how it is ended.
func lockLines(a *app, cmd *cobra.Command, p wire.Provision) string {
	l := p.StateLock
	if l == nil || p.Status == provision.Success {
		return ""
	}
	text := "When run " + fmt.Sprint(l.Number) + " wanted the state, it was locked"
	if l.Who != "" {
		text += " by " + l.Who
	}
	if l.Created != "" {
		text += " since " + l.Created
	}
	return fmt.Sprintf("%s (id %s).\n→ If the holder will not come back: %s", text, l.ID, a.hint(cmd, fmt.Sprintf("unlock %s --state-lock %s", p.Workspace, quote(l.ID))))
}

// sentence makes one of a message.
func sentence(message string) string {
	first, size := utf8.DecodeRuneInString(message)
	return string(unicode.ToUpper(first)) + message[size:] + "."
}
