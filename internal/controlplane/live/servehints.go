package live

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

// maxNamed is how many provisions one stream of hints may name.
const maxNamed = 50

// ServeHTTP answers /live: hints as an event stream, of the provisions that are
// named, else of all that the person may see.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, ok := person.From(r.Context())
	if !ok {
		http.Error(w, "nobody is signed in", http.StatusUnauthorized)
		return
	}
	var only []uuid.UUID
	for _, name := range r.URL.Query()["provision"] {
		id, err := uuid.Parse(name)
		if err != nil || len(only) == maxNamed {
			http.Error(w, "provision: must be the id of a provision, and be given "+strconv.Itoa(maxNamed)+" times at most", http.StatusUnprocessableEntity)
			return
		}
		only = append(only, id)
	}
	if err := h.serveHints(w, r, p.ID, only); err != nil {
		refuse(w, err)
	}
}

// refuse answers what no stream came of.
func refuse(w http.ResponseWriter, err error) {
	refused, ok := errors.AsType[*store.RefusedError](err)
	switch {
	case !ok:
		w.Header().Set("Retry-After", "5")
		http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
	default:
		if status := refused.Status(); status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "5")
		}
		http.Error(w, refused.Error(), refused.Status())
	}
}

func (h *Hub) serveHints(w http.ResponseWriter, r *http.Request, person uuid.UUID, only []uuid.UUID) error {
	count := max(1, len(only))
	if err := h.enter(person, count); err != nil {
		return err
	}
	defer h.exit(person, count)
	viewer := &hintViewer{only: only, wake: make(chan struct{}, 1)}
	mine := h.database.As(person)
	for _, id := range only {
		if err := mine.MaySee(r.Context(), id); err != nil {
			return err
		}
		// Its feed looks for what no notification tells of, and hints at it.
		f := h.watch(id)
		defer h.leave(f)
	}
	if err := viewer.findOrgs(r.Context(), mine); err != nil {
		return err
	}
	h.hints.join(viewer)
	defer h.hints.leave(viewer)
	s, done := h.begin(w, r)
	defer done()
	asked := time.Now()
	for frames := [][]byte{hello()}; ; frames = viewer.take() {
		if len(frames) > 0 && s.send(frames...) != nil || !s.pause(viewer.wake, time.After(h.timing.recheck)) {
			return nil
		}
		if time.Since(asked) >= h.timing.recheck {
			if err := viewer.findOrgs(s.ctx, mine); err == nil { // else the next time
				asked = time.Now()
			}
		}
	}
}

// findOrgs finds out what the viewer may hear of.
func (v *hintViewer) findOrgs(ctx context.Context, s *store.Store) error {
	orgs, err := s.Orgs(ctx)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.orgs = v.orgs[:0]
	for _, o := range orgs {
		v.orgs = append(v.orgs, o.ID)
	}
	return nil
}
