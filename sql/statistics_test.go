package sql_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// statistics is what tendril.statistics() answers.
type statistics struct {
	Contract, Migration int
	Clusters            []clusterStatistics
	Omitted             int
	Statuses            map[string]int
	OverdueLeases       int `json:"overdue_leases"`
	Webhooks            struct {
		Waiting int
		Overdue float64
	}
	DatabaseBytes int64 `json:"database_bytes"`
	LogBytes      int64 `json:"log_bytes"`
}

type clusterStatistics struct {
	ID                        uuid.UUID
	Paused                    bool
	Queued, Runnable, Running int
	Oldest                    *float64
	OldestRunnable            *float64 `json:"oldest_runnable"`
	Online, Stale, Offline    int
	Slots                     int
}

func (w *world) statistics(t *testing.T, clusters int) (s statistics) {
	t.Helper()
	if err := json.Unmarshal([]byte(one[string](t, w.conn, "SELECT tendril.statistics($1)::text", clusters)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// Each number, after a scene in which all of them differ.
func TestStatistics(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	queue := func(workspace, ago string) {
		id := w.deploy(t, w.operator, snapshot(workspace))
		mustExec(t, w.conn, "UPDATE public.provisions SET created_at = clock_timestamp() - $2::interval WHERE id = $1", id, ago)
	}
	queue("busy", "3 hours")
	if _, got := agent.mustClaim(t); got == uuid.Nil {
		t.Fatal("nothing to claim")
	}
	queue("busy", "2 hours")
	queue("busy", "1 hour")
	queue("idle", "10 minutes")
	queue("locked", "30 minutes")
	mustExec(t, w.conn, "UPDATE public.workspaces SET locked_at = now(), lock_reason = 'x' WHERE name = 'locked'")
	for name, ago := range map[string]string{"two": "1 minute", "three": "1 hour", "gone": "2 days", "ahead": "-3 minutes", "moved": "1 hour"} {
		w.newAgent(t, name)
		mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = clock_timestamp() - $2::interval WHERE name = $1", name, ago)
	}
	w.newAgent(t, "moved") // with another data directory
	s := w.statistics(t, 10)
	if len(s.Clusters) != 1 || s.Clusters[0].ID != w.cluster {
		t.Fatalf("clusters = %+v, want the one", s.Clusters)
	}
	c := s.Clusters[0]
	oldest, runnable := c.Oldest, c.OldestRunnable
	c.Oldest, c.OldestRunnable = nil, nil
	if want := (clusterStatistics{ID: w.cluster, Queued: 4, Runnable: 1, Running: 1, Online: 2, Stale: 1, Offline: 1, Slots: 4}); c != want {
		t.Errorf("the cluster = %+v, want %+v", c, want)
	}
	for name, at := range map[string]struct {
		got  *float64
		want float64
	}{"oldest": {oldest, 7200}, "oldest runnable": {runnable, 600}} {
		if at.got == nil || *at.got < at.want || *at.got > at.want+60 {
			t.Errorf("%s = %v, want %v and a moment", name, at.got, at.want)
		}
	}
	if s.Statuses["QUEUED"] != 4 || s.Statuses["PROCESSING"] != 1 || s.Statuses["AWAITING_APPROVAL"] != 0 || len(s.Statuses) != 4 {
		t.Errorf("statuses = %v, want 4 queued, 1 processing", s.Statuses)
	}
	if s.Contract != one[int](t, w.conn, "SELECT tendril.contract_version()") || s.Migration < 28 || s.DatabaseBytes < 1<<20 || s.LogBytes < 8<<10 {
		t.Errorf("contract, migration, bytes = %d, %d, %d, %d, want those of the database", s.Contract, s.Migration, s.DatabaseBytes, s.LogBytes)
	}

	// Statuses, and what is overdue, from another moment.
	mustExec(t, w.conn, "UPDATE tendril.claims SET lease_until = clock_timestamp() - interval '2 minutes'")
	mustExec(t, w.conn, "UPDATE public.clusters SET paused_at = now()")
	mustExec(t, w.conn, `INSERT INTO public.webhook_deliveries (org_id, webhook_id, event, payload, next_at)
		SELECT $1, gen_random_uuid(), 'x', '{}', clock_timestamp() + n * interval '1 minute' FROM unnest('{-2,5,null}'::int[]) n`, w.org)
	s = w.statistics(t, 10)
	if s.OverdueLeases != 1 || !s.Clusters[0].Paused || s.Webhooks.Waiting != 2 || s.Webhooks.Overdue < 120 || s.Webhooks.Overdue > 180 {
		t.Errorf("statistics = %+v, want a lease overdue, a cluster paused, 2 deliveries waiting of which one for 2 minutes", s)
	}
	if mustExec(t, w.conn, "SELECT tendril.reap()"); w.statistics(t, 10).Clusters[0].Running != 0 {
		t.Errorf("after reaping %+v runs", w.statistics(t, 10))
	}
}

// What awaits approval is counted as that, and approved as queued again.
func TestStatisticsOfApprovals(t *testing.T) {
	t.Parallel()
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	want := map[string]int{}
	for _, status := range []string{"QUEUED", "PROCESSING", "AWAITING_APPROVAL"} {
		want[status] = one[int](t, s.conn, "SELECT count(*) FROM public.provisions WHERE status = $1", status)
	}
	if want["AWAITING_APPROVAL"] == 0 || want["PROCESSING"] == 0 {
		t.Fatalf("the scene has %v, want one of each", want)
	}
	got := s.statistics(t, 10)
	for status, count := range want {
		if got.Statuses[status] != count {
			t.Errorf("%s = %d, want %d", status, got.Statuses[status], count)
		}
	}
	s.as(t, "authenticated", s.adminID, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.approve_provision($1, $2)", s.awaiting, aPlan)
		return err
	})
	if got := s.statistics(t, 10); got.Statuses["AWAITING_APPROVAL"] != want["AWAITING_APPROVAL"]-1 || got.Statuses["QUEUED"] != want["QUEUED"]+1 {
		t.Errorf("after the approval = %v, before %v", got.Statuses, want)
	}
}

// Clusters are bounded in number, and where something waits comes first.
func TestStatisticsBoundClusters(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "INSERT INTO public.clusters (org_id, name) SELECT $1, 'c' || n FROM generate_series(1, 20) n", w.org)
	w.deploy(t, w.operator, snapshot("a"))
	s := w.statistics(t, 5)
	if len(s.Clusters) != 5 || s.Omitted != 16 || s.Clusters[0].ID != w.cluster || s.Statuses["QUEUED"] != 1 {
		t.Errorf("statistics(5) of 21 clusters = %d clusters, %d omitted, first %s, %v, want 5, 16, the one where something waits", len(s.Clusters), s.Omitted, s.Clusters[0].ID, s.Statuses)
	}
	if s := w.statistics(t, 0); len(s.Clusters) != 0 || s.Omitted != 21 || s.Statuses["QUEUED"] != 1 {
		t.Errorf("statistics(0) = %+v, want the totals", s)
	}
}

// Nobody but the owner may ask.
func TestStatisticsAreTheOwners(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, role := range []string{"anon", "authenticated", "service_role", "tendril_agent"} {
		err := w.try(t, role, w.adminID, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "SELECT tendril.statistics()")
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("statistics() as %s = %v, want it denied", role, err)
		}
	}
}

