package chaos

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/e2e/site"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// ownWorks is works on a server of the test's own.
func ownWorks(t *testing.T, opts ...pgtest.OwnOption) (*works, *pgtest.Own) {
	t.Helper()
	own := pgtest.OwnServer(t, opts...)
	if _, err := tendrilsql.Migrate(t.Context(), own.URL); err != nil {
		t.Fatal(err)
	}
	return newWorks(site.On(t, queuetest.Populate(t, own.URL))), own
}

// reconnect replaces the test's own connection, which an outage has cut.
func (w *works) reconnect() {
	w.T.Helper()
	_ = w.Conn.Close(w.T.Context()) // it is broken
	conn, err := pgx.Connect(w.T.Context(), w.URL)
	if err != nil {
		w.T.Fatal(err)
	}
	w.Conn = conn
}

// answersAgain waits until the server does. Without room for its journal it begins
// anew, or gives up, which may take it until now.
func (w *works) answersAgain(own *pgtest.Own) {
	w.T.Helper()
	await(w.T, "Postgres to answer again", func() bool {
		if ended(own) {
			own.Stop(w.T)
			own.Start(w.T)
		}
		conn, err := pgx.Connect(w.T.Context(), w.URL)
		if err != nil {
			return false
		}
		_ = w.Conn.Close(w.T.Context()) // it may be broken
		w.Conn = conn
		return true
	})
}

// outage takes the server away while runs are in apply, before it, and queued. It
// comes back when the run in apply has gone on without it, and no sooner than after
// that time.
func (w *works) outage(own *pgtest.Own, stop func(testing.TB), least time.Duration) time.Duration {
	w.T.Helper()
	applying := w.deploy("a", endless, 10*time.Millisecond)
	w.awaitPrinted(applying, 5)
	w.deployEarly("b")
	w.deploy("a", 5, time.Millisecond)
	w.deploy("c", 5, time.Millisecond)
	began := time.Now()
	stop(w.T)
	w.awaitMore(applying, 50)
	await(w.T, "that time to pass", func() bool { return time.Since(began) > least })
	away := time.Since(began)
	own.Start(w.T)
	w.reconnect()
	back := time.Now()
	w.enough(applying)
	w.awaitAll()
	w.T.Logf("database away for %s, all had ended %s later", away.Round(time.Millisecond), time.Since(back).Round(time.Millisecond))
	return away
}

// deployEarly deploys to a workspace until it has a run that is before its apply:
// on a busy machine it may be further before anybody has looked.
func (w *works) deployEarly(workspace string) {
	w.T.Helper()
	await(w.T, "a run before its apply", func() bool {
		early := w.deploy(workspace, 20, 10*time.Millisecond)
		w.Await("its claim", "SELECT status <> 'QUEUED' FROM public.provisions WHERE id = $1", early.id)
		if !w.applied(early) {
			return true
		}
		w.AwaitEnd(early.id)
		return false
	})
}

// nobodyLost fails the test if a run was given up on the way.
func (w *works) nobodyLost() {
	w.T.Helper()
	for _, r := range w.runs {
		if log := w.Log(w.T, r.id); strings.Contains(log, "is lost") || strings.Contains(log, "reported after all") {
			w.T.Errorf("run %d was given up:\n%s", r.n, log)
		}
	}
}

// Postgres goes away in the middle of everything, for shorter and for longer
// than the lease. Whoever is back first must not reap the other: the database
// itself was away.
func TestPostgresStopped(t *testing.T) {
	t.Parallel()
	for name, longer := range map[string]bool{"shorter than the lease": false, "longer than the lease": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, own := ownWorks(t, pgtest.Durable())
			w.quickly()
			lease, least := 2*time.Minute, time.Duration(0)
			if longer {
				w.shortLeases()
				lease = shortLease()
				least = lease + time.Second
			}
			one := w.agent("one", 2, w.SharedState()).Start()
			two := w.agent("two", 2, w.SharedState()).Start()
			for range times(1, 8) {
				if away := w.outage(own, own.Crash, least); away > lease != longer {
					t.Errorf("the database was away for %s; this test wants longer than %s: %v", away, lease, longer)
				}
				counted.add("faults: Postgres stopped at once, "+name, 1)
				if full() {
					w.outage(own, own.Stop, least)
					counted.add("faults: Postgres stopped in order, "+name, 1)
				}
			}
			w.nobodyLost()
			one.Terminate()
			two.Terminate()
			w.countLeftovers(one)
			w.count(two, "SUCCESS")
		})
	}
}

// The agent is told to end while the database is away, and is started again
// before it is back: what the run had to tell is told by the next start.
func TestAgentRestartedWithoutADatabase(t *testing.T) {
	t.Parallel()
	w, own := ownWorks(t, pgtest.Durable())
	w.shortLeases()
	a := w.agent("one", 1, w.SharedState())
	for range times(1, 5) {
		a.Start()
		during := w.deploy("a", endless, 10*time.Millisecond)
		w.awaitPrinted(during, 5)
		next := w.deploy("a", 5, time.Millisecond)
		own.Crash(t)
		counted.add("faults: agent restarted while Postgres was stopped", 1)
		if err := a.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		a.AwaitOutput("nothing more is claimed")
		w.awaitMore(during, 50) // the agent waits for it
		w.enough(during)
		a.Exit()
		if !w.finished(during) {
			t.Error("the run had not come to its end before its agent ended")
		}
		a.Start()
		a.AwaitOutput("cannot register with the database")
		own.Start(t)
		w.reconnect()
		for _, r := range []*workRun{during, next} {
			if got := w.AwaitEnd(r.id); got != "SUCCESS" {
				t.Errorf("run %d = %s, want SUCCESS", r.n, got)
			}
		}
		a.Terminate()
	}
	w.nobodyLost()
	w.count(a, "SUCCESS")
}
