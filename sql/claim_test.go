package sql_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

func TestClaimOrder(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	insert := func(workspace string, priority int) uuid.UUID {
		return one[uuid.UUID](t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, $3) RETURNING id", w.cluster, snapshot(workspace), priority)
	}
	oldA := insert("a", 0)
	insert("a", 0)
	b := insert("b", 0)
	urgentA := insert("a", 10)

	claim, got := agent.mustClaim(t)
	if got != urgentA {
		t.Errorf("first claim = %s, want the urgent one on a", got)
	}
	if _, got := agent.mustClaim(t); got != b {
		t.Errorf("second claim = %s, want b's: a is busy", got)
	}
	if got, err := agent.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("third claim = %s, %v, want nothing: both workspaces are busy", got, err)
	}
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	if _, got := agent.mustClaim(t); got != oldA {
		t.Errorf("claim after the end on a = %s, want its oldest %s", got, oldA)
	}
}

func TestClaimPassesOver(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	for name, change := range map[string]string{
		"locked":            "UPDATE public.workspaces SET locked_at = now(), lock_reason = 'maintenance'",
		"at home elsewhere": "UPDATE public.workspaces SET home_instance = gen_random_uuid()",
		"paused cluster":    "UPDATE public.clusters SET paused_at = now()",
		"reserved":          "UPDATE public.workspaces SET reserved_by = (SELECT id FROM public.provisions WHERE number = 1)",
	} {
		tx, err := w.conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if name == "reserved" { // by another provision than the one queued
			if _, err := tx.Exec(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", w.cluster, snapshot("a")); err != nil {
				t.Fatal(err)
			}
			change += "; UPDATE public.provisions SET status = 'PROCESSING' WHERE number = 1; SELECT tendril.refresh_head(id) FROM public.workspaces"
		}
		if _, err := tx.Exec(t.Context(), change); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var claimed uuid.UUID
		err = tx.QueryRow(t.Context(), "SELECT provision_id FROM public.fetch_next_provision($1, $2, $3, $4)", w.tokenHash, agent.instance, agent.boot, uuid.New()).Scan(&claimed)
		if !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("%s: claim = %s, %v, want nothing", name, claimed, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	agent.mustClaim(t) // and without any of these it goes
}

// A row that an administrator changed or deleted by hand wedges nothing.
func TestClaimSurvivesMeddling(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	changed, deleted := w.deploy(t, w.operator, snapshot("a")), w.deploy(t, w.operator, snapshot("b"))
	mustExec(t, w.conn, "UPDATE public.provisions SET status = 'CANCELLED' WHERE id = $1", changed)
	mustExec(t, w.conn, "DELETE FROM public.provisions WHERE id = $1", deleted)
	next := w.deploy(t, w.operator, snapshot("a"))
	if _, got := agent.mustClaim(t); got != next {
		t.Errorf("claim = %s, want %s", got, next)
	}
	if got, err := agent.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("claim = %s, %v, want nothing more", got, err)
	}
}

// Eight connections empty a queue: each provision once, never two at once on
// one workspace.
func TestClaimConcurrently(t *testing.T) {
	t.Parallel()
	const connections, workspaces, provisions = 8, 10, 200
	db := pgtest.New(t, migrated)
	w := newWorld(t, db.Conn(t))
	agent := w.newAgent(t, "one")
	for i := range provisions {
		mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", w.cluster, snapshot(fmt.Sprintf("w%d", i%workspaces)))
	}

	var mu sync.Mutex
	done, busy := map[uuid.UUID]bool{}, map[uuid.UUID]bool{}
	work := func(conn *pgx.Conn) error {
		for {
			mu.Lock()
			finished := len(done) == provisions
			mu.Unlock()
			if finished {
				return nil
			}
			var claim, provision, workspace uuid.UUID
			err := conn.QueryRow(t.Context(), "SELECT claim_id, provision_id, workspace_id FROM public.fetch_next_provision($1, $2, $3, gen_random_uuid())",
				w.tokenHash, agent.instance, agent.boot).Scan(&claim, &provision, &workspace)
			if errors.Is(err, pgx.ErrNoRows) {
				continue
			}
			if err != nil {
				return err
			}
			mu.Lock()
			twice, overlap := done[provision], busy[workspace]
			done[provision], busy[workspace] = true, true
			mu.Unlock()
			if twice || overlap {
				return fmt.Errorf("run %s: claimed before %t, workspace busy %t", provision, twice, overlap)
			}
			mu.Lock()
			delete(busy, workspace) // before the database lets the next one in
			mu.Unlock()
			if _, err := conn.Exec(t.Context(), "SELECT public.update_provision_status($1, $2, 'SUCCESS', '{}')", w.tokenHash, claim); err != nil {
				return err
			}
		}
	}
	var wg sync.WaitGroup
	errs := make([]error, connections)
	for i := range connections {
		conn := db.Conn(t)
		wg.Go(func() { errs[i] = work(conn) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.provisions WHERE status = 'SUCCESS'"); got != provisions {
		t.Errorf("succeeded = %d, want %d", got, provisions)
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM tendril.claims"); got != provisions {
		t.Errorf("claims = %d, want %d", got, provisions)
	}
	if got := one[int](t, w.conn, `SELECT count(*) FROM tendril.claims a JOIN tendril.claims b USING (workspace_id)
		WHERE a.number < b.number AND b.created_at < a.ended_at`); got != 0 {
		t.Errorf("claims that overlap on a workspace = %d, want 0", got)
	}
}

// However deep the queue of one workspace, a claim reads a handful of rows.
func TestClaimIsIndependentOfQueueLength(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("busy"))
	agent.mustClaim(t)
	mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot) SELECT $1, $2 FROM generate_series(1, 2000)", w.cluster, snapshot("busy"))
	id := w.deploy(t, w.operator, snapshot("idle"))
	mustExec(t, w.conn, "ANALYZE")
	read, _ := w.reading(t, func(tx pgx.Tx) error {
		got, err := agent.fetch(t, tx)
		if got != id {
			t.Errorf("claim = %s, want the idle workspace's %s", got, id)
		}
		return err
	})
	if read == 0 || read > 30 {
		t.Errorf("rows read by one claim = %d, want a handful of 2,000", read)
	}
}

// Numbers are drawn before the workspace is locked: the lower one, committed
// later, is still first.
func TestClaimOrderOfConcurrentDeploys(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	mustExec(t, w.conn, "UPDATE public.workspaces SET head_number = head_number + 1") // as if a later number had come first
	id := one[uuid.UUID](t, w.conn, "INSERT INTO public.provisions (number, cluster_id, config_snapshot) OVERRIDING SYSTEM VALUE VALUES (-5, $1, $2) RETURNING id", w.cluster, snapshot("a"))
	if _, got := agent.mustClaim(t); got != id {
		t.Errorf("claim = %s, want the lower number %s", got, id)
	}
}

// The same claim id in two calls at once: the second is told to try again, and
// then gets what the first got.
func TestClaimRepeatedWhileInFlight(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	w := newWorld(t, db.Conn(t))
	lockTimeout(t, w.conn, "1min") // or that would be what it is refused for
	agent := w.newAgent(t, "one")
	first := w.deploy(t, w.operator, snapshot("a"))
	w.deploy(t, w.operator, snapshot("b"))
	claim := uuid.New()
	tx, err := db.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const fetch = "SELECT provision_id FROM public.fetch_next_provision($1, $2, $3, $4)"
	if _, err := tx.Exec(t.Context(), fetch, w.tokenHash, agent.instance, agent.boot, claim); err != nil {
		t.Fatal(err)
	}
	repeated, again := make(chan error, 1), w.another(t)
	go func() {
		_, err := again.Exec(t.Context(), fetch, w.tokenHash, agent.instance, agent.boot, claim)
		repeated <- err
	}()
	w.awaitBlocked(t)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, <-repeated, "PT503", "busy")
	if got, err := agent.claim(t, claim); err != nil || got != first {
		t.Errorf("claim(same id) = %s, %v, want %s", got, err, first)
	}
}

