package sql_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// another connects to the same database.
func (w *world) another(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), w.conn.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// inFlight runs a statement in a transaction that is open until it is ended.
func (w *world) inFlight(t *testing.T, statement string, args ...any) (conn *pgx.Conn) {
	t.Helper()
	conn = w.another(t)
	mustExec(t, conn, "BEGIN")
	mustExec(t, conn, statement, args...)
	return conn
}

// awaitBlocked waits until somebody waits for a lock in this database.
func (w *world) awaitBlocked(t *testing.T) {
	t.Helper()
	const blocked = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')"
	for end := patience.Begin(time.Minute); !one[bool](t, w.conn, blocked); {
		if end.Over() {
			t.Fatal("nobody has waited for a lock for a minute")
		}
		mustExec(t, w.conn, "SELECT pg_sleep(0.01)")
	}
}

// lockTimeout changes how long the contract's functions wait for a lock: where a
// test has them wait, a machine that stalls must not end that.
func lockTimeout(t *testing.T, conn *pgx.Conn, timeout string) {
	t.Helper()
	mustExec(t, conn, fmt.Sprintf(`DO $$ DECLARE f regprocedure; BEGIN
		FOR f IN SELECT oid FROM pg_proc WHERE proconfig @> ARRAY['lock_timeout=2s'] LOOP EXECUTE format('ALTER FUNCTION %%s SET lock_timeout = %%L', f, '%s'); END LOOP; END $$`, timeout))
}

// A boot that registers and a claim of the one before never pass each other.
func TestRegisterMeetsClaim(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	before := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	later := *before
	later.boot = uuid.New()

	claiming := w.inFlight(t, "SELECT public.fetch_next_provision($1, $2, $3, gen_random_uuid())", w.tokenHash, before.instance, before.boot)
	wantRefusal(t, later.register(t), "PT503", "busy")
	mustExec(t, claiming, "ROLLBACK")

	lockTimeout(t, w.conn, "1min")
	registering := w.inFlight(t, `SELECT public.register_agent($1, jsonb_build_object('instance_id', $2::text, 'boot_id', $3::text,
		'name', 'one', 'host', 'one.example', 'version', 'x', 'contract', 2, 'slots', 2))`, w.tokenHash, before.instance, later.boot)
	ended, claimant := make(chan error, 1), w.another(t)
	go func() {
		_, err := claimant.Exec(t.Context(), "SELECT public.fetch_next_provision($1, $2, $3, gen_random_uuid())", w.tokenHash, before.instance, before.boot)
		ended <- err
	}()
	w.awaitBlocked(t)
	mustExec(t, registering, "COMMIT")
	wantRefusal(t, <-ended, "PT409", "agent_superseded")
}

// Whatever else goes wrong, the database refuses two running claims.
func TestOneRunningClaim(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	first, _ := agent.mustClaim(t)
	agent.mustReport(t, first, "SUCCESS", "{}")
	w.deploy(t, w.operator, snapshot("a"))
	agent.mustClaim(t)
	_, err := w.conn.Exec(t.Context(), "UPDATE tendril.claims SET state = 'running' WHERE id = $1", first)
	wantRefusal(t, err, "23505", "")
}

// A lost claim that somebody else has locked costs the others no lease.
func TestLockedLostClaimCostsNoLease(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	lost, _ := agent.mustClaim(t)
	agent.mustReport(t, lost, "PROCESSING", applying)
	w.expire(t, lost)
	w.reap(t)
	w.deploy(t, w.operator, snapshot("b"))
	alive, _ := agent.mustClaim(t)
	mustExec(t, w.conn, "UPDATE tendril.claims SET lease_until = clock_timestamp() + interval '1 s' WHERE id = $1", alive)
	w.inFlight(t, "SELECT public.release_workspace(id) FROM public.workspaces WHERE held_by_claim IS NOT NULL")
	if _, err := agent.heartbeat(t, alive, lost); err != nil {
		t.Errorf("heartbeat = %v, want nil", err)
	}
	if one[bool](t, w.conn, "SELECT lease_until < clock_timestamp() + interval '30 s' FROM tendril.claims WHERE id = $1", alive) {
		t.Error("the living claim's lease was not renewed")
	}
}

// Late lines need not wait for a heartbeat.
func TestLateLinesDuringAHeartbeat(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	lost, _ := agent.mustClaim(t)
	w.expire(t, lost)
	w.reap(t)
	w.inFlight(t, "SELECT public.agent_heartbeat($1, $2, $3, $4)", w.tokenHash, agent.instance, agent.boot, []uuid.UUID{lost})
	if _, err := agent.lines(t, lost, 1, "late\n"); err != nil {
		t.Errorf("late lines = %v, want nil", err)
	}
}

// A heartbeat that waits for a reaping learns that the claim is lost.
func TestHeartbeatMeetsReaping(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	lockTimeout(t, w.conn, "1min")
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	w.expire(t, claim)
	reaping := w.inFlight(t, "SELECT tendril.reap()")
	type answer struct {
		lost []uuid.UUID
		err  error
	}
	answered, beating := make(chan answer, 1), w.another(t)
	go func() {
		var lost []uuid.UUID
		err := beating.QueryRow(t.Context(), `SELECT array(SELECT jsonb_array_elements_text(f -> 'lost')::uuid)
			FROM public.agent_heartbeat($1, $2, $3, $4) f`, w.tokenHash, agent.instance, agent.boot, []uuid.UUID{claim}).Scan(&lost)
		answered <- answer{lost, err}
	}()
	w.awaitBlocked(t)
	mustExec(t, reaping, "COMMIT")
	if got := <-answered; got.err != nil || !slices.Equal(got.lost, []uuid.UUID{claim}) {
		t.Errorf("lost = %v, %v, want %s", got.lost, got.err, claim)
	}
	if got := one[string](t, w.conn, "SELECT state FROM tendril.claims"); got != "lost" {
		t.Errorf("the claim is %s, want lost", got)
	}
}

// Heartbeats stamp the pulse, or reaping would be put off for ever.
func TestHeartbeatStampsThePulse(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	mustExec(t, w.conn, "UPDATE tendril.pulse SET stamped_at = clock_timestamp() - interval '10 s'")
	if _, err := agent.heartbeat(t); err != nil {
		t.Fatal(err)
	}
	if one[bool](t, w.conn, "SELECT stamped_at < clock_timestamp() - interval '5 s' FROM tendril.pulse") {
		t.Error("the pulse is older than the heartbeat")
	}
}

// What an idle heartbeat does without waiting for the disk must not go for what
// else is in its transaction.
func TestIdleHeartbeatLeavesItsTransactionAlone(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	conn := w.inFlight(t, "SET LOCAL synchronous_commit = on")
	mustExec(t, conn, "SELECT public.fetch_next_provision($1, $2, $3, gen_random_uuid())", w.tokenHash, agent.instance, agent.boot)
	mustExec(t, conn, "SELECT public.agent_heartbeat($1, $2, $3, '{}')", w.tokenHash, agent.instance, agent.boot)
	if got := one[string](t, conn, "SHOW synchronous_commit"); got != "on" {
		t.Errorf("a claim would be committed with synchronous_commit %s, want on", got)
	}
}

// A call without a boot is wrong for good, not for now.
func TestCallWithoutABoot(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	for _, call := range []string{
		"SELECT public.agent_heartbeat($1, $2, NULL, '{}')", "SELECT public.fetch_next_provision($1, $2, NULL, gen_random_uuid())",
	} {
		_, err := w.conn.Exec(t.Context(), call, w.tokenHash, agent.instance)
		wantRefusal(t, err, "PT422", "bad_agent")
	}
}
