package sql_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/testkit/olddb"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// before40 is the contract of the release before the baseline.
var before40 = pgtest.All(pgtest.WithStart("UPDATE tendril.pulse SET stamped_at = clock_timestamp()"), pgtest.WithSetup("migration 40", olddb.At("40")))

// busyAgents are agents with a run in flight each: they renew its lease and append to its
// log without a pause.
const busyAgents = 8

func TestMigrateUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	migrateUnderLoad(t)
}

// BenchmarkMigrateUnderLoad reports the longest that a call of an agent took, its retries
// included, while the release before was migrated to this one.
func BenchmarkMigrateUnderLoad(b *testing.B) {
	var stalls []time.Duration
	for b.Loop() {
		stalls = append(stalls, migrateUnderLoad(b))
	}
	b.ReportMetric(float64(slices.Max(stalls).Milliseconds()), "stall-ms")
}

// migrateUnderLoad migrates a database in use, fails the test where a line or a claim is
// lost, and returns the longest that an agent waited for an answer.
func migrateUnderLoad(tb testing.TB) (stall time.Duration) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 5*time.Minute)
	defer cancel()
	db := pgtest.New(tb, before40)
	conn := db.Conn(tb)
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	var org, cluster uuid.UUID
	const token = "a token"
	must(conn.QueryRow(ctx, "INSERT INTO public.orgs (name) VALUES ('acme') RETURNING id").Scan(&org))
	must(conn.QueryRow(ctx, "INSERT INTO public.clusters (org_id, name) VALUES ($1, 'prod') RETURNING id", org).Scan(&cluster))
	_, err := conn.Exec(ctx, "INSERT INTO tendril.cluster_tokens (cluster_id, digest) VALUES ($1, sha256(decode($2, 'hex')))", cluster, hashOf(token))
	must(err)
	for n := range busyAgents {
		_, err := conn.Exec(ctx, "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", cluster, snapshot(fmt.Sprintf("ws-%d", n)))
		must(err)
	}

	agents := make([]*busyAgent, busyAgents)
	for n := range agents {
		own, err := pgx.Connect(ctx, db.URL)
		must(err)
		defer own.Close(context.WithoutCancel(ctx)) //nolint:errcheck // a test's
		agents[n] = &busyAgent{conn: own, token: hashOf(token), name: fmt.Sprint("agent-", n), instance: uuid.New(), boot: uuid.New(), claim: uuid.New(), next: 1}
		must(agents[n].begin(ctx))
	}
	migrated := make(chan struct{})
	var all sync.WaitGroup
	errs := make([]error, busyAgents)
	for n, a := range agents {
		all.Go(func() { errs[n] = a.work(ctx, migrated) })
	}
	for _, a := range agents { // each is at work
		for a.lines.Load() < 20 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}
	ran, err := tendrilsql.Migrate(ctx, db.URL)
	close(migrated)
	all.Wait()
	must(errors.Join(append(errs, err)...))
	if ran == 0 {
		tb.Fatal("nothing was migrated")
	}
	for _, a := range agents {
		stall = max(stall, a.longest)
		var status string
		var lines, last int64
		must(conn.QueryRow(ctx, `SELECT p.status, count(*), max(l.seq) FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id
			JOIN public.provision_logs l ON l.provision_id = p.id AND l.stream_type = 'STDOUT' WHERE c.id = $1 GROUP BY 1`, a.claim).Scan(&status, &lines, &last))
		if want := a.lines.Load(); status != "SUCCESS" || lines != want {
			tb.Errorf("%s: %s with %d lines, want SUCCESS with the %d that were sent", a.name, status, lines, want)
		}
	}
	return stall
}

// busyAgent is an agent in a goroutine of its own.
type busyAgent struct {
	conn                  *pgx.Conn
	token, name           string
	instance, boot, claim uuid.UUID
	next                  int64
	lines                 atomic.Int64
	longest               time.Duration
}

// begin registers the agent and claims a run.
func (a *busyAgent) begin(ctx context.Context) error {
	about := map[string]any{"instance_id": a.instance, "boot_id": a.boot, "name": a.name, "host": a.name + ".example", "version": "test", "contract": 4, "slots": 1} // of that release
	if err := a.call(ctx, "SELECT public.register_agent($1, $2)", a.token, about); err != nil {
		return err
	}
	return a.call(ctx, "SELECT provision_id FROM public.fetch_next_provision($1, $2, $3, $4)", a.token, a.instance, a.boot, a.claim)
}

// work renews and appends until stop is closed, and once more; then the run is over.
func (a *busyAgent) work(ctx context.Context, stop <-chan struct{}) error {
	for last := false; ; {
		var pulse struct{ Lost []uuid.UUID }
		if err := a.ask(ctx, &pulse, "SELECT public.agent_heartbeat($1, $2, $3, $4)", a.token, a.instance, a.boot, []uuid.UUID{a.claim}); err != nil {
			return err
		}
		if len(pulse.Lost) > 0 {
			return fmt.Errorf("%s: the claim is lost", a.name)
		}
		line := []map[string]any{{"stream": "STDOUT", "text": "a line\n", "at": "2026-01-02T03:04:05Z"}}
		if err := a.ask(ctx, &a.next, "SELECT public.insert_provision_log($1, $2, $3, $4)", a.token, a.claim, a.next, line); err != nil {
			return err
		}
		a.lines.Add(1)
		if last {
			break
		}
		select {
		case <-stop:
			last = true
		default:
		}
	}
	if err := a.call(ctx, "SELECT public.update_provision_status($1, $2, 'PROCESSING', $3)", a.token, a.claim, json.RawMessage(applying)); err != nil {
		return err
	}
	return a.call(ctx, "SELECT public.update_provision_status($1, $2, 'SUCCESS', '{}')", a.token, a.claim)
}

func (a *busyAgent) call(ctx context.Context, query string, args ...any) error {
	var ignored any
	return a.ask(ctx, &ignored, query, args...)
}

// ask repeats a call while it is refused for a lock, as agents do, and keeps the longest
// time until an answer.
func (a *busyAgent) ask(ctx context.Context, into any, query string, args ...any) error {
	began := time.Now()
	defer func() { a.longest = max(a.longest, time.Since(began)) }()
	for {
		err := a.conn.QueryRow(ctx, query, args...).Scan(into)
		refused, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || refused.Code != "55P03" && refused.Code != "PT503" {
			return err
		}
	}
}
