package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/controlplane/postgres"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// clock is a clock of PostgreSQL's own, which can be stepped while it runs.
type clock struct {
	t    testing.TB
	file string // says how far it is off
}

// fakeTime finds the library that does it.
func fakeTime(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib*/*/faketime/libfaketimeMT.so.1") // the pattern is well formed
	more, _ := filepath.Glob("/usr/lib*/faketime/libfaketimeMT.so.1")
	if found = append(found, more...); len(found) == 0 {
		t.Fatal("this test steps PostgreSQL's clock and needs libfaketime: make deps, apt-get install libfaketime, or dnf install libfaketime")
	}
	return found[0]
}

// newClock makes a directory with programs that run PostgreSQL by the clock.
// They leave the monotonic clock alone, as stepping a real clock does.
func newClock(t testing.TB) (*clock, pgtest.OwnOption) {
	t.Helper()
	bin := os.Getenv("TENDRIL_TEST_POSTGRES_BIN")
	if bin == "" {
		var err error
		if bin, err = postgres.Find(); err != nil {
			t.Fatal(err)
		}
	}
	dir := pgtest.Dir(t)
	c := &clock{t: t, file: filepath.Join(dir, "offset")}
	c.set(0)
	for program, environment := range map[string]string{
		"initdb": "",
		"postgres": fmt.Sprintf("LD_PRELOAD=%s FAKETIME_TIMESTAMP_FILE=%s FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_DISABLE_SHM=1",
			fakeTime(t), c.file),
	} {
		script := fmt.Sprintf("#!/bin/sh\nexec env %s %s \"$@\"\n", environment, filepath.Join(bin, program))
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return c, pgtest.WithPrograms(dir)
}

// set sets the clock by how far it is off the machine's.
func (c *clock) set(offset time.Duration) {
	c.t.Helper()
	next := c.file + ".next"
	err := os.WriteFile(next, fmt.Appendf(nil, "%+d\n", int(offset.Seconds())), 0o644)
	if err == nil {
		err = os.Rename(next, c.file) // never half of it
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// hears fails the test unless viewers are woken for what a running provision
// prints from now on.
func (w *works) hears(r *workRun) {
	w.T.Helper()
	ctx, cancel := patience.Context(w.T.Context(), site.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.URL)
	if err != nil {
		w.T.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // only listened
	if _, err := conn.Exec(ctx, "LISTEN tendril_provision"); err != nil {
		w.T.Fatal(err)
	}
	for heard := 0; heard < 3; {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			w.T.Fatalf("waiting to hear of run %d: %v", r.n, err)
		}
		if n.Payload == r.id.String() {
			heard++
		}
	}
	if got := w.Status(w.T, r.id); got != "PROCESSING" {
		w.T.Errorf("run %d was heard of when it was %s only, want it while it prints", r.n, got)
	}
}

// step sets the clock in the middle of a run: its lines are told of, what is
// deployed next is claimed, and both succeed.
func (w *works) step(c *clock, offset time.Duration) {
	w.T.Helper()
	during := w.deploy("a", endless, 10*time.Millisecond)
	w.awaitPrinted(during, 5)
	c.set(offset)
	counted.add("faults: PostgreSQL's clock stepped by an hour", 1)
	w.hears(during)
	w.enough(during)
	for _, r := range []*workRun{w.deploy("b", 5, time.Millisecond), during} {
		if got := w.AwaitEnd(r.id); got != "SUCCESS" {
			w.T.Errorf("run %d = %s, want SUCCESS", r.n, got)
		}
	}
}

// PostgreSQL's clock is stepped by an hour, forward and back, and so is each
// agent's against it, the other way. Nobody alive is given up; who dies just
// before a step back is given up a lease later, not an hour.
func TestClockStepped(t *testing.T) {
	t.Parallel()
	first := map[string]time.Duration{"forward first": time.Hour}
	if full() {
		first["back first"] = -time.Hour
	}
	for name, hour := range first {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, programs := newClock(t)
			w, _ := ownWorks(t, programs)
			w.shortLeases()
			victim := w.agent("victim", 1, w.SharedState()).Start()
			witness := w.agent("witness", 2, w.SharedState()).Start()
			for range times(1, 5) {
				w.step(c, hour)
				w.step(c, 0)
			}
			w.nobodyLost()

			witness.Terminate()
			lost := w.deploy("a", endless, 10*time.Millisecond)
			w.awaitPrinted(lost, 5)
			witness.Start()
			witness.AwaitOutput("registered")
			w.killTree(victim)
			c.set(-time.Hour)
			counted.add("faults: PostgreSQL's clock stepped back after a death", 1)
			died := time.Now()
			if got := w.AwaitEnd(lost.id); got != "FAILED/agent_lost" {
				t.Errorf("the run of a dead agent = %s, want FAILED/agent_lost", got)
			}
			t.Logf("a dead agent was given up %s after the clock was set back", time.Since(died).Round(time.Millisecond))
			w.newcomer(victim.Name)
			next := w.deploy("a", 5, time.Millisecond)
			victim.Set("TENDRIL_NAME", "victim-again") // the newcomer may still count as alive
			victim.Start()
			if got := w.AwaitEnd(next.id); got != "SUCCESS" {
				t.Errorf("what is queued behind it = %s, want SUCCESS once the machine is back", got)
			}
			victim.Terminate()
			witness.Terminate()
			w.countLeftovers(victim)
			w.count(witness, "SUCCESS", "FAILED/agent_lost")
		})
	}
}

// newcomer takes the name of an agent that is dead.
func (w *works) newcomer(name string) {
	w.T.Helper()
	a := w.agent(name, 1, w.SharedState()).Start()
	a.AwaitOutput("registered")
	a.Terminate()
}
