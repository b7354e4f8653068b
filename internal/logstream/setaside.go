package logstream

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// Refused is a part of a spool that the database does not take for its content.
type Refused struct {
	// Kind is "log" for a chunk, "report" for an update.
	Kind   string
	Number int64 // of the chunk or the update
	// Content is a provision.LogChunk or a provision.Report.
	Content any
	Why     error
}

// An answer that blames the content is believed only when the same call without
// that content succeeds. Otherwise the database is at fault, a constraint that
// somebody added for example, and the spool waits as in any outage. So nothing is
// given up for an error that everything would meet.

// bisect stores the chunks before the one that the database does not take, or that
// one's replacement, and returns the number that the database expects next.
func (p *Pump) bisect(ctx context.Context, first int64, chunks []provision.LogChunk, refused error) (int64, error) {
	for len(chunks) > 1 {
		chunks = chunks[:len(chunks)/2]
		next, err := p.tryAppendLog(ctx, first, chunks)
		if queue.KindOf(err) != queue.ContentRefused {
			return next, err
		}
		refused = err
	}
	chunk := chunks[0]
	if err := p.setAside(Refused{"log", first, chunk, refused}); err != nil {
		return 0, err
	}
	line := provision.LogChunk{Stream: provision.System, EmittedAt: chunk.Fit().EmittedAt, Text: fmt.Sprintf(
		"Here %d bytes of the run's output (%s) are left out, because the database does not take them: %s\n", len(chunk.Text), chunk.Stream, reasonOf(refused))}
	next, err := p.tryAppendLog(ctx, first, []provision.LogChunk{line})
	if err != nil {
		return 0, held(err)
	}
	p.observer.SetAside("log")
	return next, nil
}

// reportWithout reports an update without what the database does not take of it,
// and a note that says so.
func (p *Pump) reportWithout(ctx context.Context, r Record, refused error) error {
	if err := p.setAside(Refused{"report", r.Update, *r.Report, refused}); err != nil {
		return err
	}
	for _, lesser := range lessers(*r.Report) {
		lesser.report.Detail.SetAside = fmt.Sprintf("Of what the run reported, this is left out, because the database does not take it: %s. The database said: %s",
			strings.Join(lesser.without, ", "), reasonOf(refused))
		if lost := lesser.report.Detail; r.Report.Detail.Plan != nil && lost.Plan == nil {
			p.planless = true
		}
		without := r
		without.Report = &lesser.report
		err := p.report(ctx, without)
		if queue.KindOf(err) == queue.ContentRefused {
			continue
		}
		if err == nil {
			*r.Report = lesser.report // what the database knows
			p.observer.SetAside("report")
		}
		return err
	}
	return held(refused)
}

// lesser is a report without some of its content.
type lesser struct {
	report  provision.Report
	without []string
}

// lessers returns what can be told of a report that is refused for its content: all
// but one part of it, for each part, then what the run needs to come to its end, and
// then its status alone.
func lessers(r provision.Report) (all []lesser) {
	parts := []struct {
		name string
		has  bool
		drop func(*provision.Detail)
	}{
		{"the plan", r.Detail.Plan != nil, func(d *provision.Detail) { d.Plan = nil }},
		{"the outputs", r.Detail.Outputs != nil, func(d *provision.Detail) { d.Outputs = nil }},
		{"the resources", r.Detail.Resources != nil, func(d *provision.Detail) { d.Resources, d.ResourcesOmitted = nil, 0 }},
		{"events", r.Detail.Events != nil, func(d *provision.Detail) { d.Events = nil }},
		{"what is being worked on", r.Detail.Running != nil, func(d *provision.Detail) { d.Running = nil }},
		{"the drift", r.Detail.Drift != nil, func(d *provision.Detail) { d.Drift = nil }},
		{"the template's variables", r.Detail.Variables != nil, func(d *provision.Detail) { d.Variables = nil }},
		{"the state's lock", r.Detail.StateLock != nil, func(d *provision.Detail) { d.StateLock = nil }},
	}
	bare := lesser{report: r}
	for _, part := range parts {
		if !part.has {
			continue
		}
		one := lesser{report: r, without: []string{part.name}}
		part.drop(&one.report.Detail)
		all = append(all, one)
		part.drop(&bare.report.Detail)
		bare.without = append(bare.without, part.name)
	}
	if len(bare.without) > 1 {
		all = append(all, bare)
	}
	d := bare.report.Detail
	least := lesser{report: provision.Report{Status: r.Status, Detail: provision.Detail{
		StateUnsaved: d.StateUnsaved, PlanDigest: d.PlanDigest, ResultDigest: d.ResultDigest, ErrorCode: d.ErrorCode,
	}}, without: append(bare.without, "everything but the status")}
	return append(all, least)
}

// setAside has something kept for people. Where that fails it waits, as for a
// database that is away: the disk is full.
func (p *Pump) setAside(r Refused) error {
	if p.options.SetAside == nil {
		return nil
	}
	if err := p.options.SetAside(r); err != nil {
		return &queue.Error{Kind: queue.Unavailable, Message: fmt.Sprintf("could not keep what the database refuses: %v", err), Err: err}
	}
	return nil
}

// held is an error after which the spool waits, for what it blames is not to blame.
func held(err error) error {
	if queue.KindOf(err) != queue.ContentRefused {
		return err
	}
	return &queue.Error{Kind: queue.Unavailable, Err: err,
		Message: fmt.Sprintf("%v; it refuses a plain line as well, so its tables are at fault: look for constraints and triggers that are no part of the contract", err)}
}

// longestReason is how many bytes of an answer a line of the log shows.
const longestReason = 300

// reasonOf is an answer in printable ASCII, which a database of any encoding takes.
func reasonOf(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*queue.Error](err); ok {
		text = e.Message
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text)
	if len(text) > longestReason {
		text = text[:longestReason] + " ..."
	}
	return text
}
