package agent

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/queue/pgqueue"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

func TestTwoAgentsOnOneDataDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	a.says(t, "registered")
	s := w.setup()
	s.Name = "two"
	b := startAgent(t, s)
	b.exits(t, 1)
	b.says(t, "Error: the data directory "+w.data+" is in use by process "+strconv.Itoa(a.cmd.Process.Pid)+" on ")
	b.says(t, "give this one a data directory and a name of its own")
	a.stops(t)
}

// The pod before this one still has the volume: the agent waits, alive and not ready, and
// says for whom. It registers as soon as the directory is free.
func TestWaitsForTheDataDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := dirlock.Holder{PID: 1, Host: "pod-0", Kernel: "b0a1c2d3-0000", Namespace: "pid:[1]", Name: "prod-1"}
	lock, err := dirlock.Take(makeDir(t, w.data), before)
	if err != nil {
		t.Fatal(err)
	}
	s := w.setup()
	s.Margin = time.Minute
	a := startAgent(t, s)
	a.says(t, "waiting until it ends")
	a.says(t, `process 1 on pod-0 (\"prod-1\", kernel boot b0a1c2d3)`)
	if status, _ := a.reason(t, "/healthz"); status != 200 {
		t.Errorf("GET /healthz of an agent that waits = %d, want 200", status)
	}
	if status, reason := a.reason(t, "/readyz"); status != 503 || !strings.Contains(reason, "in use by process 1 on pod-0") {
		t.Errorf("GET /readyz of an agent that waits = %d %q, want 503 and for whom", status, reason)
	}
	lock.Release()
	a.says(t, "registered")
	a.stops(t)
}

// One that is told to end while it waits ends, and has done nothing.
func TestEndsWhileItWaitsForTheDataDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lock, err := dirlock.Take(makeDir(t, w.data), dirlock.Holder{PID: 1, Host: "pod-0", Kernel: "k", Namespace: "pid:[1]"})
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	a := startAgent(t, w.setup())
	a.says(t, "waiting until it ends")
	a.term(t)
	a.exits(t, 0)
}

func makeDir(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWrongToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.Token = "tnd_wrong"
	a := startAgent(t, s)
	a.exits(t, 1)
	a.says(t, "Error: the agent token is unknown, revoked or expired")
	if strings.Contains(a.log.String(), "tnd_wrong") {
		t.Error("the log shows the token")
	}
}

func TestNameTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	a.says(t, "registered")
	s := w.setup()
	s.DataDir = t.TempDir()
	b := startAgent(t, s)
	b.exits(t, 1)
	b.says(t, `Error: another agent of this cluster uses the name "one"`)
	a.stops(t)
}

func TestRevokedTokenStopsClaimingOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "apply", "touch running", "hold go", "print 3", "succeed")
	w.touched(t, "running")
	w.Exec(t, "UPDATE tendril.cluster_tokens SET revoked_at = now()")
	a.says(t, "nothing is claimed until that is fixed")
	waiting := w.deploy(t, "dev", "succeed")
	w.release(t, "go") // the run goes on; its lines wait
	a.says(t, "delivering again after a failure")
	if got := w.Status(t, waiting); got != "QUEUED" {
		t.Errorf("status = %s, want QUEUED", got)
	}
	w.Exec(t, "UPDATE tendril.cluster_tokens SET revoked_at = NULL")
	w.becomes(t, id, "SUCCESS")
	w.becomes(t, waiting, "SUCCESS")
	if got := w.Log(t, id); got != lines(3) {
		t.Errorf("log = %q, want %q", got, lines(3))
	}
	if n := strings.Count(a.log.String(), "nothing is claimed until"); n != 1 {
		t.Errorf("the refused token was logged %d times, want once", n)
	}
	a.stops(t)
}

func TestSupersededAgentFinishesAndEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "apply", "touch running", "hold go", "succeed")
	w.touched(t, "running")
	var who queue.Agent
	if err := w.Conn.QueryRow(t.Context(), "SELECT instance_id, name, host FROM public.agents").Scan(&who.Instance, &who.Name, &who.Host); err != nil {
		t.Fatal(err)
	}
	who.Boot, who.Version, who.Contract, who.Slots = uuid.New(), "test", queue.Contract, 1
	q, err := pgqueue.New(t.Context(), pgqueue.Options{URL: w.URL, Token: w.Token, Agent: who})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.says(t, "draining")
	w.release(t, "go")
	w.becomes(t, id, "SUCCESS")
	a.exits(t, 1)
	a.says(t, "Error: another start of this agent has taken its place")
}

func TestLostBeforeApplyIsStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "touch running", "hold never")
	w.touched(t, "running")
	w.lose(t, id)
	patience.Await(t, "the run to be settled", func() bool {
		return w.Text(t, "SELECT state FROM tendril.claims WHERE provision_id = $1", id) == "ended"
	})
	if got := w.stops(t); got != "lost" {
		t.Errorf("the child was asked to stop for %q, want lost", got)
	}
	a.stops(t)
}

func TestLostDuringApplySettlesLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "apply", "touch running", "hold go", "print 2", "succeed")
	w.touched(t, "running")
	w.lose(t, id)
	if got := w.Status(t, id); got != "FAILED/agent_lost" {
		t.Fatalf("status = %s, want FAILED/agent_lost", got)
	}
	w.release(t, "go")
	w.becomes(t, id, "SUCCESS")
	if got := w.Log(t, id); !strings.Contains(got, lines(2)) {
		t.Errorf("log = %q, want the lines that came after the claim was lost", got)
	}
	a.stops(t)
	w.wantNothingLeft(t)
}

// lose has a provision's lease run out, as if the agent had not been heard of.
func (w *world) lose(t *testing.T, id uuid.UUID) {
	t.Helper()
	// In one transaction, so that no heartbeat renews in between.
	tx, err := w.Conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // committed below
	if _, err := tx.Exec(t.Context(), "UPDATE tendril.claims SET lease_until = '-infinity' WHERE provision_id = $1", id); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT tendril.reap()"); err != nil {
		t.Fatal(err)
	}
	var state string
	if err := tx.QueryRow(t.Context(), "SELECT state FROM tendril.claims WHERE provision_id = $1", id).Scan(&state); err != nil || state != "lost" {
		t.Fatalf("claim is %s, %v, want lost", state, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestLostAnswerToAClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.setup()
	s.LoseClaims = 2
	a := startAgent(t, s)
	id := w.deploy(t, "prod", "print 1", "succeed")
	w.becomes(t, id, "SUCCESS")
	if got := w.Text(t, "SELECT count(*)::text FROM tendril.claims"); got != "1" {
		t.Errorf("claims = %s, want one, asked for again by its id", got)
	}
	a.stops(t)
}

func TestDatabaseRestartsDuringARun(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t)
	if _, err := tendrilsql.Migrate(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	w := newWorldIn(t, queuetest.Populate(t, server.URL))
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "print 2", "apply", "touch running", "hold go", "print 3", "touch printed", "hold on", "print 4", "succeed")
	w.touched(t, "running")
	w.logs(t, id, lines(2))
	server.Stop(t)
	a.says(t, "cannot reach the database")
	w.release(t, "go")
	w.touched(t, "printed") // it runs on
	server.Start(t)
	a.says(t, "can reach the database again")
	conn, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	w.Conn = conn
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	w.release(t, "on")
	w.becomes(t, id, "SUCCESS")
	if got, want := w.Log(t, id), lines(2)+lines(3)+lines(4); got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	a.stops(t)
	w.wantNothingLeft(t)
}

func TestDatabaseAwayAtTheEnd(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t)
	if _, err := tendrilsql.Migrate(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	w := newWorldIn(t, queuetest.Populate(t, server.URL))
	s := w.setup()
	s.LastDelivery = time.Second
	a := startAgent(t, s)
	id := w.deploy(t, "prod", "apply", "touch running", "hold never")
	w.touched(t, "running")
	server.Stop(t)
	a.term(t)
	a.says(t, "draining")
	a.term(t)
	a.exits(t, 0) // in bounded time
	a.says(t, "the next start of this agent does it")

	server.Start(t)
	conn, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	w.Conn = conn
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	b := startAgent(t, w.setup())
	w.becomes(t, id, "FAILED/agent_drained")
	b.says(t, "delivered what an earlier start left") // not cut short by the end
	b.stops(t)
	w.wantNothingLeft(t)
}

// A result that the database does not take for its content ends the run all the same:
// what it could not take is kept, and the log says so.
func TestResultThatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "print 2", "apply", "nonsense")
	w.becomes(t, id, "FAILED/internal")
	a.says(t, "the database does not take a part of the run for its content")
	a.stops(t)
	if got := w.Log(t, id); !strings.HasPrefix(got, lines(2)) || !strings.Contains(got, "left out, because the database does not take it: everything but the status") {
		t.Errorf("log = %q, want %q and what was left out", got, lines(2))
	}
	claim := w.Text(t, "SELECT id::text FROM tendril.claims")
	if got, want := strings.Join(w.left(t, "rejected"), " "), claim+".report-2.json"; got != want {
		t.Errorf("rejected/ holds %q, want %q", got, want)
	}
	if left := w.left(t, "spool"); len(left) > 0 {
		t.Errorf("spool/ holds %q, want it empty", left)
	}
}

func TestLeftoverThatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	id := w.deploy(t, "prod", "print 2", "touch running", "hold never")
	w.touched(t, "running")
	a.kill()
	w.Exec(t, "UPDATE tendril.claims SET state = 'ended', ended_at = now() - interval '2 days' WHERE provision_id = $1", id)
	b := startAgent(t, w.setup())
	b.says(t, "the database does not take the rest of the run")
	w.becomes(t, w.deploy(t, "dev", "succeed"), "SUCCESS")
	b.stops(t)
	if left := w.left(t, "rejected"); len(left) != 2 {
		t.Errorf("rejected/ holds %q, want the refused spool", left)
	}
}

func TestForgottenAgentRegistersAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := startAgent(t, w.setup())
	w.becomes(t, w.deploy(t, "prod", "succeed"), "SUCCESS")
	w.Exec(t, "DELETE FROM public.agents")
	a.says(t, "registered again")
	w.becomes(t, w.deploy(t, "prod", "succeed"), "SUCCESS")
	a.stops(t)
}
