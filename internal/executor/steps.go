package executor

import (
	"maps"
	"slices"
	"time"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/templatefile"
)

// steps tells which step each machine is in, or the run itself, whose address is "". One that
// begins ends the one before, and each begins and ends once.
type steps struct {
	to    reporter
	now   map[string]provision.Event // what has begun, by address
	ended map[[2]string]bool         // by address and id
}

func newSteps(to reporter) *steps {
	return &steps{to, map[string]provision.Event{}, map[[2]string]bool{}}
}

// declare tells which steps are to come, for each machine alike.
func (s *steps) declare(declared []templatefile.Step) {
	for _, step := range declared {
		s.to.step(provision.Event{Kind: "step_declared", Action: step.ID, Message: step.Label, At: time.Now()})
	}
}

// reach tells that a step is so much done, in percent. At 100 it ends.
func (s *steps) reach(address, id, label string, percent int) {
	if s.ended[[2]string{address, id}] {
		return
	}
	now, known := s.now[address]
	if known && now.Action != id {
		s.end(address, true)
	}
	if !known || now.Action != id {
		now = provision.Event{Kind: "step_started", Address: address, Action: id, Message: label, At: time.Now()}
		s.now[address] = now
		s.to.step(now)
	}
	s.to.stepPercent(address, percent)
	if percent >= 100 {
		s.end(address, true)
	}
}

// end tells that the step that something is in has ended, well or not.
func (s *steps) end(address string, well bool) {
	now, known := s.now[address]
	if !known {
		return
	}
	delete(s.now, address)
	s.ended[[2]string{address, now.Action}] = true
	began := now.At
	now.At = time.Now()
	now.Seconds = now.At.Sub(began).Seconds()
	if now.Kind = "step_finished"; !well {
		now.Kind = "step_failed"
	}
	s.to.step(now)
}

// endAll ends what has not been ended.
func (s *steps) endAll(well bool) {
	for _, address := range slices.Sorted(maps.Keys(s.now)) {
		s.end(address, well)
	}
}
