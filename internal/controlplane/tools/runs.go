package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tendril-run/tendril/internal/controlplane/client"
	"github.com/tendril-run/tendril/internal/controlplane/wire"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

// runTools offers what is known of runs.
func (s *Server) runTools() {
	add(s, "runs", "Runs", "Lists runs, the newest first. "+aboutMarks, reading, runs)
	add(s, "run", "One run", "Says how a run stands, what its plan comes to and what to do next. "+aboutMarks, reading, run)
	add(s, "wait", "Wait for a run", "Waits until a run has ended or needs a person, at most as long as you say, and says how it stands then. Progress is reported meanwhile. To cancel the call ends the wait, not the run. "+aboutMarks, reading, wait)
	add(s, "why_waiting", "Why a run waits", "Says everything that a run waits for before it can go on. "+aboutMarks, reading, whyWaiting)
	add(s, "show_plan", "Show a plan", "Shows what a run's plan would do to each resource, as people see it: sensitive values are left out. "+aboutMarks, reading, showPlan)
	add(s, "log", "Log of a run", "Reads a run's log: its last lines, all of it in parts, from its first error, or the lines with a text in them. "+aboutMarks, reading, readLog)
	add(s, "outputs", "Outputs", "Shows the outputs of a run, or of a workspace's newest run that has any. Sensitive ones have no value here. "+aboutMarks, reading, outputs)
}

