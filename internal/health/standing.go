package health

import (
	"fmt"
	"sync"
	"time"
)

// Standing is how an agent stands with the database. A nil Standing is for an
// agent that nobody asks.
type Standing struct {
	mu       sync.Mutex
	why      string        // what stands in the way, as far as is known
	beat     time.Time     // the last heartbeat that was answered
	interval time.Duration // between heartbeats, as it was then
	draining bool
}

// NewStanding returns the Standing of an agent that has just been started.
func NewStanding() *Standing { return &Standing{why: notRegistered} }

const notRegistered = "it has not registered with the database yet"

// missable is how many heartbeats may be missed by an agent that is ready: one
// is lost with a connection.
const missable = 3

// leastGrace is how long after a heartbeat an agent is ready at least, however
// often it is to beat.
const leastGrace = 5 * time.Second

// Beat says that the database has answered a heartbeat, and how long it is to
// the next one.
func (s *Standing) Beat(interval time.Duration) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beat, s.interval, s.why = time.Now(), interval, ""
}

// Missed says why the database has not answered: a clause such as "the database
// cannot be reached", shown to everybody.
func (s *Standing) Missed(why string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = why
}

// Drains says that nothing more is claimed.
func (s *Standing) Drains() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
}

// Readiness is the answer to whether an agent takes work.
type Readiness struct {
	// Reason says why not; "" when it does.
	Reason string
	// Beat is when the database last answered a heartbeat; zero: never.
	Beat time.Time
}

// Ready returns how the agent stands now. One that drains is not ready, for it
// takes no work: its orchestrator counts it as gone already, and for people and
// dashboards it is the truth.
func (s *Standing) Ready() Readiness {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := Readiness{Beat: s.beat}
	ago := time.Since(s.beat)
	switch {
	case s.draining:
		r.Reason = "it drains: nothing more is claimed, and it ends when what runs has ended"
	case s.beat.IsZero():
		r.Reason = notRegistered
		if s.why != notRegistered {
			r.Reason += ": " + s.why
		}
	case ago > max(missable*s.interval, leastGrace):
		r.Reason = fmt.Sprintf("the last heartbeat that the database answered was %s ago", ago.Round(time.Second))
		if s.why != "" {
			r.Reason += ": " + s.why
		}
	}
	return r
}
