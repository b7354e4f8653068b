package chaos

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// The disk under the slots is full when the engine stores its state: the state is
// kept on another one, and stored by whoever runs the workspace next, who is the
// same agent until then. Nothing is made twice.
func TestDiskFullUnderAManagedState(t *testing.T) {
	t.Parallel()
	w := newWorks(site.New(t))
	identity := w.IdentityFile()
	a := w.agent("one", 1, "")
	a.ManageState(identity)
	a.Set("TENDRIL_RUN_DISK_WAIT", "1s")
	// An engine that is killed while it makes a resource leaves one in the state that
	// was not made: this one must get the time to end by itself.
	a.Set("TENDRIL_RUN_CANCEL_GRACE", patience.For(8*time.Second).String())
	spool := filepath.Join(a.Dir, "spool")
	smallDisk(t, spool, 8<<20)
	a.Start()
	for n := range times(1, 10) {
		m := w.many(t, fmt.Sprint("many", n), identity)
		stop := 1 + rand.N(40)
		// A small state would fit into the room that is set aside for the run's end.
		m.vars = map[string]any{"padding": 100}
		id := m.queue("apply", map[string]any{"stop": stop})
		m.awaitMade(stop)
		empty := fill(t, spool)
		m.goOn()
		if n%2 == 1 { // there is room again before it has given up
			m.AwaitLine(id, "could not be written to this agent's disk")
			empty()
		}
		got := w.AwaitEnd(id)
		empty()
		if want := map[bool]string{true: "FAILED/spool_failed", false: "FAILED/state_unsaved"}[n%2 == 1]; got != want {
			t.Errorf("the run whose state met a full disk = %s: %s, want %s", got, w.Message(id), want)
		}
		counted.add("faults: disk full while a managed state is stored", 1)
		if n%2 == 0 { // a plan stores what is kept
			if id := m.queue("plan", nil); w.AwaitEnd(id) != "SUCCESS" {
				t.Errorf("the next plan = %s: %s, want SUCCESS", w.Status(t, id), w.Message(id))
			}
		}
		m.finish("the disk was full")
	}
	a.Terminate()
	w.countLeftovers(a)
	w.countRows()
}

// A state of several parts is being stored when the database goes away, or the
// agent is killed: all of it is stored in the end, and nobody gets half of one.
func TestKilledBetweenPartsOfAState(t *testing.T) {
	t.Parallel()
	w, own := ownWorks(t, pgtest.Durable())
	identity := w.IdentityFile()
	a := w.agent("one", 1, "")
	a.ManageState(identity)
	// Long enough for a busy machine to look between two parts.
	w.Exec(t, `CREATE FUNCTION public.linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_catalog.pg_sleep(1); RETURN NEW; END $$`)
	a.Start()
	for n := range times(1, 10) {
		m := w.many(t, fmt.Sprint("many", n), identity)
		w.Exec(t, `CREATE TRIGGER linger BEFORE INSERT ON tendril.blob_parts FOR EACH ROW EXECUTE FUNCTION public.linger()`)
		id := m.queue("apply", map[string]any{"padding": 500}) // 32,000 bytes each, input and output
		part := 2 + rand.N(4)
		m.Await("a part of the state", "SELECT count(*) >= $1 FROM tendril.blob_parts p JOIN tendril.blobs b ON b.id = p.blob_id WHERE b.complete_at IS NULL AND b.parts >= 7", part)
		if n%3 != 1 {
			own.Crash(t)
		}
		if n%3 != 0 {
			a.Kill()
			a.Start()
		}
		if n%3 != 1 {
			m.back(own)
		}
		w.Exec(t, "DROP TRIGGER linger ON tendril.blob_parts")
		if got := w.AwaitEnd(id); got != "SUCCESS" {
			t.Errorf("the run = %s: %s, want SUCCESS", got, w.Message(id))
		}
		if listed, tainted := m.compare("between parts"); listed != 60 || tainted > 0 {
			t.Errorf("the state lists %d, %d of them tainted, want 60 and none", listed, tainted)
		}
		if got := w.Text(t, "SELECT count(*)::text FROM tendril.blobs WHERE complete_at IS NULL"); got != "0" {
			t.Errorf("%s states in part are left", got)
		}
		counted.add("faults between parts of a managed state", 1)
	}
	a.Terminate()
	w.countLeftovers(a)
	w.countRows()
}