// A repeated claim id is only for who chose it.
func TestClaimIsNotForOthers(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	owner, other := w.newAgent(t, "one"), w.newAgent(t, "two")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := owner.mustClaim(t)
	_, err := other.claim(t, claim)
	wantRefusal(t, err, "PT409", "claim_lost")

	foreign := w.foreignAgent(t)
	_, err = foreign.claim(t, claim)
	wantRefusal(t, err, "PT409", "claim_lost")
	before := one[string](t, w.conn, "SELECT lease_until::text FROM tendril.claims WHERE id = $1", claim)
	for _, a := range []*agent{foreign, other} {
		p, err := a.heartbeat(t, claim)
		if err != nil || len(p.Lost) != 1 || len(p.Cancel) != 0 {
			t.Errorf("heartbeat with another's claim = %+v, %v, want it lost", p, err)
		}
	}
	if after := one[string](t, w.conn, "SELECT lease_until::text FROM tendril.claims WHERE id = $1", claim); after != before {
		t.Error("another agent has renewed the lease")
	}
	// The same instance and host, under another cluster's token.
	foreign.instance, foreign.host, foreign.name = owner.instance, owner.host, "copy"
	if err := foreign.register(t); err != nil {
		t.Fatal(err)
	}
	if swept := foreign.sweep(t); len(swept) != 0 {
		t.Errorf("sweep with another cluster's token = %v, want nothing", swept)
	}
	if p, err := foreign.heartbeat(t, claim); err != nil || len(p.Lost) != 1 {
		t.Errorf("heartbeat with another cluster's token = %+v, %v, want the claim lost", p, err)
	}
	_, err = foreign.lines(t, claim, 1, "x\n")
	wantRefusal(t, err, "PT409", "claim_lost")
	wantRefusal(t, foreign.report(t, claim, "SUCCESS", `{}`), "PT409", "claim_lost")
}
