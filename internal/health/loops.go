package health

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Loops are the loops of an agent, each of which says when it turns. A nil Loops
// is for an agent that nobody asks.
type Loops struct {
	margin time.Duration

	mu    sync.Mutex
	loops map[*Loop]struct{}
}

// Margin is how much later than it said a loop may turn before it counts as
// stuck: longer than any call to the database takes, for the cure is a restart.
const Margin = 2 * time.Minute

// NewLoops returns Loops of which each may be late by margin.
func NewLoops(margin time.Duration) *Loops {
	return &Loops{margin: margin, loops: map[*Loop]struct{}{}}
}

// Loop is one loop. Its methods may be called by several goroutines, and on nil.
type Loop struct {
	all  *Loops
	name string

	mu     sync.Mutex
	turned time.Time
	within time.Duration // the next turn is to come; 0: whenever it pleases
}

// Begin adds a loop, which turns now for the first time and at once again. The
// name is shown to everybody.
func (l *Loops) Begin(name string) *Loop {
	if l == nil {
		return nil
	}
	loop := &Loop{all: l, name: name}
	loop.Turns(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loops[loop] = struct{}{}
	return loop
}

// Turns says that the loop turns now, and waits so long, at most, before it does
// so again. What it has to do meanwhile the margin is for.
func (l *Loop) Turns(waits time.Duration) {
	if l != nil {
		l.stamp(waits + l.all.margin)
	}
}

// Rests says that the loop waits for what may never come, such as a free slot:
// it is not stuck, however long that is.
func (l *Loop) Rests() {
	if l != nil {
		l.stamp(0)
	}
}

func (l *Loop) stamp(within time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turned, l.within = time.Now(), within
}

// End says that the loop is over, as it is to be.
func (l *Loop) End() {
	if l == nil {
		return
	}
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	delete(l.all.loops, l)
}

// Stuck is a loop that should have turned.
type Stuck struct {
	Loop string
	// Since is how long ago it last did.
	Since time.Duration
}

// Stuck returns the loops that are stuck now, in the order of their names.
func (l *Loops) Stuck() []Stuck {
	l.mu.Lock()
	defer l.mu.Unlock()
	var stuck []Stuck
	for loop := range l.loops {
		loop.mu.Lock()
		if since := time.Since(loop.turned); loop.within > 0 && since > loop.within {
			stuck = append(stuck, Stuck{loop.name, since})
		}
		loop.mu.Unlock()
	}
	slices.SortFunc(stuck, func(a, b Stuck) int { return strings.Compare(a.Loop, b.Loop) })
	return stuck
}

// Turning returns the names of all loops, in order.
func (l *Loops) Turning() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := []string{}
	for loop := range l.loops {
		names = append(names, loop.name)
	}
	slices.Sort(names)
	return names
}
