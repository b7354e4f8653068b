package live_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/live"
	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// Whoever comes when, and goes on from where, while rows arrive, a session that
// listens is killed, and the window is far too small: each sees each row once.
func TestEveryViewerSeesEachRowOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live.Limits{Window: 2 << 10})
	const rows, viewers = 300, 50
	patience.Await(t, "the hub hears", func() bool { return !w.hub.Deaf() })
	var all sync.WaitGroup
	for n := range viewers {
		from := int64(n % 7 * 9)
		r := w.open(t, "/log", fmt.Sprint("after=", from), w.viewer)
		all.Go(func() {
			seqs, end, ok := r.until("end")
			if err := follows(seqs, from, rows); err != nil || !ok {
				t.Errorf("viewer %d, from %d: %v (ended by %+v), want all rows and an end", n, from, err, end)
			}
		})
		w.say(t, 3)
		if n%5 == 0 {
			w.archive(t)
		}
		if n == viewers/2 {
			w.listeners(t, true)
		}
	}
	w.say(t, rows-3*viewers)
	w.end(t)
	all.Wait()
	patience.Await(t, "one session listens again", func() bool { return w.listeners(t, false) == 1 && !w.hub.Deaf() })
	if _, bytes := w.hub.Open(); bytes > 2<<10 {
		t.Errorf("the window holds %d bytes, want %d at most", bytes, 2<<10)
	}
}

// A reader that comes back goes on behind what it has, wherever that was.
func TestFollowingGoesOnAfterEveryRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live.Limits{})
	const rows = 40
	w.say(t, rows)
	w.end(t)
	for _, what := range []string{"rows", "archived"} {
		if what == "archived" {
			w.archive(t)
		}
		for after := range int64(rows + 1) {
			r := w.open(t, "/log", fmt.Sprint("after=", after), w.viewer)
			seqs, end, ok := r.until("end")
			if err := follows(seqs, after, rows); err != nil || !ok || end.data != `{"status":"CANCELLED","last_seq":40}` {
				t.Errorf("%s, after %d: %v, %+v, want the rest and the end", what, after, err, end)
			}
		}
	}
	w.Exec(t, "DELETE FROM public.provision_log_archives WHERE provision_id = $1", w.provision)
	if seqs, _, ok := w.open(t, "/log", "", w.viewer).until("end"); !ok || len(seqs) != 0 {
		t.Errorf("of a log that was removed come rows %v, want the end", seqs)
	}
	if r := w.open(t, "/log", "again&after=40", w.viewer); r.response.StatusCode != http.StatusNoContent {
		t.Errorf("coming back after the end = %s, want 204, or it would come back for ever", r.response.Status)
	}
	if r := w.open(t, "/log", "after=40", uuid.New()); r.response.StatusCode != http.StatusNotFound {
		t.Errorf("a stranger = %s, want 404", r.response.Status)
	}
}

// One that takes nothing costs a little and is cut off; others see all meanwhile.
func TestSlowViewerHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live.Limits{Window: 100 << 10}, func(h *live.Hub) { h.Hurry(time.Minute, time.Minute, 3*time.Second) })
	const rows = 60
	slow := w.open(t, "/log", "", w.viewer)
	w.fill(t, rows, 60_000) // more than sockets hold
	quick := w.open(t, "/log", fmt.Sprint("after=", rows-20), w.viewer)
	read := make(chan error, 1)
	go func() {
		seqs, end, ok := quick.until("end")
		if err := follows(seqs, rows-20, rows); err != nil || !ok {
			read <- fmt.Errorf("%w (ended by %+v)", err, end)
		}
		close(read)
	}()
	patience.Await(t, "the slow one is cut off", func() bool {
		streams, bytes := w.hub.Open()
		if bytes > 200<<10 {
			t.Errorf("the window holds %d bytes", bytes)
		}
		return streams == 1
	})
	w.end(t)
	if err := <-read; err != nil {
		t.Errorf("a quick reader beside it got %v, want the last rows", err)
	}
	seqs, _, _ := slow.until("end")
	if len(seqs) == 0 || len(seqs) == rows {
		t.Fatalf("the slow one got %d rows, want some", len(seqs))
	}
	for ended := false; !ended; { // it may be too slow again
		again := w.open(t, "/log", fmt.Sprint("again&after=", seqs[len(seqs)-1]), w.viewer)
		var rest []int64
		rest, _, ended = again.until("end")
		seqs = append(seqs, rest...)
	}
	if err := follows(seqs, 0, rows); err != nil {
		t.Errorf("when it has come back it has %v", err)
	}
}

