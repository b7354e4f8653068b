package sql_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

type cronJob struct{ Name, Schedule, Command, Username, Database string }

// pg_cron comes after the migrations, as somebody else's.
func TestCron(t *testing.T) {
	t.Parallel()
	server := withPlugins(t, pgtest.WithSetting("shared_preload_libraries", "pg_cron"), pgtest.WithSetting("cron.use_background_workers", "on"))
	admin := open(t, server.URL)
	mustExec(t, admin, `CREATE ROLE owner LOGIN CREATEROLE PASSWORD 'pw-for-the-test'; GRANT CREATE ON DATABASE postgres TO owner;
		GRANT ALL ON SCHEMA public TO owner WITH GRANT OPTION`)
	url := asRole(t, server, "owner", "postgres")
	if _, err := tendrilsql.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	if one[bool](t, admin, "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_cron')") {
		t.Error("the migrations have installed pg_cron, want it left to its owner")
	}
	mustExec(t, admin, "CREATE EXTENSION pg_cron; REVOKE USAGE ON SCHEMA cron FROM PUBLIC")
	left, err := tendrilsql.UsePlatform(t.Context(), url)
	if want := []tendrilsql.Left{{RunAs: "a superuser", Statement: "GRANT USAGE ON SCHEMA cron TO owner"}}; err != nil || !slices.Equal(left, want) {
		t.Fatalf("UsePlatform(without a right to cron) = %v, %v, want %v", left, err, want)
	}
	mustExec(t, admin, left[0].Statement)
	if p, err := tendrilsql.Inspect(t.Context(), url); err != nil || len(p.Left) > 0 {
		t.Errorf("Inspect() = %v, %v, want nothing left", p.Left, err)
	}
	wantJobs(t, admin)
	reap := cronJob{"tendril-reap", "* * * * *", "SELECT tendril.reap()", "owner", "postgres"}
	drift := cronJob{"tendril-drift", "* * * * *", "SELECT tendril.queue_drift()", "owner", "postgres"}
	inspect := cronJob{"tendril-inspect", "* * * * *", "SELECT tendril.hand_inspections()", "owner", "postgres"}
	expire := cronJob{"tendril-expire", "* * * * *", "SELECT tendril.expire()", "owner", "postgres"}
	usage := cronJob{"tendril-usage", "* * * * *", "SELECT tendril.measure_usage()", "owner", "postgres"}
	logs := cronJob{"tendril-logs", "* * * * *", "SELECT tendril.archive_logs(), tendril.delete_logs()", "owner", "postgres"}
	for range 2 {
		if left, err := tendrilsql.UsePlatform(t.Context(), url); err != nil || len(left) > 0 {
			t.Errorf("UsePlatform() = %v, %v, want nothing left", left, err)
		}
		wantJobs(t, admin, drift, expire, inspect, logs, reap, usage)
	}

	// What was changed by hand stays.
	mustExec(t, admin, "UPDATE cron.job SET schedule = '*/2 * * * *' WHERE jobname = 'tendril-reap'")
	if _, err := tendrilsql.UsePlatform(t.Context(), url); err != nil {
		t.Error(err)
	}
	reap.Schedule = "*/2 * * * *"
	wantJobs(t, admin, drift, expire, inspect, logs, reap, usage)

	// What an earlier version wrote is brought up, under the schedule that it has.
	mustExec(t, admin, "UPDATE cron.job SET command = 'SELECT tendril.expire_blobs()', schedule = '*/3 * * * *' WHERE jobname = 'tendril-expire'")
	if left, err := tendrilsql.UsePlatform(t.Context(), url); err != nil || len(left) > 0 {
		t.Errorf("UsePlatform(with a job of an earlier version) = %v, %v, want nothing left", left, err)
	}
	expire.Schedule = "*/3 * * * *"
	wantJobs(t, admin, drift, expire, inspect, logs, reap, usage)

	// Its role may do what it says: when the test has it, and not at the full minute
	// as well.
	mustExec(t, admin, "UPDATE cron.job SET active = false")
	w := newWorld(t, admin)
	agent := w.newAgent(t, "one")
	id := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	w.expire(t, claim)
	mustExec(t, open(t, asRole(t, server, reap.Username, reap.Database)), reap.Command)
	applied := w.deploy(t, w.operator, snapshot("drifting"))
	agent.run(t, "SUCCESS", "{}")
	mustExec(t, admin, "UPDATE public.workspaces SET drift_every = '1 day', drift_due_at = now() WHERE name = 'drifting'")
	mustExec(t, open(t, asRole(t, server, drift.Username, drift.Database)), drift.Command)
	if got := one[string](t, admin, "SELECT operation || ' ' || status FROM public.provisions WHERE workspace_id = (SELECT workspace_id FROM public.provisions WHERE id = $1) AND id <> $1", applied); got != "refresh QUEUED" {
		t.Errorf("queued by the job = %s, want a refresh", got)
	}
	mustExec(t, open(t, asRole(t, server, expire.Username, expire.Database)), expire.Command)
	mustExec(t, admin, "SELECT tendril.system_line($1, 'old')", applied)
	w.age(t, applied, "8 days")
	mustExec(t, open(t, asRole(t, server, logs.Username, logs.Database)), logs.Command)
	if got := one[int](t, admin, "SELECT count(*) FROM public.provision_log_archives WHERE provision_id = $1", applied); got != 1 {
		t.Errorf("logs put together by the job = %d, want the old one", got)
	}
	if got := w.statusAndCode(t, id); got != "FAILED/agent_lost" {
		t.Errorf("status after the job = %s, want FAILED/agent_lost", got)
	}
}

func wantJobs(t *testing.T, conn *pgx.Conn, want ...cronJob) {
	t.Helper()
	rows, err := conn.Query(t.Context(), "SELECT jobname, schedule, command, username, database FROM cron.job ORDER BY jobname")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[cronJob]); err != nil || !slices.Equal(got, want) {
		t.Errorf("cron.job = %v, %v, want %v", got, err, want)
	}
}