type runEntry struct {
	Run       int64      `json:"run" jsonschema:"its number"`
	Workspace string     `json:"workspace"`
	Cluster   string     `json:"cluster"`
	Operation string     `json:"operation"`
	Status    string     `json:"status" jsonschema:"QUEUED, PROCESSING, AWAITING_APPROVAL, AWAITING_INPUT, SUCCESS, FAILED or CANCELLED"`
	ErrorCode string     `json:"error_code,omitempty"`
	StartedBy string     `json:"started_by,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	URL       string     `json:"url" jsonschema:"its page for people"`
}

func (c *call) runEntry(p wire.Provision) runEntry {
	return runEntry{
		Run: p.Number, Workspace: c.name(p.Workspace), Cluster: c.name(p.Cluster), Operation: string(p.Operation), Status: string(p.Status), ErrorCode: c.name(value(p.ErrorCode)),
		StartedBy: c.name(value(p.RequestedByName)), CreatedAt: p.CreatedAt, EndedAt: p.FinishedAt, URL: c.page(p.Number),
	}
}

// page is the address of a run's page.
func (c *call) page(number int64) string {
	return c.link("/provisions/" + strconv.FormatInt(number, 10))
}

type runsInput struct {
	listing
	Status    string `json:"status,omitempty" jsonschema:"only those that stand so: QUEUED, PROCESSING, AWAITING_APPROVAL, AWAITING_INPUT, SUCCESS, FAILED or CANCELLED, separated by commas"`
	Operation string `json:"operation,omitempty" jsonschema:"only plan, apply, destroy, refresh, power, unlock or state, separated by commas"`
	Workspace string `json:"workspace,omitempty" jsonschema:"only those of this workspace, by name"`
	Cluster   string `json:"cluster,omitempty" jsonschema:"only those of this cluster, by name"`
}

type runsAnswer struct {
	Runs       []runEntry `json:"runs"`
	NextCursor string     `json:"next_cursor,omitempty"`
	Next       string     `json:"next"`
}

func runs(ctx context.Context, c *call, in runsInput) (runsAnswer, error) {
	filter := client.ProvisionFilter{Status: in.Status, Operation: in.Operation, Cluster: in.Cluster, Workspace: in.Workspace}
	list, next, err := paged(in.listing, func(p client.Part) (wire.Page[wire.Provision], error) { return c.api.ProvisionPage(ctx, filter, p) }, c.runEntry)
	return runsAnswer{list, next, goOn(next, `Call "run" with a number for how it stands.`)}, err
}

type runInput struct {
	Run int64 `json:"run" jsonschema:"the run's number"`
}

type changes struct {
	Add     int `json:"add"`
	Change  int `json:"change"`
	Replace int `json:"replace"`
	Destroy int `json:"destroy"`
	Import  int `json:"import,omitempty"`
	Move    int `json:"move,omitempty"`
	Forget  int `json:"forget,omitempty"`
}

type reasonEntry struct {
	Reason  string `json:"reason"`
	Message string `json:"message_data"`
}

type runAnswer struct {
	runEntry
	Stage      string        `json:"stage,omitempty" jsonschema:"how far it has come"`
	Percent    *int          `json:"percent,omitempty" jsonschema:"how much of the stage is done"`
	Proposed   bool          `json:"proposed,omitempty" jsonschema:"a token asked for it that only proposes here"`
	Plan       *changes      `json:"plan,omitempty" jsonschema:"how many resources its plan adds, changes, replaces and destroys"`
	PlanDigest string        `json:"plan_digest,omitempty" jsonschema:"names the plan that needs approval"`
	Waiting    []reasonEntry `json:"waiting,omitempty" jsonschema:"what it waits for"`
	Error      string        `json:"error_data,omitempty" jsonschema:"why it failed or was cancelled"`
	Next       string        `json:"next" jsonschema:"the step that makes sense now"`
}

func (c *call) runAnswer(p wire.Provision) runAnswer {
	answer := runAnswer{
		runEntry: c.runEntry(p), Stage: c.name(string(value(p.Stage))), Percent: p.Percent, Proposed: p.Proposed, PlanDigest: value(p.PlanDigest),
		Waiting: c.reasons(p), Error: c.short(value(p.ErrorMessage), mostText), Next: c.nextStep(p),
	}
	if plan := p.Plan; plan != nil {
		answer.Plan = &changes{plan.Add, plan.Change, plan.Replace, plan.Destroy, plan.Import, plan.Move, plan.Forget}
	}
	return answer
}

// mostReasons is how many reasons to wait are told.
const mostReasons = 10

func (c *call) reasons(p wire.Provision) []reasonEntry {
	list := []reasonEntry{}
	for _, why := range p.Why[:min(len(p.Why), mostReasons)] {
		list = append(list, reasonEntry{why.Reason, c.short(why.Message, mostNote)})
	}
	return list
}

// nextStep is what makes sense after a run stands so.
func (c *call) nextStep(p wire.Provision) string {
	switch p.Status {
	case provision.Queued, provision.Processing:
		return fmt.Sprintf(`Call "wait" with run %d, or "why_waiting" if it stays QUEUED.`, p.Number)
	case provision.AwaitingApproval:
		return fmt.Sprintf(`The plan waits for a person. Call "show_plan" with run %d, tell the person what it changes and give them %s to approve or reject it. Then call "wait".`, p.Number, c.page(p.Number))
	case provision.AwaitingInput:
		return fmt.Sprintf(`A person must do the work that is described at %s. Give them the link, then call "wait".`, c.page(p.Number))
	case provision.Success:
		if p.Operation == provision.OperationPlan {
			return fmt.Sprintf(`Call "show_plan" with run %d for what would change. If the person wants it, call "deploy" with the same arguments.`, p.Number)
		}
		return fmt.Sprintf(`It has ended well. Call "outputs" with run %d for what it made.`, p.Number)
	case provision.Failed:
		return fmt.Sprintf(`Call "log" with run %d and from "first_error" to find out why, then tell the person.`, p.Number)
	}
	return `It was cancelled. Call "retry" only if the person wants it again.`
}

// find looks for a run by its number.
func (c *call) find(ctx context.Context, number int64) (wire.Provision, error) {
	if number <= 0 {
		return wire.Provision{}, fmt.Errorf(`run is missing: give a run's number, such as those that "runs" lists`)
	}
	p, err := c.api.Provision(ctx, strconv.FormatInt(number, 10))
	if isNotFound(err) {
		return p, sentence(`Run %d was not found, or you have no access to it. Call "runs" for those there are`, number)
	}
	return p, err
}

func run(ctx context.Context, c *call, in runInput) (runAnswer, error) {
	p, err := c.find(ctx, in.Run)
	if err != nil {
		return runAnswer{}, err
	}
	return c.runAnswer(p), nil
}

type waitInput struct {
	Run     int64 `json:"run" jsonschema:"the run's number"`
	Seconds int   `json:"seconds,omitempty" jsonschema:"how long to wait at most, from 1 to 300; none: 60"`
}

const (
	usualWait = 60
	mostWait  = 300
)

