package logstream

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
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
	Tail Tail
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
	reader   *Reader
	chunks   assembler
	flight   *flight // nil: none
	spare    []provision.LogChunk
	// launched is when the last one began.
	launched time.Time
	retry    *backoff.ExponentialBackOff
	done     <-chan struct{}
	// resumedTo is the chunk the database expected when delivery was resumed.
	resumedTo int64
	reported  int64 // the last update that needs no report any more
	// final is the final report that nothing has followed yet.
	final *Record
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
func NewPump(q Queue, claim uuid.UUID, spool *os.File, options PumpOptions) *Pump {
	var observer Observer = unobserved{}
	if options.Observer != nil {
		observer = options.Observer
	}
	return &Pump{
		queue:    q,
		claim:    claim,
		options:  options,
		observer: observer,
		reader:   NewReader(spool),
		chunks:   assembler{want: 1},
		retry: &backoff.ExponentialBackOff{
			InitialInterval:     retrySoon,
			RandomizationFactor: backoff.DefaultRandomizationFactor,
			Multiplier:          2,
			MaxInterval:         retrySeldom,
		},
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
		before := p.reader.offset
		p.observer.Turns(every)
		if err := p.deliver(ctx, dead); err != nil || dead {
			return err
		}
		if p.reader.offset != before || wake == nil {
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
func (p *Pump) take(ctx context.Context, r Record) error {
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
