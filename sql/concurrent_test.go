package sql_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// crowd is several connections that call whatever they like at once.
type crowd struct {
	w      *world
	agents []*agent

	mu     sync.Mutex
	boots  map[uuid.UUID]uuid.UUID
	claims []uuid.UUID
}

// Everything at once, on two workspaces: no call deadlocks or breaks on a
// constraint, and the tables agree with each other in the end.
func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	own := db.Conn(t)
	countCalls(t, own, "cut_future_stamps(timestamptz, interval)", "void")
	countCalls(t, own, "reap_claim(uuid, uuid, timestamptz)", "int")
	countCalls(t, own, "settle_due(int)", "int")
	countCalls(t, own, "try_again(uuid, text)", "void")
	mustExec(t, own, "UPDATE tendril.settings SET retry_after = '20 milliseconds'")
	c := &crowd{w: newWorld(t, own), boots: map[uuid.UUID]uuid.UUID{}}
	for _, name := range []string{"one", "two", "three"} {
		a := c.w.newAgent(t, name)
		c.agents, c.boots[a.instance] = append(c.agents, a), a.boot
	}
	// On a busy machine the calls meet less often: some more rounds then.
	for round := 0; round == 0 || round < 6 && !c.haveMet(t, own); round++ {
		c.meet(t, db.URL, uint64(round))
	}
	if n := deadlocks(t, own); n != 0 {
		t.Errorf("%d deadlocks, want none, in what only warns of them neither", n)
	}
	for _, function := range rarest {
		if n := calledTimes(t, own, function); n < 3 {
			t.Errorf("%s ran %d times: it hardly met the other calls", function, n)
		}
	}
	now, err := readContractState(t.Context(), c.w.conn)
	if err != nil {
		t.Fatal(err)
	}
	m := &model{released: map[uuid.UUID]bool{}}
	for _, id := range one[[]uuid.UUID](t, c.w.conn, "SELECT coalesce(array_agg((detail ->> 'held_by_claim')::uuid), '{}') FROM public.audit_events WHERE action = 'release_workspace' AND detail ->> 'held_by_claim' IS NOT NULL") {
		m.released[id] = true
	}
	for _, broken := range m.brokenRules(now) {
		t.Errorf("rule broken: %s", broken)
	}
	if len(now.Claims) < 20 {
		t.Errorf("only %d claims were made: the calls hardly met", len(now.Claims))
	}
}

// rarest are the functions that run only where calls meet.
var rarest = []string{"cut_future_stamps", "reap_claim", "settle_due", "try_again"}

func (c *crowd) haveMet(t *testing.T, own *pgx.Conn) bool {
	t.Helper()
	for _, function := range rarest {
		if calledTimes(t, own, function) < 3 {
			return false
		}
	}
	return one[int](t, own, "SELECT count(*)::int FROM tendril.claims") >= 20
}

