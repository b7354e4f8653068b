package health

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestALoopIsStuckWhenItDoesNotTurnAsItSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		loops := NewLoops(time.Minute)
		poller, heart := loops.Begin("poller"), loops.Begin("heartbeat")
		wantStuck := func(want ...Stuck) {
			t.Helper()
			if got := loops.Stuck(); !slices.Equal(got, want) {
				t.Errorf("Stuck() = %v, want %v", got, want)
			}
		}
		wantStuck()
		time.Sleep(time.Minute)
		wantStuck() // either may be late by that
		time.Sleep(time.Second)
		wantStuck(Stuck{"heartbeat", 61 * time.Second}, Stuck{"poller", 61 * time.Second})

		poller.Rests()
		heart.Turns(10 * time.Minute)
		time.Sleep(11 * time.Minute)
		wantStuck()
		time.Sleep(time.Second)
		wantStuck(Stuck{"heartbeat", 11*time.Minute + time.Second})
		time.Sleep(24 * time.Hour) // all slots are busy
		poller.Turns(0)
		heart.End()
		wantStuck()
		if got := loops.Turning(); !slices.Equal(got, []string{"poller"}) {
			t.Errorf("Turning() = %q, want the poller alone: the other is over", got)
		}
	})
}

// An agent that nobody asks has none of this.
func TestNobodyAsks(t *testing.T) {
	t.Parallel()
	var loops *Loops
	loop := loops.Begin("poller")
	loop.Turns(time.Second)
	loop.Rests()
	loop.End()
	var standing *Standing
	standing.Beat(time.Second)
	standing.Missed("x")
	standing.Drains()
}

func TestReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewStanding()
		want := func(reason string) {
			t.Helper()
			if got := s.Ready(); got.Reason != reason {
				t.Errorf("Ready() = %q, want %q", got.Reason, reason)
			}
		}
		want("it has not registered with the database yet")
		s.Missed("the database cannot be reached")
		want("it has not registered with the database yet: the database cannot be reached")
		s.Beat(10 * time.Second)
		want("")
		s.Missed("the database cannot be reached") // once is nothing
		want("")
		time.Sleep(30 * time.Second)
		want("")
		time.Sleep(time.Second)
		want("the last heartbeat that the database answered was 31s ago: the database cannot be reached")
		s.Beat(10 * time.Second)
		time.Sleep(31 * time.Second)
		want("the last heartbeat that the database answered was 31s ago")
		s.Beat(100 * time.Millisecond)
		time.Sleep(leastGrace)
		want("")
		time.Sleep(time.Second)
		want("the last heartbeat that the database answered was 6s ago")
		s.Beat(10 * time.Second)
		s.Drains()
		want("it drains: nothing more is claimed, and it ends when what runs has ended")
	})
}
