package live

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/person"
	"github.com/tendril-run/tendril/internal/controlplane/store"
)

const (
	// hintEvery is how often a viewer is told at most.
	hintEvery = 500 * time.Millisecond
	// hintIDs bounds what is remembered until then: beyond it, anything may have
	// changed. Notifications can be forged, and as many as one likes.
	hintIDs = 500
	// pollHints is how often pages that watch everything are told to look where
	// nothing is heard.
	pollHints = 5 * time.Second
)

// hints collects what has changed and passes it to those who watch everything
// that they may see.
type hints struct {
	mu      sync.Mutex
	pending map[uuid.UUID]struct{}
	all     bool // anything may have changed
	// flooded is true when more came than was remembered, toldAt when that was
	// said last: whoever can notify could have all pages fetched without end.
	flooded bool
	toldAt  time.Time
	viewers map[*hintViewer]struct{}
}

// hintViewer is told of what changes in some organisations.
type hintViewer struct {
	only []uuid.UUID // if there are any, these alone

	mu   sync.Mutex
	orgs []uuid.UUID
	due  []uuid.UUID // at most hintIDs
	all  bool
	wake chan struct{}
}

func (h *hints) add(id uuid.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case len(h.viewers) == 0:
	case len(h.pending) >= hintIDs:
		h.flooded = true
	default:
		h.pending[id] = struct{}{}
	}
}

func (h *hints) addAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = len(h.viewers) > 0
}

func (h *hints) join(v *hintViewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.viewers == nil {
		h.viewers, h.pending = map[*hintViewer]struct{}{}, map[uuid.UUID]struct{}{}
	}
	h.viewers[v] = struct{}{}
}

func (h *hints) leave(v *hintViewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.viewers, v)
}

// take returns what has come since the last time, and for whom.
func (h *hints) take() (ids []uuid.UUID, all bool, viewers []*hintViewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.pending {
		ids = append(ids, id)
	}
	clear(h.pending)
	all, h.all = h.all, false
	if h.flooded && time.Since(h.toldAt) >= pollHints {
		all, h.flooded, h.toldAt = true, false, time.Now()
	}
	for v := range h.viewers {
		viewers = append(viewers, v)
	}
	return ids, all, viewers
}

// sendHints hands out what has come, twice a second.
func (h *Hub) sendHints(ctx context.Context) {
	tick := time.NewTicker(hintEvery)
	defer tick.Stop()
	var polled time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if h.deaf.Load() { // what is missed is missed by the clock then
			if time.Since(polled) < pollHints {
				continue
			}
			polled = time.Now()
			h.hints.addAll()
		}
		ids, all, viewers := h.hints.take()
		if len(viewers) == 0 || len(ids) == 0 && !all {
			continue
		}
		owners, err := h.database.Owners(ctx, ids)
		all = all || err != nil
		for _, v := range viewers {
			v.tell(owners, all)
		}
	}
}

func (v *hintViewer) tell(owners map[uuid.UUID]uuid.UUID, all bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id, org := range owners {
		if slices.Contains(v.orgs, org) && (len(v.only) == 0 || slices.Contains(v.only, id)) && !slices.Contains(v.due, id) {
			v.due = append(v.due, id)
		}
	}
	if v.all = v.all || all || len(v.due) > hintIDs; v.all {
		v.due = nil
	}
	if v.all || len(v.due) > 0 {
		select {
		case v.wake <- struct{}{}:
		default:
		}
	}
}

// take returns what the viewer is to be told.
func (v *hintViewer) take() (frames [][]byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all {
		frames = append(frames, hintFrame(uuid.Nil))
	}
	for _, id := range v.due {
		frames = append(frames, hintFrame(id))
	}
	v.all, v.due = false, nil
	return frames
}

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
