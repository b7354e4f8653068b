package agent

import (
	"sync"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/job"
)

// locks are one lock per workspace: who has it may use the work directory. The
// zero value has none taken.
type locks struct {
	mu   sync.Mutex
	held map[uuid.UUID]*lock
}

// lock is one that is taken.
type lock struct {
	over chan struct{} // closed when it is free again, or abandoned
	// abandoned: it will not be free in this boot. Whoever has it has given up
	// waiting for a process that may live.
	abandoned bool
}

// take waits until the workspace is free and returns what frees it again. It
// returns the reason instead when the run is to stop before; a workspace that
// is never to be free is a reason too.
func (l *locks) take(workspace uuid.UUID, stops <-chan job.StopReason) (release func(), stopped job.StopReason) {
	for {
		release, taken := l.tryTake(workspace)
		if release != nil {
			return release, ""
		}
		select {
		case <-taken.over:
			if taken.abandoned {
				return nil, job.StopDrained
			}
		case reason := <-stops:
			return nil, reason
		}
	}
}

// tryTake takes the workspace if it is free, and returns who has it if not.
func (l *locks) tryTake(workspace uuid.UUID) (release func(), taken *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if taken := l.held[workspace]; taken != nil {
		return nil, taken
	}
	if l.held == nil {
		l.held = map[uuid.UUID]*lock{}
	}
	mine := &lock{over: make(chan struct{})}
	l.held[workspace] = mine
	return func() {
		l.mu.Lock()
		delete(l.held, workspace)
		l.mu.Unlock()
		close(mine.over)
	}, nil
}

// taken reports whether somebody has the workspace.
func (l *locks) taken(workspace uuid.UUID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[workspace] != nil
}

// abandon says of a workspace that is taken that it will not be free.
func (l *locks) abandon(workspace uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if taken := l.held[workspace]; taken != nil && !taken.abandoned {
		taken.abandoned = true
		close(taken.over)
	}
}
