package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/retry"
	"github.com/tendril-run/tendril/internal/spool"
)

// Queue is what a Pump asks of the database; see queue.Queue.
type Queue interface {
	AppendLog(ctx context.Context, claimID uuid.UUID, first int64, chunks []provision.LogChunk) (next int64, err error)
	Report(ctx context.Context, claimID uuid.UUID, report provision.Report) error
}

// PumpOptions are the choices of a Pump.
type PumpOptions struct {
	// Resume says that the spool may have been delivered in part: the database
	// is asked first what it has, and updates that a child waited for are not
	// sent again.
	Resume bool
	// Acked hears the answer to the update n that the child waits for: nil, or
	// why the database refuses it.
	Acked func(n int64, refused *provision.Failure)
	// Tail is what a log beyond its limit ends with; the files may be nil.
	Tail spool.Tail
	// OnRetry hears each failure after which a call is repeated: one at a time,
	// before Run returns, but not always on the goroutine that Run was called on.
	OnRetry func(error)
	// SetAside keeps, for people, what the database does not take for its content;
	// nil: it is not kept.
	SetAside func(Refused) error
	// Observer may be nil.
	Observer Observer
}

// Pump delivers one spool to the queue: chunks and updates in the order of the
// file, each chunk once. It keeps no more in memory than two batches: one on its
// way and the next.
type Pump struct {
	queue   Queue
	claim   uuid.UUID
	options PumpOptions
	// observer is never nil.
	observer Observer
	reader   *spool.Reader
	chunks   assembler
	flight   *flight // nil: none
	spare    []provision.LogChunk
	// launched is when the last one began.
	launched time.Time
	retry    *retry.Waits
	done     <-chan struct{}
	// resumedTo is the chunk the database expected when delivery was resumed.
	resumedTo int64
	reported  int64 // the last update that needs no report any more
	// final is the final report that nothing has followed yet.
	final *spool.Record
	// planless says that the database did not take the plan of the run.
	planless    bool
	tailSkipped int
	out         Delivered
}

// Delivered is what a Pump has done.
type Delivered struct {
	// Result is the final report once the database has accepted it; nil if the
	// spool holds none.
	Result *provision.Report
	// Lines and Bytes count the text stored by this Pump.
	Lines, Bytes int64
	// NextChunk is the number the database expects next.
	NextChunk int64
	// Skipped counts lines of the spool that were no record.
	Skipped int
	// Forged counts final reports that do not count because records follow
	// them: no child writes after its own.
	Forged int
	// Refused counts updates the database did not take, other than those the
	// child waited for; Refusal is the last such answer.
	Refused int
	Refusal error
	// Unwanted is the final report where the database refused it, though it has
	// taken every line before it.
	Unwanted *provision.Report
}

// The intervals at which a Pump looks at the spool without being woken. The
// doorbell may be missing or lost; looking at an unchanged file costs one read.
const (
	lookSoon   = 100 * time.Millisecond
	lookSeldom = time.Second
)

// rest is the least time between two calls that carry less than a whole batch,
// so that a stream of lines costs the database 50 commits a second and not one
// for each chunk. What comes after a longer silence, updates and all that stands
// before them go at once.
const rest = 20 * time.Millisecond

// The waits between repeated calls. An outage lasts as long as it lasts: a
// Pump gives up only when its context ends.
const (
	retrySoon   = 100 * time.Millisecond
	retrySeldom = 5 * time.Second
	// callLimit is longer than any call takes with the wait for its turn: the queue
	// bounds its calls itself.
	callLimit = 10 * time.Minute
)

// NewPump returns a Pump for the spool of a claim.
func NewPump(q Queue, claim uuid.UUID, file *os.File, options PumpOptions) *Pump {
	var observer Observer = unobserved{}
	if options.Observer != nil {
		observer = options.Observer
	}
	return &Pump{
		queue:    q,
		claim:    claim,
		options:  options,
		observer: observer,
		reader:   spool.NewReader(file),
		chunks:   assembler{want: 1},
		retry:    retry.Between(retrySoon, retrySeldom),
	}
}

