package client

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// timing is how long things are waited for; tests want them short.
type timing struct {
	retry    time.Duration // before a call is first repeated
	look     time.Duration // between two looks at a provision that goes on
	hinted   time.Duration // between two looks that hints ask for
	silent   time.Duration // how long a stream may say nothing: the server says something each 15 s
	reopen   time.Duration // before a stream that was cut is opened again
	patience time.Duration // how long the server may be away
}

var usual = timing{
	retry: 100 * time.Millisecond, look: time.Second, hinted: 200 * time.Millisecond, silent: 40 * time.Second, reopen: time.Second, patience: 30 * time.Second,
}

// Follower is told of a provision that goes on. Its calls never overlap; an
// error of one ends the following.
type Follower struct {
	// Line gets each row of the log after Seq once, in their order; nil: the log
	// is not wanted.
	Line func(store.LogRow) error
	// Stands gets how the provision stands, at least each second.
	Stands func(store.Provision) error
	Seq    int64
	// Late goes on past a run's end where its agent was lost: that may deliver lines
	// and a result for a day. The server's stream says when nothing more is to come.
	Late bool
}

// Follow tells of a provision until its run has ended, or awaits approval, and
// returns how it stands then, after the last row of its log. A server that is
// away for less than half a minute is waited for. When ctx ends first, it returns how
// the provision stood when it was last read.
//
// Rows come by an event stream where there is one, and else are asked for. Both
// go by their numbers, so a stream that is cut, or that a proxy keeps for itself,
// costs time and no row.
func (c *Client) Follow(ctx context.Context, id uuid.UUID, f Follower) (store.Provision, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &following{client: c, id: id, Follower: f}
	defer func() {
		cancel()
		s.cut()
	}()
	tick := time.NewTicker(c.timing.look)
	defer tick.Stop()
	answered := time.Now()
	for due := true; ; {
		if due {
			done, err := s.look(ctx)
			_, away := errors.AsType[*store.UnreachableError](err)
			switch {
			case err == nil && done:
				return s.now, nil
			case err == nil:
				answered = time.Now()
			case !away || time.Since(answered) > c.timing.patience || ctx.Err() != nil:
				return s.now, err
			}
		}
		if f.Line != nil && s.stream == nil && time.Since(s.cutAt) >= c.timing.reopen && time.Since(answered) < c.timing.look*2 {
			s.open(ctx)
		}
		select {
		case <-ctx.Done():
			return s.now, ctx.Err()
		case event, more := <-s.events():
			var err error
			if due, err = s.take(event, more); err != nil {
				return s.now, err
			}
		case <-tick.C:
			if due = s.dueNow(); !due {
				if err := s.tell(); err != nil {
					return s.now, err
				}
			}
		}
	}
}

// following is one that goes on.
type following struct {
	Follower
	client *Client
	id     uuid.UUID
	now    store.Provision // as it was last read
	read   time.Time       // when that was
	hinted bool            // it may have changed since
	stream *stream         // nil while there is none
	cutAt  time.Time
	over   bool      // the stream has said that nothing more is to come
	heard  time.Time // of a lost run: when a stream last was there that could say so
}

// look reads how the provision stands, and the rows that are new. The status
// before the log: once it is final, so is the log.
func (s *following) look(ctx context.Context) (done bool, err error) {
	p, err := s.client.Provision(ctx, s.id.String())
	if err != nil {
		return false, err
	}
	s.now, s.read, s.hinted = p, time.Now(), false
	done = p.Status.EndsRun() && !s.mayGoOn()
	if s.Line != nil && (s.stream == nil || done || s.stream.quiet(s.client.timing)) {
		if err := s.catchUp(ctx); err != nil {
			return false, err
		}
	}
	return done, s.tell()
}

// mayGoOn reports whether more is waited for although the run has ended: its agent was
// lost. Where no stream is to be had, nobody says when nothing more is to come: then it
// is waited for as long as a stream may be silent.
func (s *following) mayGoOn() bool {
	if !s.Late || s.over || !Lost(s.now) {
		return false
	}
	if s.heard.IsZero() || s.stream != nil && !s.stream.quiet(s.client.timing) {
		s.heard = time.Now()
	}
	return time.Since(s.heard) < s.client.timing.silent
}

// Lost reports whether a provision has ended because its agent was lost, and the agent
// may still say otherwise.
func Lost(p store.Provision) bool {
	return p.Status == provision.Failed && p.ErrorCode != nil && *p.ErrorCode == string(provision.CodeAgentLost)
}

// catchUp asks for the rows that are not there yet.
func (s *following) catchUp(ctx context.Context) error {
	for {
		page, err := s.client.logs(ctx, s.id, s.Seq)
		if err != nil {
			return err
		}
		for _, row := range page.Items {
			if err := s.line(row); err != nil {
				return err
			}
		}
		if len(page.Items) == 0 || s.Seq >= page.Last {
			return nil
		}
	}
}

func (s *following) line(row store.LogRow) error {
	if row.Seq <= s.Seq {
		return nil
	}
	if err := s.Line(row); err != nil {
		return err
	}
	s.Seq = row.Seq
	return nil
}

// tell says how the provision stands, as of now by the database's clock.
func (s *following) tell() error {
	if s.Stands == nil || s.read.IsZero() {
		return nil
	}
	p := s.now
	p.AsOf = p.AsOf.Add(time.Since(s.read))
	return s.Stands(p)
}

// dueNow reports whether the provision must be asked about without a hint.
func (s *following) dueNow() bool {
	if s.stream == nil || s.hinted || s.stream.quiet(s.client.timing) {
		return true
	}
	// What a queued one waits for, and percentages, come with no event.
	return time.Since(s.read) >= 2*s.client.timing.look
}

// take takes an event of the stream, and says whether to look.
func (s *following) take(e event, more bool) (due bool, err error) {
	if !more {
		s.cut()
		return true, nil
	}
	switch {
	case e.row == nil: // one that is left out is made up for by the next tick
		s.hinted = s.hinted || !e.end
		s.over = s.over || e.end
		return e.end || time.Since(s.read) >= s.client.timing.hinted, nil
	case e.row.Seq > s.Seq+1: // rows were left out: they are asked for
		s.cut()
		return true, nil
	}
	return false, s.line(*e.row)
}

func (s *following) open(ctx context.Context) {
	s.stream = s.client.openStream(ctx, s.id, s.Seq)
}

func (s *following) cut() {
	if s.stream != nil {
		s.stream.close()
		s.stream, s.cutAt = nil, time.Now()
	}
}

func (s *following) events() <-chan event {
	if s.stream == nil {
		return nil
	}
	return s.stream.events
}