func wait(ctx context.Context, c *call, in waitInput) (runAnswer, error) {
	if in.Seconds == 0 {
		in.Seconds = usualWait
	}
	p, err := c.find(ctx, in.Run)
	if err != nil {
		return runAnswer{}, err
	}
	p, err = c.await(ctx, p, in.Seconds)
	if err != nil {
		return runAnswer{}, err
	}
	return c.runAnswer(p), nil
}

// lookEvery is how often a run is asked about while a tool waits for it.
const lookEvery = time.Second

// await waits until a run has ended or needs a person, for so many seconds at most, and
// reports progress to a client that asked for it. It returns how the run stood last; what
// ends the wait does nothing to the run.
func (c *call) await(ctx context.Context, p wire.Provision, seconds int) (wire.Provision, error) {
	seconds = min(max(seconds, 0), mostWait)
	began := time.Now()
	over := time.NewTimer(time.Duration(seconds) * time.Second)
	defer over.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	said := -1.0
	for !p.Status.EndsRun() {
		if elapsed := time.Since(began).Seconds(); elapsed > said {
			c.report(ctx, p, elapsed, float64(seconds))
			said = elapsed
		}
		select {
		case <-ctx.Done():
			return p, ctx.Err()
		case <-over.C:
			return p, nil
		case <-look.C:
		}
		now, err := c.api.Provision(ctx, p.ID.String())
		if err != nil {
			return p, err
		}
		p = now
	}
	return p, nil
}

// report tells the client how a run stands for which it waits.
func (c *call) report(ctx context.Context, p wire.Provision, elapsed, total float64) {
	if c.progress == nil || c.session == nil {
		return
	}
	message := fmt.Sprintf("Run %d is %s", p.Number, p.Status)
	if p.Stage != nil {
		message += ", stage " + string(*p.Stage)
	}
	if p.Percent != nil {
		message += fmt.Sprintf(", %d %%", *p.Percent)
	}
	// A client that is gone ends the call anyway.
	_ = c.session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: c.progress, Progress: elapsed, Total: total, Message: message})
}

type whyAnswer struct {
	Run     int64         `json:"run"`
	Status  string        `json:"status"`
	Waiting []reasonEntry `json:"waiting" jsonschema:"everything that it waits for; none: it does not wait"`
	Next    string        `json:"next"`
}

func whyWaiting(ctx context.Context, c *call, in runInput) (whyAnswer, error) {
	p, err := c.find(ctx, in.Run)
	if err != nil {
		return whyAnswer{}, err
	}
	return whyAnswer{p.Number, string(p.Status), c.reasons(p), c.nextStep(p)}, nil
}

type planInput struct {
	Run    int64 `json:"run" jsonschema:"the run's number"`
	Offset int   `json:"offset,omitempty" jsonschema:"the next_offset of the answer before, to go on"`
}

type planAnswer struct {
	Run        int64    `json:"run"`
	Status     string   `json:"status"`
	PlanDigest string   `json:"plan_digest,omitempty"`
	Plan       *changes `json:"plan,omitempty" jsonschema:"how many resources; none: there is no plan yet"`
	Changes    string   `json:"changes_data,omitempty" jsonschema:"each resource with the attributes that change"`
	Listed     int      `json:"listed" jsonschema:"how many resources this answer shows"`
	Unlisted   int      `json:"unlisted,omitempty" jsonschema:"how many more the plan changes without listing them"`
	NextOffset int      `json:"next_offset,omitempty"`
	Next       string   `json:"next"`
}

func showPlan(ctx context.Context, c *call, in planInput) (planAnswer, error) {
	p, err := c.find(ctx, in.Run)
	if err != nil {
		return planAnswer{}, err
	}
	answer := planAnswer{Run: p.Number, Status: string(p.Status), PlanDigest: value(p.PlanDigest), Next: c.nextStep(p)}
	if p.Status == provision.AwaitingApproval {
		answer.Next = fmt.Sprintf(`Tell the person what it changes, above all what is replaced or destroyed, and give them %s to approve or reject it. Then call "wait".`, c.page(p.Number))
	}
	if p.Plan == nil {
		if p.Status.EndsRun() {
			answer.Next = "This run has no plan. " + answer.Next
		}
		return answer, nil
	}
	answer.Plan = &changes{p.Plan.Add, p.Plan.Change, p.Plan.Replace, p.Plan.Destroy, p.Plan.Import, p.Plan.Move, p.Plan.Forget}
	answer.Unlisted = p.Plan.Truncated
	list := p.Plan.Resources[min(max(in.Offset, 0), len(p.Plan.Resources)):]
	var text strings.Builder
	shown, fitting := fit(list, mostPart, func(change provision.PlannedChange) string { return lighten(described(change), mostPart) })
	for _, change := range shown {
		text.WriteString(printable.Text(change))
	}
	answer.Changes, answer.Listed = c.data(text.String()), fitting
	if answer.Listed < len(list) {
		answer.NextOffset = max(in.Offset, 0) + answer.Listed
		answer.Next = "There is more: call again with offset set to next_offset. " + answer.Next
	}
	return answer, nil
}

