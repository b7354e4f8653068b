package agent

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
)

// stoppable is a run that does nothing but note why it is stopped.
func stoppable() *run {
	return &run{log: slog.New(slog.DiscardHandler), stops: make(chan job.StopReason, 1), detaching: make(chan struct{}), ask: func() {}}
}

func TestInflight(t *testing.T) {
	t.Parallel()
	var claims inflight
	left, mine := uuid.New(), uuid.New()
	running, late := stoppable(), stoppable()
	claims.hold(left, nil)
	claims.hold(mine, running)
	if got := claims.claims(); len(got) != 2 || !slices.Contains(got, left) || !slices.Contains(got, mine) {
		t.Errorf("claims() = %v, want both", got)
	}
	if got := claims.leftovers(); !slices.Equal(got, []uuid.UUID{left}) {
		t.Errorf("leftovers() = %v, want that of an earlier boot", got)
	}
	if claims.run(mine) != running || claims.run(left) != nil || claims.run(uuid.New()) != nil {
		t.Error("run() does not find the one run there is")
	}
	// Also what is claimed while all are stopped is.
	claims.stopAll(job.StopDrained)
	claims.hold(uuid.New(), late)
	if running.stopReason() != job.StopDrained || late.stopReason() != job.StopDrained {
		t.Errorf("stopped as %q and %q, want both drained", running.stopReason(), late.stopReason())
	}
	claims.release(left)
	claims.release(left)
	if got := claims.leftovers(); len(got) != 0 {
		t.Errorf("leftovers() = %v, want none", got)
	}
}
