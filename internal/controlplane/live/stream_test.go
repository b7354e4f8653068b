package live

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/provision"
)

// answer tells when it is touched after its handler has returned: net/http has
// given it to somebody else by then, and HTTP/2's panics.
type answer struct {
	*httptest.ResponseRecorder
	over, late atomic.Bool
}

func (a *answer) SetWriteDeadline(time.Time) error {
	if a.over.Load() {
		a.late.Store(true)
	}
	return nil
}

func idleHub(limits Limits) *Hub { return NewHub(nil, slog.New(slog.DiscardHandler), limits) }

func TestEndingHubTouchesNoAnswerThatIsOver(t *testing.T) {
	t.Parallel()
	for range 300 {
		h := idleHub(Limits{})
		a := &answer{ResponseRecorder: httptest.NewRecorder()}
		s, done := h.begin(a, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		h.stop()
		<-s.ctx.Done()
		done()
		a.over.Store(true)
		synced := make(chan struct{})
		context.AfterFunc(h.ctx, func() { close(synced) })
		<-synced
		s.mu.Lock()   // whoever ends it holds this
		s.mu.Unlock() //nolint:staticcheck // only to wait
		if a.late.Load() {
			t.Fatal("an answer was touched after its handler had returned")
		}
	}
}

// A feed may be stuck between two pages, with the database away: its viewers
// wait, and do not turn in a circle.
func TestViewerWaitsForAFeedThatReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := idleHub(Limits{})
		s, done := h.begin(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		defer done()
		defer h.stop()
		l := &follow{stream: s, told: 1}
		changed, returned := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := l.tell(view{seq: 5, known: true, version: 1, sight: store.Sight{Status: provision.Processing, LastSeq: 10}, changed: changed})
			returned <- err
		}()
		synctest.Wait()
		select {
		case <-returned:
			t.Fatal("tell returned with nothing sent and nothing new")
		default:
		}
		close(changed)
		if err := <-returned; err != nil {
			t.Errorf("when there is more: %v, want to go on", err)
		}
	})
}

// What is watched counts, however few streams name it.
func TestNamingManyProvisionsCounts(t *testing.T) {
	t.Parallel()
	h, person := idleHub(Limits{PerPerson: 60}), uuid.New()
	if err := h.enter(person, 50); err != nil {
		t.Fatal(err)
	}
	if refused, ok := errors.AsType[*store.RefusedError](h.enter(person, 50)); !ok || refused.Reason != "too_many_streams" {
		t.Errorf("50 more = %v, want too many", refused)
	}
	h.exit(person, 50)
	if err := h.enter(person, 50); err != nil {
		t.Errorf("when the first are closed: %v", err)
	}
}

// Anybody who reaches the database can notify, of as much as they like: pages do
// not fetch themselves each time.
func TestFloodOfHintsIsToldSparingly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var h hints
		h.join(&hintViewer{})
		told := 0
		for range 20 { // 10 s
			for range 2 * hintIDs {
				h.add(uuid.New())
			}
			if _, all, _ := h.take(); all {
				told++
			}
			time.Sleep(hintEvery)
		}
		if told < 1 || told > 3 {
			t.Errorf("told %d times within 10 s that anything may have changed, want about each %s", told, pollHints)
		}
	})
}

// While the database is away, a person's many streams do not wait for it in turn.
func TestDeadDatabaseIsAskedOnceForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		p := pass{failed: away, failedAt: time.Now()}
		if err := p.check(t.Context(), nil, uuid.New(), time.Minute); !errors.Is(err, away) { // nil would panic
			t.Errorf("check = %v, want what was found a moment ago", err)
		}
	})
}

func TestWindowsShrinkWhenMoreIsWatched(t *testing.T) {
	t.Parallel()
	var w window
	for seq := range int64(100) {
		w.add(frame{seq + 1, make([]byte, 1000)})
	}
	w.trim(100_000)
	if len(w.frames) != 100 {
		t.Errorf("%d frames, want all", len(w.frames))
	}
	w.trim(10_000)
	if _, from, within := w.after(80, nil, 1); w.bytes > 10_000 || within || from != 90 {
		t.Errorf("%d bytes from %d, want 10000 at most, from 90", w.bytes, from)
	}
}