// described is a planned change as text.
func described(change provision.PlannedChange) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s", change.Action, change.Address)
	for _, more := range []struct{ before, what string }{{" from ", change.From}, {" id ", change.ID}, {" because ", change.Reason}} {
		if more.what != "" {
			text.WriteString(more.before + more.what)
		}
	}
	text.WriteByte('\n')
	for _, a := range change.Attributes {
		side := func(v json.RawMessage) string {
			if v == nil {
				return "(none)"
			}
			return cut(string(v), mostNote)
		}
		what := side(a.Before) + " → " + side(a.After)
		switch {
		case a.Sensitive:
			what = "(sensitive)"
		case a.Unknown:
			what = side(a.Before) + " → (known after apply)"
		case a.Long:
			what = "(too long to show)"
		}
		if a.Replaces {
			what += " (replaces the resource)"
		}
		fmt.Fprintf(&text, "    %s: %s\n", a.Path, what)
	}
	if change.Truncated > 0 {
		fmt.Fprintf(&text, "    and %d more attributes\n", change.Truncated)
	}
	return text.String()
}

type outputsInput struct {
	Run       int64  `json:"run,omitempty" jsonschema:"a run's number; either this or workspace"`
	Workspace string `json:"workspace,omitempty" jsonschema:"a workspace by name, whose newest outputs are wanted"`
	Offset    int    `json:"offset,omitempty" jsonschema:"the next_offset of the answer before, to go on"`
}

type outputEntry struct {
	Name      string `json:"name"`
	Value     string `json:"value_data,omitempty" jsonschema:"its value as JSON"`
	Sensitive bool   `json:"sensitive,omitempty" jsonschema:"it is a secret, and not shown"`
	Omitted   bool   `json:"omitted,omitempty" jsonschema:"it was too large to be recorded"`
}

type outputsAnswer struct {
	Run        int64         `json:"run" jsonschema:"the run that they are of"`
	Workspace  string        `json:"workspace"`
	Outputs    []outputEntry `json:"outputs"`
	NextOffset int           `json:"next_offset,omitempty"`
	Next       string        `json:"next"`
}

func outputs(ctx context.Context, c *call, in outputsInput) (outputsAnswer, error) {
	var p wire.Provision
	switch {
	case in.Run != 0:
		var err error
		if p, err = c.find(ctx, in.Run); err != nil {
			return outputsAnswer{}, err
		}
	default:
		w, err := c.findWorkspace(ctx, in.Workspace)
		if err != nil {
			return outputsAnswer{}, err
		}
		if p, err = c.api.LastOutputs(ctx, w.ID); err != nil {
			return outputsAnswer{}, err
		}
	}
	names := slices.Sorted(maps.Keys(p.Outputs))
	names = names[min(max(in.Offset, 0), len(names)):]
	answer := outputsAnswer{Run: p.Number, Workspace: c.name(p.Workspace), Next: "This is all. A sensitive output is shown to people at " + c.page(p.Number) + "."}
	var fitting int
	answer.Outputs, fitting = fit(names, mostPart, func(name string) outputEntry {
		o := p.Outputs[name]
		entry := outputEntry{Name: c.name(name), Sensitive: o.Sensitive, Omitted: o.Omitted}
		if !o.Sensitive {
			entry.Value = c.short(string(o.Value), 2*mostText)
		}
		return entry
	})
	if fitting < len(names) {
		answer.NextOffset = max(in.Offset, 0) + fitting
		answer.Next = "There is more: call again with offset set to next_offset."
	}
	return answer, nil
}
