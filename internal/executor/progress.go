package executor

import (
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// progressEvery is the least time between two reports of progress: each is a
// call to the database, and a large apply has thousands of events.
const progressEvery = 250 * time.Millisecond

// maxEvents is how many events one report carries; each has at most a few KB.
const maxEvents = 200

// progress gathers resource events into reports.
type progress struct {
	session *session

	mu      sync.Mutex
	events  []provision.Event
	percent int
	timer   *time.Timer // set while a report is due
	last    time.Time
	closed  bool
}

func newProgress(s *session) *progress { return &progress{session: s} }

// on takes one event and how much is done, in percent.
func (p *progress) on(event provision.Event, percent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event)
	p.percent = percent
	if p.timer == nil && !p.closed {
		p.timer = time.AfterFunc(max(0, progressEvery-time.Since(p.last)), p.due)
	}
}

func (p *progress) due() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	p.flush()
}

// close reports what is left.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.flush()
}

func (p *progress) flush() {
	if len(p.events) == 0 {
		return
	}
	percent := p.percent
	for len(p.events) > maxEvents {
		_ = p.session.report(provision.Detail{Events: p.events[:maxEvents]})
		p.events = p.events[maxEvents:]
	}
	// A spool that takes no more is met by the next line and by the result.
	_ = p.session.report(provision.Detail{Percent: &percent, Events: p.events})
	p.events, p.last = nil, time.Now()
}
