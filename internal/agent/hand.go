package agent

import (
	"maps"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
)

// hand is what the agent has in hand: the claims whose leases it renews, from
// the moment it has them until all of theirs is delivered. The zero value is
// an empty hand.
type hand struct {
	mu sync.Mutex
	// nil: an earlier boot's, of which only the spool is left, or one that was
	// asked for and may be ours.
	runs map[uuid.UUID]*run
	over job.StopReason // set when all are stopped, also those that come late
}

func (h *hand) hold(claim uuid.UUID, r *run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs == nil {
		h.runs = map[uuid.UUID]*run{}
	}
	h.runs[claim] = r
	if r != nil && h.over != "" {
		r.stop(h.over)
	}
}

func (h *hand) release(claim uuid.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.runs, claim)
}

func (h *hand) claims() []uuid.UUID {
	return slices.Collect(maps.Keys(h.held()))
}

// held are the claims in hand, as they stand now, with their runs.
func (h *hand) held() map[uuid.UUID]*run {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.runs)
}

// leftovers are the claims of earlier boots that are still in hand.
func (h *hand) leftovers() (claims []uuid.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for claim, r := range h.runs {
		if r == nil {
			claims = append(claims, claim)
		}
	}
	return claims
}

// run returns the run of a claim, nil if there is none in this boot.
func (h *hand) run(claim uuid.UUID) *run {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runs[claim]
}

// stopAll asks every run to stop, and those to come.
func (h *hand) stopAll(reason job.StopReason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = reason
	for _, r := range h.runs {
		if r != nil {
			r.stop(reason)
		}
	}
}
