package executor

import (
	"slices"
	"sync"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
)

// progressEvery is the least time between two reports of progress: each is a
// call to the database, and a large apply has thousands of events.
const progressEvery = 250 * time.Millisecond

// maxEvents is how many events one report carries; each has at most a few KB.
const maxEvents = 200

// maxRunning is how many resources a report says are being worked on: an engine
// works on ten at once, unless it is told otherwise.
const maxRunning = 50

// progress gathers resource events into reports.
type progress struct {
	session *session

	mu      sync.Mutex
	events  []provision.Event
	percent int
	moved   bool                // the percentage is another than was reported
	running []provision.Running // in the order in which they began
	stepped bool                // a step has another percentage than was reported
	told    bool                // a report has said that something is running
	timer   *time.Timer         // set while a report is due
	last    time.Time
	closed  bool
}

func newProgress(s *session) *progress { return &progress{session: s} }

// newQuiet returns a progress whose first report waits its time.
func newQuiet(s *session) *progress { return &progress{session: s, last: time.Now()} }

// on takes one event and how much is done, in percent.
func (p *progress) on(event provision.Event, percent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event)
	p.percent = percent
	p.follow(event)
	p.soon()
}

// reach takes how much is done, where there is nothing else to tell. What is done
// before the first report is due costs none.
func (p *progress) reach(percent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if percent != p.percent {
		p.percent, p.moved = percent, true
		p.soon()
	}
}

// soon has what is new reported, when it is time.
func (p *progress) soon() {
	if p.timer == nil && !p.closed {
		p.timer = time.AfterFunc(max(0, progressEvery-time.Since(p.last)), p.due)
	}
}

// follow notes what is being worked on.
func (p *progress) follow(event provision.Event) {
	switch event.Kind {
	case "resource_started":
		p.running = append(p.running, provision.Running{Address: event.Address, Action: event.Action, Since: event.At})
	case "resource_finished", "resource_failed":
		at := slices.IndexFunc(p.running, func(r provision.Running) bool {
			return r.Address == event.Address && r.Action == event.Action
		})
		if at >= 0 {
			p.running = slices.Delete(p.running, at, at+1)
		}
	case "step_started":
		at := p.at(event.Address)
		if at < 0 { // a step of the run, or of a machine to which nothing is done
			at = len(p.running)
			p.running = append(p.running, provision.Running{Address: event.Address, Since: event.At})
		}
		p.running[at].Step, p.running[at].Percent = event.Message, nil
	case "step_finished", "step_failed":
		if at := p.at(event.Address); at >= 0 {
			p.running[at].Step, p.running[at].Percent = "", nil
			if p.running[at].Action == "" {
				p.running = slices.Delete(p.running, at, at+1)
			}
		}
	}
}

// at is where that which has an address stands among what is being worked on; -1: nowhere.
func (p *progress) at(address string) int {
	return slices.IndexFunc(p.running, func(r provision.Running) bool { return r.Address == address })
}

// step takes an event of a step.
func (p *progress) step(event provision.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event)
	p.follow(event)
	p.soon()
}

// stepPercent takes how much is done of the step that a machine, or the run itself, is in.
func (p *progress) stepPercent(address string, percent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.at(address); at >= 0 && (p.running[at].Percent == nil || *p.running[at].Percent != percent) {
		p.running[at].Percent = &percent
		p.stepped = true
		p.soon()
	}
}

func (p *progress) due() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	p.flush()
}

// close reports what is left, and that nothing is being worked on any more:
// an engine that was killed does not say so.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.running, p.moved, p.stepped = nil, false, false
	p.flush()
}

func (p *progress) flush() {
	ended := p.told && len(p.running) == 0
	if len(p.events) == 0 && !p.moved && !p.stepped && !ended {
		return
	}
	percent := p.percent
	for len(p.events) > maxEvents {
		_ = p.session.report(provision.Detail{Events: p.events[:maxEvents]})
		p.events = p.events[maxEvents:]
	}
	var running []provision.Running
	if len(p.events) > 0 || p.stepped || ended {
		running = append([]provision.Running{}, p.running[:min(len(p.running), maxRunning)]...)
	}
	// A spool that takes no more is met by the next line and by the result.
	_ = p.session.report(provision.Detail{Percent: &percent, Running: running, Events: p.events})
	p.events, p.moved, p.stepped, p.last = nil, false, false, time.Now()
	p.told = p.told && running == nil || len(running) > 0
}
