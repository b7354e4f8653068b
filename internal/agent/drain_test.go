package agent

import (
	"testing"
	"time"
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
