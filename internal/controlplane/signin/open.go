package signin

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
)

// DefaultLookEvery is how often it is asked whether what long requests were let in
// by still counts. Short ones are over before.
const DefaultLookEvery = 5 * time.Second

// opened are the requests under way, by the session or token that let them in:
// a stream goes on for hours, and must end when that ends.
type opened struct {
	mu       sync.Mutex
	requests map[uuid.UUID]map[*context.CancelFunc]struct{}
}

// add returns a context for a request, which ends when its credential does, and
// what is to be called when the request is over.
func (o *opened) add(ctx context.Context, credential uuid.UUID) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	key := &cancel
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.requests == nil {
		o.requests = map[uuid.UUID]map[*context.CancelFunc]struct{}{}
	}
	if o.requests[credential] == nil {
		o.requests[credential] = map[*context.CancelFunc]struct{}{}
	}
	o.requests[credential][key] = struct{}{}
	return ctx, func() {
		cancel()
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.requests[credential], key)
		if len(o.requests[credential]) == 0 {
			delete(o.requests, credential)
		}
	}
}

// credentials are those by which something is under way.
func (o *opened) credentials() []uuid.UUID {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make([]uuid.UUID, 0, len(o.requests))
	for credential := range o.requests {
		all = append(all, credential)
	}
	return all
}

// end ends the requests of a credential.
func (o *opened) end(credential uuid.UUID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for cancel := range o.requests[credential] {
		(*cancel)()
	}
}

// Run ends requests whose session or token has ended, until the context ends. While
// the database is away nobody is cut off: what they are told comes from there.
func (s *SignIn) Run(ctx context.Context) {
	tick := time.NewTicker(cmp.Or(s.LookEvery, DefaultLookEvery))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		under := s.opened.credentials()
		if len(under) == 0 {
			continue
		}
		ended, err := s.records.ended(ctx, under)
		if err != nil && ctx.Err() == nil {
			s.Log.Warn("it cannot be looked up which sessions have ended; trying again", "error", err)
		}
		for _, credential := range ended {
			s.opened.end(credential)
		}
	}
}
