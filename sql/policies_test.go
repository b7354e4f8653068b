package sql_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// However many rows a statement reads, who the reader is and where they belong is
// looked up once.
func TestMembershipIsLookedUpOncePerStatement(t *testing.T) {
	t.Parallel()
	const many = 1000
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	// Rows by the thousand, of our organisation and of others.
	mustExec(t, s.conn, "CREATE TEMP TABLE org AS SELECT $1::uuid AS org UNION ALL SELECT $2", s.org, s.other)
	mustExec(t, s.conn, "SET session_replication_role = replica")
	for _, fill := range []string{
		"INSERT INTO public.orgs (name) SELECT 'org' FROM generate_series(1, $1) n",
		"INSERT INTO public.org_members SELECT org, gen_random_uuid(), 'viewer' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.clusters (org_id, name) SELECT org, 'c' || n FROM generate_series(1, $1) n, org",
		`INSERT INTO public.agents (org_id, cluster_id, instance_id, boot_id, name, host, version, contract, slots)
			SELECT org, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'a', 'h', '1', 1, 1 FROM generate_series(1, $1) n, org`,
		"INSERT INTO public.audit_events (org_id, action, object) SELECT org, 'a', 'o' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.templates (org_id, name, repo, version) SELECT org, 't' || n, 'r', 'v' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.template_pins (org_id, repo, version, commit) SELECT org, 'r', 'v' || n, repeat('a', 40) FROM generate_series(1, $1) n, org",
		"INSERT INTO public.cluster_pins (cluster_id, org_id, repo, version, commit) SELECT gen_random_uuid(), org, 'r', 'v' || n, repeat('a', 40) FROM generate_series(1, $1) n, org",
		"INSERT INTO public.template_inspections (org_id, repo, version, path, address) SELECT org, 'r', 'v' || n, '', 'r' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.template_tags (org_id, repo, tags) SELECT org, 'r' || n, '[]' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.workspaces (org_id, cluster_id, name) SELECT org, gen_random_uuid(), 'w' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot) SELECT org, gen_random_uuid(), gen_random_uuid(), '{}' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.provision_progress (provision_id, org_id, stage) SELECT gen_random_uuid(), org, 'plan' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.provision_stages (provision_id, org_id, attempt, stage, started_at) SELECT gen_random_uuid(), org, 1, 'plan', now() FROM generate_series(1, $1) n, org",
		"INSERT INTO public.provision_logs (provision_id, seq, org_id, stream_type, log_chunk, emitted_at) SELECT gen_random_uuid(), 1, org, 'STDOUT', 'x', now() FROM generate_series(1, $1) n, org",
		"INSERT INTO public.provision_log_archives SELECT gen_random_uuid(), 1, 1, org, 1, now(), '{STDOUT}', '{x}', ARRAY[now()], ARRAY[now()] FROM generate_series(1, $1) n, org",
		"INSERT INTO public.provision_events (provision_id, org_id, kind, at) SELECT gen_random_uuid(), org, 'k', now() FROM generate_series(1, $1) n, org",
		"INSERT INTO public.provision_inputs (provision_id, org_id, request, expires_at) SELECT gen_random_uuid(), org, '{}', now() FROM generate_series(1, $1) n, org",
		"INSERT INTO public.people SELECT org, gen_random_uuid(), 'n', 'e' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.invitations (org_id, email, role, expires_at) SELECT org, n || '@example.com', 'viewer', now() FROM generate_series(1, $1) n, org",
		`INSERT INTO public.webhooks (id, org_id, name, kind, host, events) SELECT gen_random_uuid(), org, 'n' || n, 'slack', 'h', '{drift}' FROM generate_series(1, $1) n, org`,
		"INSERT INTO public.webhook_deliveries (org_id, webhook_id, event, payload) SELECT org, gen_random_uuid(), 'test', '{}' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.resources (workspace_id, address, org_id, type) SELECT gen_random_uuid(), 'a', org, 't' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.machines (workspace_id, name, org_id, status) SELECT gen_random_uuid(), 'a', org, 'gone' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.pools (org_id, cluster_id, name, kind, reported_by, reported_at) SELECT org, gen_random_uuid(), 'p', 'static', org, now() FROM generate_series(1, $1) n, org",
		"INSERT INTO public.pool_nodes (pool_id, org_id, name, online, cores, memory_mib, measured_at) SELECT gen_random_uuid(), org, 'n', true, 1, 1, now() FROM generate_series(1, $1) n, org",
		"INSERT INTO public.pool_quotas (org_id, workspaces, machines) SELECT org, 'w' || n, 1 FROM generate_series(1, $1) n, org",
		"INSERT INTO public.pool_images (org_id, pool_id, image, name) SELECT org, gen_random_uuid(), 'i', 'n' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.reservations (org_id, pool_id, workspace_id, name, node, cores, memory_mib, why) SELECT org, gen_random_uuid(), gen_random_uuid(), 'm', 'n', 1, 1, 'w' FROM generate_series(1, $1) n, org",
		"INSERT INTO public.machine_events (machine_id, org_id, status) SELECT gen_random_uuid(), org, 'gone' FROM generate_series(1, $1) n, org",
	} {
		mustExec(t, s.conn, fill, many)
	}
	mustExec(t, s.conn, "SET session_replication_role = origin")
	mustExec(t, s.conn, "ANALYZE")
	mustExec(t, s.conn, "SET track_functions = 'all'")
	for table := range tables {
		for _, query := range []string{"SELECT count(*) FROM public.%s", "SELECT count(*) FROM (SELECT * FROM public.%s OFFSET 0) x"} {
			var rows int
			var before, after [2]int
			err := pgx.BeginFunc(t.Context(), s.conn, func(tx pgx.Tx) error {
				const count = `SELECT coalesce(sum(calls) FILTER (WHERE funcname = 'orgs_with_role'), 0), coalesce(sum(calls) FILTER (WHERE funcname = 'current_user_id'), 0)
					FROM pg_stat_xact_user_functions`
				err := tx.QueryRow(t.Context(), count).Scan(&before[0], &before[1])
				_, role := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', $1, true), set_config('role', 'authenticated', true)", fmt.Sprintf(`{"sub": %q}`, s.adminID))
				read := tx.QueryRow(t.Context(), fmt.Sprintf(query, table)).Scan(&rows)
				_, reset := tx.Exec(t.Context(), "RESET ROLE")
				return errors.Join(err, role, read, reset, tx.QueryRow(t.Context(), count).Scan(&after[0], &after[1]))
			})
			if err != nil {
				t.Fatal(err)
			}
			// orgs has one row of theirs; all of it is read all the same. A plan that
			// is made on the way asks once more who it is.
			if rows < many && table != "orgs" || after[0]-before[0] != 1 || after[1]-before[1] > 2 {
				t.Errorf("%s: %d rows visible after %d look-ups of memberships and %d of who asks, want thousands after one each",
					fmt.Sprintf(query, table), rows, after[0]-before[0], after[1]-before[1])
			}
		}
	}
}

// A view shows what its reader may see, not what its owner may.
func TestViewsAskTheirReader(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t, migrated).Conn(t)
	const owners = `SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('v', 'm')
		AND (relkind = 'm' OR NOT coalesce('security_invoker=true' = ANY (reloptions), false))`
	if got := one[int](t, conn, owners); got != 0 {
		t.Errorf("views that ask their owner = %d, want 0", got)
	}
	const open = `SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relrowsecurity`
	if got := one[int](t, conn, open); got != 0 {
		t.Errorf("tables without row-level security = %d, want 0", got)
	}
}