// meet lets all connections make their calls at once.
func (c *crowd) meet(t *testing.T, url string, seed uint64) {
	t.Helper()
	const connections, calls = 8, 400
	var wg sync.WaitGroup
	errs := make([]error, connections)
	for i := range connections {
		conn, dice := impatient(t, url), rand.New(rand.NewPCG(uint64(i), 1+seed))
		wg.Go(func() {
			defer conn.Close(t.Context()) //nolint:errcheck // it has said what it had to
			for range calls {
				if errs[i] = c.step(t.Context(), conn, dice); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// step makes one call. A refusal is an answer; any other error is not.
func (c *crowd) step(ctx context.Context, conn *pgx.Conn, dice *rand.Rand) error {
	a := c.agents[dice.IntN(len(c.agents))]
	c.mu.Lock()
	boot, claim := c.boots[a.instance], uuid.New()
	if n := len(c.claims); n > 0 {
		claim = c.claims[max(0, n-1-dice.IntN(6))]
	}
	c.mu.Unlock()
	query, args := "", []any{}
	switch dice.IntN(26) {
	case 0, 1:
		query, args = "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", []any{c.w.cluster, snapshotWith(fmt.Sprintf("w%d", dice.IntN(2)), `"max_attempts": 3`)}
	case 2, 3, 4:
		claim = uuid.New()
		query, args = "SELECT * FROM public.fetch_next_provision($1, $2, $3, $4)", []any{c.w.tokenHash, a.instance, boot, claim}
	case 5:
		query, args = "SELECT public.update_provision_status($1, $2, 'PROCESSING', $3)", []any{c.w.tokenHash, claim, applying}
	case 6:
		query, args = "SELECT public.update_provision_status($1, $2, 'PROCESSING', '{\"state_unsaved\": true}')", []any{c.w.tokenHash, claim}
	case 7:
		query, args = "SELECT public.update_provision_status($1, $2, 'SUCCESS', '{\"state_unsaved\": false}')", []any{c.w.tokenHash, claim}
	case 8:
		query, args = "SELECT public.cancel_provision(provision_id) FROM tendril.claims WHERE id = $1", []any{claim}
	case 9:
		query = "SELECT public.release_workspace(id) FROM public.workspaces WHERE held_by_claim IS NOT NULL OR unsaved_state_on IS NOT NULL LIMIT 1"
	case 10: // the lease runs out, or the clock goes back
		query, args = "UPDATE tendril.claims SET lease_until = clock_timestamp() + $2 * interval '1 hour' WHERE id = $1 AND state = 'running'", []any{claim, 1 - 2*dice.IntN(2)}
	case 11:
		query, args = "SELECT public.agent_heartbeat($1, $2, $3, $4)", []any{c.w.tokenHash, a.instance, boot, []uuid.UUID{}}
	case 12:
		query, args = "SELECT public.insert_provision_log($1, $2, 1, '[{\"stream\": \"STDOUT\", \"text\": \"x\", \"at\": \"2026-01-01T00:00:00Z\"}]')", []any{c.w.tokenHash, claim}
	case 13, 14: // the pulse is due, or lies in the future
		query = "UPDATE tendril.pulse SET stamped_at = clock_timestamp() + CASE WHEN random() < 0.1 THEN 1 ELSE -1 END * interval '20 seconds', reap_not_before = '-infinity'"
	case 15, 16:
		query, args = "SELECT public.agent_heartbeat($1, $2, $3, $4)", []any{c.w.tokenHash, a.instance, boot, []uuid.UUID{claim}}
	case 17:
		return c.restart(ctx, conn, a)
	case 18: // may pass
		query, args = "SELECT public.update_provision_status($1, $2, 'FAILED', '{\"error_code\": \"internal\"}')", []any{c.w.tokenHash, claim}
	case 19, 20:
		query, args = "SELECT public.put_blob($1, $2, 'plan', 0, 1, 1, $3, '{}', 'c2VhbGVk')", []any{c.w.tokenHash, claim, aPlan}
	case 21, 22:
		query, args = "SELECT public.update_provision_status($1, $2, 'AWAITING_APPROVAL', jsonb_build_object('plan_digest', $3::text))", []any{c.w.tokenHash, claim, aPlan}
	case 23:
		query = "SELECT public.approve_provision(id, plan_digest) FROM public.provisions WHERE status = 'AWAITING_APPROVAL' LIMIT 1"
	case 24:
		query = "SELECT public.reject_provision(id) FROM public.provisions WHERE status = 'AWAITING_APPROVAL' LIMIT 1"
	case 25: // what some workspace is kept for comes due
		query = "WITH due AS (UPDATE public.workspaces SET due_at = clock_timestamp() WHERE id = (SELECT id FROM public.workspaces WHERE due_at IS NOT NULL LIMIT 1) RETURNING 1) SELECT tendril.reap() FROM due"
	}
	tag, err := conn.Exec(ctx, query, args...)
	if err == nil && strings.Contains(query, "fetch_next") && tag.RowsAffected() == 1 {
		c.mu.Lock()
		c.claims = append(c.claims, claim)
		c.mu.Unlock()
	}
	return unlessRefused(query, err)
}

// restart registers a new boot and sweeps what the earlier ones left.
func (c *crowd) restart(ctx context.Context, conn *pgx.Conn, a *agent) error {
	boot := uuid.New()
	about := fmt.Sprintf(`{"instance_id": %q, "boot_id": %q, "name": %q, "host": %q, "version": "test", "contract": 3, "slots": 2}`, a.instance, boot, a.name, a.host)
	if _, err := conn.Exec(ctx, "SELECT public.register_agent($1, $2)", c.w.tokenHash, about); err != nil {
		return unlessRefused("register", err)
	}
	c.mu.Lock()
	c.boots[a.instance] = boot
	c.mu.Unlock()
	_, err := conn.Exec(ctx, "SELECT public.fail_orphaned_provisions($1, $2, $3)", c.w.tokenHash, a.instance, boot)
	return unlessRefused("sweep", err)
}

func unlessRefused(what string, err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(pg.Code, "PT") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
