package live_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/controlplane/live"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/pgtest/pgbouncer"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// Of what happens, each hears what they may see.
func TestHints(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live.Limits{})
	other, stranger := w.queue(t), uuid.New()
	w.Exec(t, "WITH o AS (INSERT INTO public.orgs (name) VALUES ('elsewhere') RETURNING id) INSERT INTO public.org_members SELECT id, $1, 'admin' FROM o", stranger)
	patience.Await(t, "the hub hears", func() bool { return !w.hub.Deaf() })
	everything := w.open(t, "/live", "", w.viewer)
	elsewhere := w.open(t, "/live", "", stranger)
	one := w.open(t, "/live", "provision="+w.provision.String(), w.viewer)
	if r := w.open(t, "/live", "provision="+w.provision.String(), stranger); r.response.StatusCode != http.StatusNotFound {
		t.Errorf("a stranger who names a provision = %s, want 404", r.response.Status)
	}
	for _, r := range []*reader{everything, elsewhere, one} { // the header has come: it is known
		if r.response.StatusCode != http.StatusOK {
			t.Fatalf("a stream of hints = %s", r.response.Status)
		}
	}
	w.Exec(t, "SELECT tendril.system_line($1, 'x')", other)
	w.say(t, 1)
	hear := func(r *reader, id uuid.UUID) bool {
		for {
			m, ok := r.next()
			if !ok || strings.Contains(m.data, id.String()) {
				return ok
			}
			if r == one && m.event == "changed" && !strings.Contains(m.data, "null") {
				t.Errorf("who named one provision hears %s", m.data)
			}
		}
	}
	if !hear(one, w.provision) || !hear(everything, w.provision) {
		t.Error("nobody hears of a new row")
	}
	// What the stranger hears next is their own.
	var theirs uuid.UUID
	if err := w.Conn.QueryRow(t.Context(), `WITH c AS (INSERT INTO public.clusters (org_id, name) SELECT org_id, 'theirs' FROM public.org_members WHERE user_id = $1 RETURNING id)
		SELECT id FROM c`, stranger).Scan(&theirs); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, "SELECT pg_notify('tendril_work', $1::text)", theirs)
	for {
		m, ok := elsewhere.next()
		if !ok {
			t.Fatal("the stranger's stream ended")
		}
		if strings.Contains(m.data, w.provision.String()) || strings.Contains(m.data, other.String()) {
			t.Fatalf("a stranger hears %s", m.data)
		}
		if strings.Contains(m.data, theirs.String()) {
			return
		}
	}
}

// While somebody follows a run, the database says so to its agent.
func TestFollowedRunsAreWatched(t *testing.T) {
	t.Parallel()
	w := newWorld(t, live.Limits{})
	other := w.queue(t)
	if r := w.open(t, "/log", "", w.viewer); r.response.StatusCode != http.StatusOK {
		t.Fatalf("a stream = %s", r.response.Status)
	}
	watched := func() string {
		return w.Text(t, "SELECT coalesce(string_agg(provision_id::text, ' '), '') FROM tendril.watched WHERE until > now()")
	}
	patience.Await(t, "the run to be watched", func() bool { return watched() != "" })
	if got := watched(); got != w.provision.String() {
		t.Errorf("watched are %s, want %s alone and not %s", got, w.provision, other)
	}
}

// Behind a pooler in transaction mode LISTEN comes to nothing: it is noticed,
// and everything arrives all the same.
func TestFollowingThroughAPooler(t *testing.T) {
	t.Parallel()
	q := queuetest.NewWorld(t)
	w := worldOf(t, q, pgbouncer.Start(t, q.URL, nil).URL(t, q.URL), live.Limits{})
	log, hints := w.open(t, "/log", "", w.viewer), w.open(t, "/live", "", w.viewer)
	if _, _, ok := log.until("status"); !ok {
		t.Fatal("no status")
	}
	w.say(t, 10)
	w.end(t)
	if seqs, _, ok := log.until("end"); !ok || follows(seqs, 0, 10) != nil {
		t.Errorf("rows %v, want 10 and the end", seqs)
	}
	if _, m, ok := hints.until("changed"); !ok || !strings.Contains(m.data, "null") {
		t.Errorf("the hint is %+v, want one that anything may have changed", m)
	}
	if !w.hub.Deaf() {
		t.Error("the hub takes itself for one that hears")
	}
}

// A database that is restarted costs no viewer a row, nor its stream.
func TestDatabaseRestarts(t *testing.T) {
	t.Parallel()
	own := pgtest.OwnServer(t)
	if _, err := tendrilsql.Migrate(t.Context(), own.URL); err != nil {
		t.Fatal(err)
	}
	w := worldOf(t, queuetest.Populate(t, own.URL), "", live.Limits{})
	patience.Await(t, "the hub hears", func() bool { return !w.hub.Deaf() })
	log := w.open(t, "/log", "", w.viewer)
	w.say(t, 5)
	own.Stop(t)
	patience.Await(t, "the hub notices", w.hub.Deaf)
	own.Start(t)
	conn, err := pgx.Connect(t.Context(), own.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	w.Conn = conn
	w.say(t, 5)
	w.end(t)
	if seqs, _, ok := log.until("end"); !ok || follows(seqs, 0, 10) != nil {
		t.Errorf("rows %v, want 10, each once, and the end", seqs)
	}
	patience.Await(t, "the hub hears again", func() bool { return !w.hub.Deaf() })
}