// However much has ended, it is not read: neither row by row nor as an index.
func TestStatisticsReadNothingThatHasEnded(t *testing.T) {
	t.Parallel()
	const ended, queued = 20_000, 500
	w := newContract(t)
	w.history(t, ended, queued)
	for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
		mustExec(t, w.conn, "SET plan_cache_mode = "+mode)
		var s statistics
		read, wrote := w.reading(t, func(tx pgx.Tx) error {
			var text string
			err := tx.QueryRow(t.Context(), "SELECT tendril.statistics()::text").Scan(&text)
			if err == nil {
				err = json.Unmarshal([]byte(text), &s)
			}
			return err
		})
		if s.Statuses["QUEUED"] != queued || wrote {
			t.Errorf("statistics = %v, wrote: %t, want %d queued", s.Statuses, wrote, queued)
		}
		if read > 10*queued {
			t.Errorf("%s: read %d rows where %d had ended and %d are queued", mode, read, ended, queued)
		}
	}
}

// history fills the database with runs that have ended, 20 in a workspace, and some
// that wait, half of these in one workspace.
func (w *world) history(t testing.TB, ended, queued int) {
	t.Helper()
	for _, statement := range []struct {
		query string
		args  []any
	}{
		{"SET session_replication_role = replica", nil},
		{"INSERT INTO public.workspaces (org_id, cluster_id, name) SELECT $1, $2, n::text FROM generate_series(1, $3::int) n", []any{w.org, w.cluster, max(ended/20, queued/2+1)}},
		{`INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot, status)
			SELECT org_id, cluster_id, id, '{}', 'SUCCESS' FROM public.workspaces, generate_series(1, 20) WHERE name::int <= $1`, []any{ended / 20}},
		{`INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, state, lease_until)
			SELECT gen_random_uuid(), id, workspace_id, cluster_id, org_id, org_id, 'h', 'ended', now() FROM public.provisions`, nil},
		{`INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot)
			SELECT org_id, cluster_id, id, jsonb_build_object('as long as others', repeat('x', 800)) FROM public.workspaces, LATERAL generate_series(1, CASE name WHEN '1' THEN $1::int ELSE 1 END) WHERE name::int <= $1 + 1`, []any{queued / 2}},
		{`UPDATE public.workspaces w SET head_id = p.id, head_priority = 0, head_number = p.number
			FROM (SELECT DISTINCT ON (workspace_id) id, workspace_id, number FROM public.provisions WHERE status = 'QUEUED' ORDER BY workspace_id, number) p
			WHERE p.workspace_id = w.id`, nil},
		{"SET session_replication_role = origin", nil},
		{"VACUUM ANALYZE", nil},
	} {
		if _, err := w.conn.Exec(t.Context(), statement.query, statement.args...); err != nil {
			t.Fatalf("%s: %v", statement.query, err)
		}
	}
}
