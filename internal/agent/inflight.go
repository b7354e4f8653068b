package agent

import (
	"maps"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
)

// inflight are the claims whose leases the agent renews, from the moment it has them
// until all of theirs is delivered. The zero value has none.
type inflight struct {
	mu sync.Mutex
	// nil: an earlier boot's, of which only the spool is left, or one that was
	// asked for and may be ours.
	runs map[uuid.UUID]*run
	over job.StopReason // set when all are stopped, also those that come late
	// detaching is set when all are to be set down that can be, also those that come late.
	detaching bool
}

func (i *inflight) hold(claim uuid.UUID, r *run) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.runs == nil {
		i.runs = map[uuid.UUID]*run{}
	}
	i.runs[claim] = r
	if r != nil && i.detaching {
		r.detach()
	}
	if r != nil && i.over != "" {
		r.stop(i.over)
	}
}

func (i *inflight) release(claim uuid.UUID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.runs, claim)
}

func (i *inflight) claims() []uuid.UUID {
	return slices.Collect(maps.Keys(i.held()))
}

// held are the claims, as they stand now, with their runs.
func (i *inflight) held() map[uuid.UUID]*run {
	i.mu.Lock()
	defer i.mu.Unlock()
	return maps.Clone(i.runs)
}

// leftovers are the claims of earlier boots that are still in flight.
func (i *inflight) leftovers() (claims []uuid.UUID) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for claim, r := range i.runs {
		if r == nil {
			claims = append(claims, claim)
		}
	}
	return claims
}

// run returns the run of a claim, nil if there is none in this boot.
func (i *inflight) run(claim uuid.UUID) *run {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.runs[claim]
}

// detachAll asks every run to be set down if its work continues by itself, and those to come.
func (i *inflight) detachAll() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.detaching = true
	for _, r := range i.runs {
		if r != nil {
			r.detach()
		}
	}
}

// stopAll asks every run to stop, and those to come.
func (i *inflight) stopAll(reason job.StopReason) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = reason
	for _, r := range i.runs {
		if r != nil {
			r.stop(reason)
		}
	}
}