// Run delivers what the spool holds and what is appended to it, until done,
// which says that the child and all it started are dead, is closed and all is
// delivered. wake says that the spool has grown; it may be nil, and is only a
// hint.
//
// A final report frees the workspace, and a template that runs under the
// child's uid might append one while its engine is at work. So it counts only
// as the last record of a child that is dead: it is reported then, and not
// before.
//
// An unreachable database is waited for until ctx ends. An answer that makes
// delivery impossible (the claim is lost, the token is not valid, another boot
// has taken over) is returned with what was delivered before it; so is a
// refused final report. Run is called once.
func (p *Pump) Run(ctx context.Context, wake, done <-chan struct{}) (Delivered, error) {
	p.done = done
	flying, cancel := context.WithCancel(ctx)
	err := p.run(flying, wake)
	cancel()
	p.out.NextChunk = p.chunks.first()
	if p.flight != nil {
		p.out.NextChunk = p.abort()
	}
	p.out.Skipped = p.reader.Skipped() + p.tailSkipped
	if err == nil {
		p.observer.Waits(time.Time{}) // else who comes next delivers the rest
	}
	return p.out, err
}

func (p *Pump) run(ctx context.Context, wake <-chan struct{}) error {
	if p.options.Resume {
		next, err := p.appendLog(ctx, 1, nil)
		if err != nil {
			return p.heard(ctx, err)
		}
		p.chunks.rewind(next)
		p.resumedTo = next
	}
	look := time.NewTimer(lookSoon)
	defer look.Stop()
	for every := lookSoon; ; {
		dead := p.childDead() // asked before reading: what is read then is all there is
		if dead {
			p.reader.Final()
		}
		before := p.reader.Offset()
		p.observer.Turns(every)
		if err := p.deliver(ctx, dead); err != nil || dead {
			return err
		}
		if p.reader.Offset() != before || wake == nil {
			every = lookSoon
		} else {
			every = min(2*every, lookSeldom)
		}
		if wait := p.resting(); wait > 0 {
			look.Reset(wait)
		} else {
			look.Reset(every)
		}
		p.tellWaiting()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
		case _, ok := <-wake:
			if !ok {
				wake = nil
			}
		case <-look.C:
		}
	}
}

// resting returns how long chunks that are at hand are still to wait for more.
func (p *Pump) resting() time.Duration {
	if len(p.chunks.batch) == 0 {
		return 0
	}
	return rest - time.Since(p.launched)
}

func (p *Pump) childDead() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// deliver sends all that the spool holds now, but for what rests.
func (p *Pump) deliver(ctx context.Context, dead bool) error {
	for {
		r, err := p.reader.Next()
		switch {
		case errors.Is(err, io.EOF):
			if dead {
				p.chunks.close()
			} else if p.resting() > 0 {
				return nil
			}
			if sent, err := p.send(ctx); err != nil {
				return err
			} else if !sent {
				continue // the reader starts again
			}
			if !dead {
				return nil
			}
			if sent, err := p.deliverTail(ctx); err != nil {
				return err
			} else if !sent {
				continue
			}
			if p.final != nil {
				return p.update(ctx, *p.final)
			}
			return nil
		case err != nil:
			return err
		}
		if p.final != nil {
			p.final = nil
			p.out.Forged++
		}
		if err := p.take(ctx, r); err != nil {
			return err
		}
	}
}

// take sends a record, or puts it where it waits for those that follow.
func (p *Pump) take(ctx context.Context, r spool.Record) error {
	if r.Update == 0 {
		_, err := p.add(ctx, r)
		return err
	}
	p.chunks.close()
	if sent, err := p.send(ctx); err != nil || !sent {
		return err // if it is not sent, the reader starts again and will come back to it
	}
	if r.Report.Status.EndsRun() {
		p.final = &r // an update has no text that the reader could overwrite
		return nil
	}
	return p.update(ctx, r)
}