// Access is looked at again: who loses it hears nothing more.
func TestStreamEndsWithAccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live.Limits{}, func(h *live.Hub) { h.Hurry(50*time.Millisecond, 20*time.Millisecond, time.Minute) })
	leaving, staying := w.open(t, "/log", "", w.viewer), uuid.New()
	w.Exec(t, "INSERT INTO public.org_members (org_id, user_id, role) VALUES ($1, $2, 'viewer')", w.Org, staying)
	other := w.open(t, "/log", "", staying)
	w.say(t, 1)
	if _, _, ok := leaving.until("status"); !ok {
		t.Fatal("no status")
	}
	w.Exec(t, "DELETE FROM public.org_members WHERE user_id = $1", w.viewer)
	if _, gone, ok := leaving.until("gone"); !ok || !strings.Contains(gone.data, "provision_not_found") {
		t.Errorf("after losing access: %+v, want a clear end", gone)
	}
	if m, more := leaving.next(); more {
		t.Errorf("behind that came %+v, want the end of the stream", m)
	}
	w.end(t)
	if _, _, ok := other.until("end"); !ok {
		t.Error("who still may see it was cut off as well")
	}
}

// A server's own time-outs do not end a stream; its stop does, at once.
func TestStreamOutlivesTimeoutsAndEndsWithTheHub(t *testing.T) {
	t.Parallel()
	const limit = 3 * time.Second
	w := newWorld(t, live.Limits{PerPerson: 2}, func(h *live.Hub) { h.Hurry(time.Minute, limit/2, time.Minute) })
	usual, limited := w.server, httptest.NewUnstartedServer(w.server.Config.Handler)
	limited.Config.ReadTimeout, limited.Config.WriteTimeout = limit, limit
	limited.Start()
	t.Cleanup(limited.Close)
	w.server = limited
	r := w.open(t, "/log", "", w.viewer)
	w.server = usual
	if kind := r.response.Header.Get("Content-Type"); kind != "text/event-stream" || r.response.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("the header is %v, want that of an event stream that proxies pass on", r.response.Header)
	}
	for heard := 0; heard < 3; {
		m, ok := r.next()
		if !ok {
			t.Fatal("the stream ended by itself")
		}
		if m.comment == "keep-alive" {
			heard++
		}
	}
	everything := w.open(t, "/live", "", w.viewer)
	if more := w.open(t, "/log", "", w.viewer); more.response.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a third stream = %s, want 429", more.response.Status)
	}
	began := time.Now()
	w.stop()
	for _, r := range []*reader{r, everything} {
		for ok := true; ok; {
			_, ok = r.next()
		}
	}
	if took := time.Since(began); took > 30*time.Second { // milliseconds; by themselves they would go on for minutes
		t.Errorf("the streams ended %s after the hub was told to, want it at once", took)
	}
	if late := w.open(t, "/log", "", w.viewer); late.response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a stream of a hub that has ended = %s, want 503", late.response.Status)
	}
}

// What an agent that was lost may still say is waited for, and not for ever.
func TestLostRunsEndWhenTheirLinesAreTakenNoMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live.Limits{})
	w.say(t, 1)
	w.lose(t)
	r := w.open(t, "/log", "", w.viewer)
	if _, m, ok := r.until("status"); !ok || !strings.Contains(m.data, `"unsettled":true`) {
		t.Fatalf("the status is %+v, want one that says that more may come", m)
	}
	w.Exec(t, "UPDATE tendril.claims SET ended_at = now() - interval '25 hours' WHERE provision_id = $1", w.provision)
	if _, _, ok := r.until("end"); !ok {
		t.Error("a day later the stream goes on")
	}
}

// A run is told to have ended after its last line, also where the end is not for
// good: while its agent is lost, or somebody must approve.
func TestEndComesAfterTheLastLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live.Limits{})
	const rows = 5
	first := w.open(t, "/log", "", w.viewer)
	if _, m, ok := first.until("status"); !ok || !strings.Contains(m.data, "QUEUED") {
		t.Fatalf("the status is %+v, want QUEUED", m)
	}
	w.fill(t, rows, 60_000) // more than is sent at once
	w.lose(t)
	untilLost := func(r *reader) {
		var seen []int64
		for {
			seqs, m, ok := r.until("status")
			seen = append(seen, seqs...)
			if ok && !strings.Contains(m.data, "agent_lost") {
				continue
			}
			if err := follows(seen, 0, rows); err != nil || !ok {
				t.Errorf("before the end (%.60s) come rows %v, want all %d", m.data, seen, rows)
			}
			return
		}
	}
	untilLost(first)
	untilLost(w.open(t, "/log", "", w.viewer)) // served from memory, and told how it stands at once
}

// lose ends the run as one whose agent is not heard of any more.
func (w *world) lose(t *testing.T) {
	t.Helper()
	w.Exec(t, `INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, state, lease_until, ended_at)
		SELECT gen_random_uuid(), id, workspace_id, cluster_id, gen_random_uuid(), gen_random_uuid(), 'h', 'lost', now(), now() FROM public.provisions WHERE id = $1`, w.provision)
	w.Exec(t, "UPDATE public.provisions SET status = 'PROCESSING' WHERE id = $1", w.provision)
	w.Exec(t, "SELECT tendril.end_provision($1, 'FAILED', 'agent_lost', 'x')", w.provision)
}
