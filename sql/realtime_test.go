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

	"github.com/tendril-run/tendril/internal/pgtest"
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