// add takes a text or close record, and sends the batch when it is full, which
// it may be again where numbers are missing. It reports false when the reader
// starts again.
func (p *Pump) add(ctx context.Context, r spool.Record) (sent bool, err error) {
	p.chunks.add(r)
	for p.chunks.full() {
		if landed, err := p.land(ctx); err != nil || !landed {
			return false, err
		}
		p.launch(ctx)
	}
	return true, nil
}

// send stores all that was collected. It reports false when the database lacks
// chunks from before that: then the reader starts again.
func (p *Pump) send(ctx context.Context) (sent bool, err error) {
	for {
		if landed, err := p.land(ctx); err != nil || !landed {
			return false, err
		}
		if len(p.chunks.batch) == 0 {
			return true, nil
		}
		p.launch(ctx)
	}
}

// launch sends the batch on its way, if there is one.
func (p *Pump) launch(ctx context.Context) {
	if len(p.chunks.batch) == 0 {
		return
	}
	f := &flight{first: p.chunks.first(), landed: make(chan struct{})}
	f.chunks = p.chunks.handOver(p.spare)
	p.spare, p.flight, p.launched = nil, f, time.Now()
	p.tellWaiting()
	go func() {
		defer close(f.landed)
		f.next, f.err = p.appendLog(ctx, f.first, f.chunks)
	}()
}

// land waits until the flight, if there is one, is stored. Like send it reports
// false when the reader starts again.
func (p *Pump) land(ctx context.Context) (landed bool, err error) {
	f := p.flight
	if f == nil {
		return true, nil
	}
	<-f.landed // it ends with ctx
	for {
		switch {
		case f.err != nil:
			return false, f.err
		case f.next > f.first:
			p.count(f)
			p.chunks.stored(f.next) // it may have chunks that are only on our way
			p.retry.Reset()
			if len(f.chunks) == 0 {
				p.retire()
				return true, nil
			}
		default:
			if f.next < f.first {
				p.reader.Rewind()
				p.chunks.rewind(f.next)
				p.final, p.out.Forged = nil, 0 // they are met again
				p.retire()
			}
			// The database has taken nothing of what it was given. Ask again, but
			// not as fast as it answers.
			err := p.pause(ctx, fmt.Errorf("store log chunks from %d: the database expects %d", f.first, f.next))
			if err != nil || f.next < f.first {
				return false, err
			}
		}
		f.next, f.err = p.appendLog(ctx, f.first, f.chunks)
	}
}

// count notes how much of a flight this call has stored, and leaves the rest.
func (p *Pump) count(f *flight) {
	n := min(f.next-f.first, int64(len(f.chunks)))
	for _, c := range f.chunks[:n] {
		p.out.Bytes += int64(len(c.Text))
		p.out.Lines += int64(strings.Count(c.Text, "\n"))
	}
	kept := copy(f.chunks, f.chunks[n:])
	clear(f.chunks[kept:]) // let go of the text
	f.chunks, f.first = f.chunks[:kept], f.first+n
	p.observer.Stored(int(n))
}

// retire ends the flight; its memory serves the one after the next.
func (p *Pump) retire() {
	clear(p.flight.chunks)
	p.spare, p.flight = p.flight.chunks, nil
}

// abort ends a flight that nobody waits for any more, its context being over,
// and returns the number that the database expects as far as is known.
func (p *Pump) abort() int64 {
	f := p.flight
	<-f.landed
	if f.err != nil {
		return f.first
	}
	if f.next > f.first {
		p.count(f)
	}
	return f.next // less than the first, if it was restored from a backup
}

