package logstream

import (
	"context"
	"fmt"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
)

// update reports one update, unless the database has had it or nobody waits
// for its answer any more.
func (p *Pump) update(ctx context.Context, r Record) error {
	if r.Update <= p.reported || p.settled(r) {
		return nil
	}
	final := r.Report.Status.EndsRun()
	if r.Ack && !final && p.abandoned() {
		return nil
	}
	if !r.At.IsZero() {
		p.observer.Waits(r.At) // what was printed before it is stored, and what came after it waits for it
	}
	for {
		err := p.report(ctx, r)
		if queue.KindOf(err) == queue.ContentRefused && (!r.Ack || final) {
			err = p.reportWithout(ctx, r, err)
		}
		if err != nil && queue.KindOf(err) == queue.Unavailable {
			if err := p.pause(ctx, fmt.Errorf("report: %w", err)); err != nil {
				return err
			}
			if r.Ack && !final && p.abandoned() {
				return nil
			}
			continue
		}
		return p.answered(r, err)
	}
}

// settled reports whether an update was dealt with before this Pump: chunks
// behind it are stored, and they are sent in order. The end is always reported,
// for Run is to return it accepted.
func (p *Pump) settled(r Record) bool {
	return p.chunks.number+1 < p.resumedTo && !r.Report.Status.EndsRun()
}

// abandoned reports whether no child waits for answers: either the database
// knows the update, or the child never went on. A stage that was announced and
// never begun must not be reported.
func (p *Pump) abandoned() bool { return p.options.Resume || p.childDead() }

// answered deals with the database's answer to an update.
func (p *Pump) answered(r Record, err error) error {
	p.reported = r.Update
	p.retry.Reset()
	if err == nil {
		p.observer.Reported(*r.Report, r.At)
	}
	if r.Ack && p.options.Acked != nil && !p.abandoned() {
		var refused *provision.Failure
		if err != nil {
			refused = refusal(err)
		}
		p.options.Acked(r.Asked, refused)
	}
	switch {
	case r.Report.Status.EndsRun() && err == nil:
		p.out.Result = r.Report
	case err == nil:
	case r.Report.Status.EndsRun():
		p.out.Unwanted = r.Report
		return fmt.Errorf("report the end (%s): %w", r.Report.Status, err)
	case fatal(err):
		return fmt.Errorf("report: %w", err)
	case !r.Ack:
		p.out.Refused++
		p.out.Refusal = err
	}
	return nil
}

// fatal reports whether no later call of this agent can succeed. A lost claim
// is not: its lines may still be stored.
func fatal(err error) bool {
	kind := queue.KindOf(err)
	return kind == queue.Unauthorized || kind == queue.Superseded
}

// report tells the database of an update, by a number that is the same however
// often and by whomever it is told.
func (p *Pump) report(ctx context.Context, r Record) error {
	p.observer.Turns(callLimit)
	if r.Report.Status == provision.AwaitingApproval && p.planless {
		*r.Report = provision.Report{Status: provision.Failed, Detail: provision.Detail{ErrorCode: provision.CodePlanInvalid,
			ErrorMessage: "The database did not take the plan, so nobody could see what they approve. Nothing was changed. The log says what was left out and why."}}
	}
	report := *r.Report
	report.Detail = report.Detail.Fit(r.At)
	report.Detail.Number = r.Update
	return p.queue.Report(ctx, p.claim, report)
}

// appendLog stores chunks, or some of them, however often it takes.
func (p *Pump) appendLog(ctx context.Context, first int64, chunks []provision.LogChunk) (int64, error) {
	for {
		next, err := p.tryAppendLog(ctx, first, chunks)
		if queue.KindOf(err) == queue.ContentRefused {
			if len(chunks) == 0 {
				err = held(err)
			} else {
				next, err = p.bisect(ctx, first, chunks, err)
			}
		}
		if err == nil {
			return next, nil
		}
		err = fmt.Errorf("store log chunks from %d: %w", first, err)
		if queue.KindOf(err) != queue.Unavailable {
			return 0, err
		}
		if err := p.pause(ctx, err); err != nil {
			return 0, err
		}
	}
}

func (p *Pump) tryAppendLog(ctx context.Context, first int64, chunks []provision.LogChunk) (int64, error) {
	p.observer.Turns(callLimit)
	return p.queue.AppendLog(ctx, p.claim, first, chunks)
}

// pause waits before a call is repeated, longer each time until one succeeds.
func (p *Pump) pause(ctx context.Context, why error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.options.OnRetry != nil {
		p.options.OnRetry(why)
	}
	again := queue.Wait(why, p.retry.NextBackOff())
	p.observer.Turns(again)
	wait := time.NewTimer(again)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-wait.C:
		return nil
	}
}
