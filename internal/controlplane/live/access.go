package live

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// passes are who may see which provision, as far as it is known: asked once for
// all of a person's streams.
type passes struct {
	mu    sync.Mutex
	known map[passKey]*pass
}

type passKey struct{ person, provision uuid.UUID }

// pass is what a person may see of one provision.
type pass struct {
	streams int // under the lock of passes

	mu       sync.Mutex // held while it is asked
	checked  time.Time
	refused  *store.RefusedError
	failed   error // at failedAt: the database did not say
	failedAt time.Time
}

// get returns a pass, which the caller puts back.
func (p *passes) get(key passKey) *pass {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[passKey]*pass{}
	}
	if p.known[key] == nil {
		p.known[key] = &pass{}
	}
	p.known[key].streams++
	return p.known[key]
}

func (p *passes) put(key passKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[key].streams--; p.known[key].streams == 0 {
		delete(p.known, key)
	}
}

// check asks the database, at most each recheck. The error is a
// *store.RefusedError when the person may not see it, and any other when that
// cannot be found out now.
func (p *pass) check(ctx context.Context, s *store.Store, provision uuid.UUID, recheck time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused == nil && time.Since(p.checked) < recheck {
		return nil
	}
	if p.failed != nil && time.Since(p.failedAt) < askAgain {
		return p.failed // or all of a person's streams wait for a dead database in turn
	}
	err := s.MaySee(ctx, provision)
	refused, ok := errors.AsType[*store.RefusedError](err)
	if p.refused = refused; err == nil || ok {
		p.checked = time.Now()
	}
	if ok {
		return refused
	}
	if p.failed = nil; ctx.Err() == nil { // else it is this stream that is over
		p.failed, p.failedAt = err, time.Now()
	}
	return err
}
