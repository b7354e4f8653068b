package logstream

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

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

// add takes a text or close record, and sends the batch when it is full, which
// it may be again where numbers are missing. It reports false when the reader
// starts again.
func (p *Pump) add(ctx context.Context, r Record) (sent bool, err error) {
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