// heard deals with a spool of which the database wants no line any more. Where
// its run has ended with a plan that awaits a person, and somebody has said yes, or
// was set down, another claim has followed, and the database has had all of it: it is asked by
// that report, which it knows again. Of any other spool it returns the error.
func (p *Pump) heard(ctx context.Context, refused error) error {
	if queue.KindOf(refused) != queue.ClaimLost || !p.childDead() {
		return refused
	}
	p.reader.Final()
	var last spool.Record
	for {
		r, err := p.reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(refused, err)
		}
		last = r
	}
	if last.Update == 0 || !last.Report.Status.Awaits() && last.Report.Status != provision.SetDown {
		return refused
	}
	for {
		err := p.report(ctx, last)
		switch {
		case err == nil:
			p.out.Result = last.Report
			return nil
		case queue.KindOf(err) != queue.Unavailable:
			return refused
		}
		if err := p.pause(ctx, fmt.Errorf("report: %w", err)); err != nil {
			return err
		}
	}
}

// tellWaiting tells since when the oldest line waits.
func (p *Pump) tellWaiting() {
	switch f := p.flight; {
	case f != nil && len(f.chunks) > 0:
		p.observer.Waits(f.chunks[0].EmittedAt)
	case len(p.chunks.batch) > 0:
		p.observer.Waits(p.chunks.batch[0].EmittedAt)
	case p.chunks.open && p.chunks.number >= p.chunks.want:
		p.observer.Waits(p.chunks.at)
	default:
		p.observer.Waits(time.Time{})
	}
}

// update reports one update, unless the database has had it or nobody waits
// for its answer any more.
func (p *Pump) update(ctx context.Context, r spool.Record) error {
	if r.Update <= p.reported {
		return nil
	}
	final := r.Report.Status.EndsRun()
	if p.settled(r) || r.Ack && !final && p.abandoned() {
		p.observer.Heard(*r.Report, r.At)
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
func (p *Pump) settled(r spool.Record) bool {
	return p.chunks.number+1 < p.resumedTo && !r.Report.Status.EndsRun()
}

// abandoned reports whether no child waits for answers: either the database
// knows the update, or the child never went on. A stage that was announced and
// never begun must not be reported.
func (p *Pump) abandoned() bool { return p.options.Resume || p.childDead() }

// answered deals with the database's answer to an update.
func (p *Pump) answered(r spool.Record, err error) error {
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

// report tells the database of an update, by a number that is the same however
// often and by whomever it is told.
func (p *Pump) report(ctx context.Context, r spool.Record) error {
	p.observer.Turns(callLimit)
	if r.Report.Status.Awaits() && p.planless || r.Report.Status == provision.AwaitingInput && r.Report.Detail.Input == nil {
		*r.Report = provision.Report{Status: provision.Failed, Detail: provision.Detail{ErrorCode: provision.CodePlanInvalid,
			ErrorMessage: "The database did not take the plan, or what a person is to do, so nobody could see it. Nothing was changed. The log says what was left out and why."}}
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
	if !retry.Sleep(ctx, again) {
		return ctx.Err()
	}
	return nil
}

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
func (p *Pump) reportWithout(ctx context.Context, r spool.Record, refused error) error {
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

// deliverTail sends what a log beyond its limit ends with. Like send it reports
// false when the reader is to start again.
func (p *Pump) deliverTail(ctx context.Context) (sent bool, err error) {
	t := spool.NewTailReader(p.options.Tail, p.chunks.number)
	for {
		r, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, err
		}
		if sent, err := p.add(ctx, r); err != nil || !sent {
			return false, err
		}
	}
	p.chunks.close()
	p.tailSkipped = t.Skipped()
	return p.send(ctx)
}

// fatal reports whether no later call of this agent can succeed. A lost claim
// is not: its lines may still be stored.
func fatal(err error) bool {
	kind := queue.KindOf(err)
	return kind == queue.Unauthorized || kind == queue.Superseded
}

// flight is a batch on its way to the database, while the Pump reads on. There
// is one at a time, so the order stays. Between launch and land the Pump must
// not call the queue, nor wait before a repeated call: the flight does.
type flight struct {
	first  int64
	chunks []provision.LogChunk
	landed chan struct{}
	// The database's answer, once landed is closed.
	next int64
	err  error
}
