package agent

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
)

func TestDrainLetsARunFinish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "apply", "touch running", "hold go", "print 1", "succeed")
	w.touched(t, "running")
	a.term(t)
	a.says(t, "nothing more is claimed")
	waiting := w.deploy(t, "dev", "succeed")
	w.release(t, "go")
	w.becomes(t, id, "SUCCESS")
	a.exits(t, 0)
	if got := w.Status(t, waiting); got != "QUEUED" {
		t.Errorf("what came during the drain is %s, want QUEUED", got)
	}
	w.wantNothingLeft(t)
}

// Every run is asked to detach at once; one that can't goes on to its end.
func TestDrainAsksToDetach(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "apply", "touch running", "hold go", "succeed")
	w.touched(t, "running")
	a.term(t)
	w.touched(t, "detaches")
	w.release(t, "go")
	w.becomes(t, id, "SUCCESS")
	a.exits(t, 0)
}

// What was claimed as the drain began is asked too.
func TestLateRunIsAskedToDetach(t *testing.T) {
	t.Parallel()
	early, late := stoppable(), stoppable()
	var i inflight
	i.hold(uuid.New(), early)
	i.detachAll()
	i.hold(uuid.New(), late)
	for name, r := range map[string]*run{"early": early, "late": late} {
		select {
		case <-r.detaching:
		default:
			t.Errorf("the %s run is not asked to detach", name)
		}
	}
}

func TestDrainTimeIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.Drain = 100 * time.Millisecond
	a := startAgent(t, s)
	id := w.deploy(t, "prod", "apply", "touch running", "hold never")
	w.touched(t, "running")
	a.stops(t)
	w.becomes(t, id, "FAILED/agent_drained")
	w.wantNothingLeft(t)
}

func TestSecondSignal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "apply", "touch running", "hold never")
	w.touched(t, "running")
	a.term(t)
	a.says(t, "draining")
	a.term(t)
	a.exits(t, 0)
	w.becomes(t, id, "FAILED/agent_drained")
}

func TestChildThatIgnoresStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.Grace, s.EndMargin = 50*time.Millisecond, 50*time.Millisecond
	a := startAgent(t, s)
	cancelled := w.deploy(t, "prod", "print 1", "touch running", "deaf")
	w.touched(t, "running")
	w.Exec(t, "SELECT public.cancel_provision($1)", cancelled)
	w.becomes(t, cancelled, "CANCELLED/cancelled")

	drained := w.deploy(t, "prod", "apply", "touch again", "deaf")
	w.touched(t, "again")
	a.term(t)
	a.says(t, "draining")
	a.term(t)
	a.exits(t, 0)
	w.becomes(t, drained, "FAILED/agent_drained")
}

func TestSignalBeforeAnythingWorks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.URL = "postgres://nobody@127.0.0.1:1/none"
	a := startAgent(t, s)
	a.says(t, "cannot register")
	a.stops(t)
}

func TestDrainEndsWhenAFailedStartCannotBeReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.NoChild, s.NoReports, s.LastDelivery = true, true, 100*time.Millisecond
	a := startAgent(t, s)
	w.deploy(t, "prod", "succeed")
	a.says(t, "cannot start")
	a.stops(t)
	a.says(t, "the run's end could not be reported")
}

func TestNextRunOfAWorkspaceDoesNotWaitForADelivery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	// The database has the first one's result, the agent does not know.
	s.LoseReports, s.LastDelivery = true, 100*time.Millisecond
	a := startAgent(t, s)
	w.becomes(t, w.deploy(t, "prod", "succeed"), "SUCCESS")
	second := w.deploy(t, "prod", "touch second", "succeed")
	w.touched(t, "second")
	w.becomes(t, second, "SUCCESS")
	a.stops(t)
	a.says(t, "the next start of this agent does it")
}

// drained is a drain of one run, whose child and delivery the test ends.
func drained(t *testing.T, now <-chan struct{}, stopDelivering func()) (d *drain, r *run) {
	t.Helper()
	r = stoppable()
	d = &drain{
		log: r.log, inflight: &inflight{}, children: &sync.WaitGroup{}, runs: &sync.WaitGroup{},
		timeout: time.Hour, now: now, lastDelivery: time.Minute, stopDelivering: stopDelivering,
	}
	d.inflight.hold(uuid.New(), r)
	d.children.Add(1)
	d.runs.Add(1)
	return d, r
}

func TestDrainStopsWhatRunsTooLong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ends, asked, want time.Duration
		reason            job.StopReason
	}{
		"the child ends by itself": {ends: time.Minute, want: time.Minute},
		"the time is over":         {want: time.Hour, reason: job.StopDrained},
		"asked again":              {asked: time.Second, want: time.Second, reason: job.StopDrained},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				now := make(chan struct{})
				d, r := drained(t, now, func() { t.Error("the delivery was stopped, though it was done in time") })
				if tc.asked > 0 {
					time.AfterFunc(tc.asked, func() { close(now) })
				}
				go func() { // the child
					if tc.ends > 0 {
						time.Sleep(tc.ends)
					} else {
						<-r.stops
					}
					d.children.Done()
					d.runs.Done()
				}()
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				began := time.Now()
				d.after(ctx, func(context.Context) {})
				if took := time.Since(began); took != tc.want || r.stopReason() != tc.reason {
					t.Errorf("after() took %v and stopped the run as %q, want %v and %q", took, r.stopReason(), tc.want, tc.reason)
				}
			})
		})
	}
}

// What is claimed last is drained as well, and a database that is away holds the agent
// up no longer than the last delivery may take.
func TestDrainWaitsForTheLastClaimAndDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d *drain
		d, _ = drained(t, nil, func() { d.runs.Done() })
		d.children.Done()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		d.after(ctx, func(context.Context) {
			time.Sleep(time.Second) // the answer to the last question
			d.children.Go(func() { time.Sleep(time.Second) })
		})
		if took, want := time.Since(began), 2*time.Second+d.lastDelivery; took != want {
			t.Errorf("after() took %v, want %v", took, want)
		}
	})
}
