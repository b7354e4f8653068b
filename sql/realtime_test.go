package sql_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// withPlugins starts a server that has what Debian packages for it.
func withPlugins(t *testing.T, options ...pgtest.OwnOption) *pgtest.Own {
	t.Helper()
	if bin := os.Getenv("TENDRIL_TEST_POSTGRES_BIN"); bin != "" {
		t.Skipf("%s may lack wal2json and pg_cron", bin)
	}
	return pgtest.OwnServer(t, options...)
}

// change is what Realtime reads of one row, by wal2json.
type change struct {
	Action            string
	Table             string
	Columns, Identity []column
	PK                []struct{ Name string }
}

type column struct {
	Name  string
	Value any
}

// value is a column's, as text.
func (c change) value(name string) string {
	for _, col := range append(c.Columns, c.Identity...) {
		if col.Name == name {
			return fmt.Sprint(col.Value)
		}
	}
	return ""
}

// changes reads what the slot has, of the tables in the publication.
func changes(t *testing.T, conn *pgx.Conn) []change {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT data FROM pg_logical_slot_get_changes('realtime', NULL, NULL, 'format-version', '2', 'include-transaction', 'false',
		'include-pk', 'true', 'add-tables', $1)`, strings.Join(published(t, conn), ","))
	if err != nil {
		t.Fatal(err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	all := make([]change, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal([]byte(text), &all[i]); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return all
}

// A run as Realtime sees it, and who is told of which row.
func TestRealtime(t *testing.T) {
	t.Parallel()
	server := withPlugins(t, pgtest.WithSetting("wal_level", "logical"), pgtest.Durable()) // a slot shows what is flushed
	if _, err := tendrilsql.Migrate(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	conn := open(t, server.URL)
	w := newWorld(t, conn)
	agent, foreign := w.newAgent(t, "one"), w.foreignAgent(t)
	mustExec(t, conn, "SELECT pg_create_logical_replication_slot('realtime', 'wal2json')")

	mustExec(t, conn, "UPDATE public.clusters SET last_seen_at = NULL")
	if _, err := agent.heartbeat(t); err != nil {
		t.Error(err)
	}
	ours := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	theirWorld := *foreign.w
	theirs := theirWorld.deploy(t, w.stranger, snapshot("b"))
	theirClaim, _ := foreign.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", `{"stage": "plan"}`)
	foreign.mustReport(t, theirClaim, "PROCESSING", `{"stage": "plan"}`)
	// The database itself writes lines at the same time, in transactions that
	// take a while to commit.
	var wg sync.WaitGroup
	second := open(t, server.URL)
	wg.Go(func() {
		for range 20 {
			if _, err := second.Exec(t.Context(), "SELECT tendril.system_line($1, 'the database says'), pg_sleep(0.003)", ours); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range int64(20) {
		if _, err := agent.lines(t, claim, 2*i+1, "one\n", "two\n"); err != nil {
			t.Error(err)
		}
		agent.mustReport(t, claim, "PROCESSING", fmt.Sprintf(`{"percent": %d}`, i))
	}
	wg.Wait()
	if _, err := foreign.lines(t, theirClaim, 1, "theirs\n"); err != nil {
		t.Error(err)
	}
	agent.mustReport(t, claim, "SUCCESS", "{}")
	foreign.mustReport(t, theirClaim, "FAILED", `{"error_code": "apply_failed"}`)

	all := changes(t, conn)
	seen, seq := map[string]int{}, map[string]int{}
	for _, c := range all {
		seen["public."+c.Table]++
		if c.Table != "provision_logs" {
			continue
		}
		id := c.value("provision_id")
		if seq[id]++; c.value("seq") != fmt.Sprint(seq[id]) {
			t.Errorf("the log row no. %d of %s that came has seq %s", seq[id], id, c.value("seq"))
		}
	}
	if got := seq[ours.String()]; got < 60 {
		t.Errorf("log rows of the run that came = %d, want 60 at least", got)
	}
	if seq[theirs.String()] == 0 {
		t.Error("no log row of the other organisation's run came")
	}
	for _, table := range realtimeTables {
		if seen[table] == 0 {
			t.Errorf("no change of %s came", table)
		}
	}
	w.eachSees(t, all)
	deleted(t, conn, ours)
}

// eachSees asks for each changed row, as each kind of viewer, as Realtime does:
// by its primary key, under the viewer's role and claims.
func (w *world) eachSees(t *testing.T, all []change) {
	t.Helper()
	for _, viewer := range []struct {
		name, role string
		user       uuid.UUID
		org        string
	}{
		{"viewer", "authenticated", w.viewer, w.org.String()},
		{"operator", "authenticated", w.operator, w.org.String()},
		{"admin", "authenticated", w.adminID, w.org.String()},
		{"stranger", "authenticated", w.stranger, one[string](t, w.conn, "SELECT org_id::text FROM public.org_members WHERE user_id = $1", w.stranger)},
		{"nobody", "authenticated", uuid.Nil, "none"},
		{"anon", "anon", w.operator, "none"},
	} {
		saw := 0
		w.as(t, viewer.role, viewer.user, func(tx pgx.Tx) error {
			for _, c := range all {
				visible, err := sees(t, tx, viewer.role, c)
				if err != nil {
					return err
				}
				if want := c.value("org_id") == viewer.org; visible != want {
					t.Errorf("%s sees %s of %s = %t, want %t", viewer.name, c.Action, c.Table, visible, want)
				}
				if visible {
					saw++
				}
			}
			return nil
		})
		if want := viewer.org != "none"; (saw > 0) != want {
			t.Errorf("%s saw %d rows, want some = %t", viewer.name, saw, want)
		}
	}
}

func sees(t *testing.T, tx pgx.Tx, role string, c change) (visible bool, err error) {
	t.Helper()
	table := pgx.Identifier{"public", c.Table}.Sanitize()
	if err := tx.QueryRow(t.Context(), "SELECT has_table_privilege($1, $2, 'SELECT')", role, table).Scan(&visible); err != nil || !visible {
		return false, err
	}
	var conditions []string
	var values []any
	for i, pk := range c.PK {
		conditions = append(conditions, fmt.Sprintf("%s::text = $%d", pgx.Identifier{pk.Name}.Sanitize(), i+1))
		values = append(values, c.value(pk.Name))
	}
	err = tx.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM "+table+" WHERE "+strings.Join(conditions, " AND ")+")", values...).Scan(&visible)
	return visible, err
}

// No policy can be asked about a row that is gone, so everybody is told: of its
// key, and of nothing else.
func deleted(t *testing.T, conn *pgx.Conn, provision uuid.UUID) {
	t.Helper()
	mustExec(t, conn, "DELETE FROM public.provision_logs WHERE provision_id = $1 AND seq = 1", provision)
	all := changes(t, conn)
	if len(all) != 1 || all[0].Action != "D" || len(all[0].Columns) > 0 || len(all[0].Identity) != 2 ||
		all[0].value("provision_id") != provision.String() || all[0].value("seq") != "1" {
		t.Errorf("what comes of a DELETE = %+v, want the key alone", all)
	}
}

// meaningless are the columns that a DELETE may tell to everybody: random ids, and
// numbers within one of them.
var meaningless = map[string]string{
	"agents": "id", "audit_events": "id", "cluster_pins": "row_id", "clusters": "id", "invitations": "id", "machine_events": "id", "machines": "id", "org_members": "row_id", "orgs": "id",
	"people": "row_id", "pools": "id", "pool_nodes": "id", "pool_images": "id", "pool_quotas": "id", "reservations": "id", "provision_events": "id", "provision_inputs": "provision_id", "provision_log_archives": "provision_id last_seq", "provision_logs": "provision_id seq",
	"provision_progress": "provision_id", "provision_stages": "provision_id attempt stage", "provisions": "id", "resources": "row_id",
	"template_inspections": "row_id", "template_pins": "row_id", "template_tags": "row_id", "templates": "id", "webhook_deliveries": "id",
	"webhooks": "id", "workspaces": "id",
}

// Where a publication covers all tables, Realtime tells everybody of each deleted row,
// as far as it is its replica identity.
func TestDeletedRowsTellStrangersNothing(t *testing.T) {
	t.Parallel()
	server := pgtest.OwnServer(t, pgtest.WithSetting("wal_level", "logical"), pgtest.Durable())
	if _, err := tendrilsql.Migrate(t.Context(), server.URL); err != nil {
		t.Fatal(err)
	}
	conn := open(t, server.URL)
	identities, err := conn.Query(t.Context(), `
		SELECT c.relname, coalesce((SELECT string_agg(a.attname, ' ' ORDER BY k.n) FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k (attnum, n)
		    JOIN pg_attribute a ON a.attnum = k.attnum
		    WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END), c.relreplident::text)
		FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')`)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	var table, columns string
	if _, err := pgx.ForEachRow(identities, []any{&table, &columns}, func() error { got[table] = columns; return nil }); err != nil {
		t.Fatal(err)
	}
	for table, columns := range got {
		if meaningless[table] != columns {
			t.Errorf("a DELETE from public.%s tells everybody %q, want %q", table, columns, meaningless[table])
		}
	}
	if len(got) != len(meaningless) {
		t.Errorf("schema public has %d tables, want %d", len(got), len(meaningless))
	}
	// Nobody watches the tables of the schema tendril: Realtime asks for SELECT.
	if open := one[[]string](t, conn, `SELECT coalesce(array_agg(c.oid::regclass::text || ' by ' || r.role), '{}')
		FROM pg_class c CROSS JOIN unnest(ARRAY['anon', 'authenticated', 'service_role', 'tendril_agent']) r (role)
		WHERE c.relnamespace = 'tendril'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND has_any_column_privilege(r.role, c.oid, 'SELECT')`); len(open) > 0 {
		t.Errorf("tables of the schema tendril can be watched: %v", open)
	}
	// And what the server does send.
	mustExec(t, conn, "CREATE PUBLICATION everything FOR ALL TABLES")
	mustExec(t, conn, "SELECT pg_create_logical_replication_slot('watcher', 'test_decoding')")
	mustExec(t, conn, `
		INSERT INTO public.orgs (id, name) VALUES ('00000000-0000-0000-0000-00000000aaaa', 'telling');
		INSERT INTO public.clusters (id, org_id, name) VALUES ('00000000-0000-0000-0000-00000000bbbb', '00000000-0000-0000-0000-00000000aaaa', 'telling');
		INSERT INTO public.org_members (org_id, user_id, role) VALUES ('00000000-0000-0000-0000-00000000aaaa', '00000000-0000-0000-0000-00000000cccc', 'viewer');
		INSERT INTO public.people (org_id, user_id, name, email) VALUES ('00000000-0000-0000-0000-00000000aaaa', '00000000-0000-0000-0000-00000000cccc', 'telling', 'telling@example.com');
		INSERT INTO public.template_pins (org_id, repo, version, commit) VALUES ('00000000-0000-0000-0000-00000000aaaa', 'https://telling.example/x', 'v1', repeat('a', 40));
		INSERT INTO public.template_tags (org_id, repo, tags) VALUES ('00000000-0000-0000-0000-00000000aaaa', 'https://telling.example/x', '[]');
		INSERT INTO public.cluster_pins (cluster_id, repo, version, commit, org_id)
		VALUES ('00000000-0000-0000-0000-00000000bbbb', 'https://telling.example/x', 'v1', repeat('a', 40), '00000000-0000-0000-0000-00000000aaaa')`)
	mustExec(t, conn, "SELECT count(*) FROM pg_logical_slot_get_changes('watcher', NULL, NULL)")
	mustExec(t, conn, `
		DELETE FROM public.cluster_pins; DELETE FROM public.template_tags; DELETE FROM public.template_pins; DELETE FROM public.people; DELETE FROM public.org_members`)
	sent := one[[]string](t, conn, "SELECT array_agg(data) FROM pg_logical_slot_get_changes('watcher', NULL, NULL) WHERE data LIKE '%DELETE%'")
	if len(sent) != 5 {
		t.Errorf("%d deletes were sent, want 5: %q", len(sent), sent)
	}
	for _, line := range sent {
		if !strings.Contains(line, "DELETE: row_id[uuid]:") || strings.Count(line, "[") != 1 {
			t.Errorf("a DELETE is sent as %q, want row_id alone", line)
		}
	}
}
