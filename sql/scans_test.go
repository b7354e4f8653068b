package sql_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/patience"
)

// At ten thousand agents no call of an agent reads a table from its beginning to its end.
func TestAgentsScanNothing(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a, j := w.newAgent(t, "one"), w.newJoiner(t)
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.create_cluster('c' || n) FROM generate_series(1, 99) n")
		return err
	})
	mustExec(t, w.conn, "INSERT INTO tendril.agent_keys (cluster_id, public_key, name) VALUES ($1, $2, 'keyed')", w.cluster, []byte(j.key))
	mustExec(t, w.conn, "INSERT INTO tendril.identity_shares (key_id, shared_by, sealed, expires_at) SELECT id, id, $1, now() + interval '1 day' FROM tendril.agent_keys", sealedShare)
	w.deploy(t, w.operator, snapshot("over"))
	claim, _ := a.mustClaim(t)
	a.mustReport(t, claim, "PROCESSING", applying)
	if _, err := a.lines(t, claim, 1, "a line\n"); err != nil {
		t.Fatal(err)
	}
	a.mustReport(t, claim, "SUCCESS", `{}`)
	// Many of each, as those are; with triggers a row each would take minutes.
	mustExec(t, w.conn, "SET session_replication_role = replica")
	for _, many := range []struct{ table, where, other string }{
		{"public.agents", "name = 'one'", `'id', md5(n::text)::uuid, 'instance_id', md5(n::text)::uuid, 'boot_id', md5(n::text)::uuid, 'name', 'agent-' || n, 'cluster_id', c.c_id`},
		{"tendril.agent_keys", "name = 'keyed'", `'id', md5(n::text)::uuid, 'public_key', '\x' || encode(sha256(n::text::bytea), 'hex'), 'name', 'agent-' || n, 'cluster_id', c.c_id`},
		{"tendril.identity_shares", "true", `'key_id', md5(n::text)::uuid`},
		{"public.workspaces", "name = 'over'", `'id', md5(n::text)::uuid, 'name', 'over-' || n, 'cluster_id', c.c_id`},
		{"public.provisions", "status = 'SUCCESS'", `'id', md5(n::text)::uuid, 'cluster_id', c.c_id, 'workspace_id', md5(n::text)::uuid`},
		{"tendril.claims", "state <> 'running'", `'id', md5(n::text)::uuid, 'cluster_id', c.c_id`},
		{"tendril.log_heads", "true", `'provision_id', md5(n::text)::uuid`},
	} {
		columns := one[string](t, w.conn, "SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity <> 'a'", many.table)
		mustExec(t, w.conn, fmt.Sprintf(`WITH c AS (SELECT id AS c_id, row_number() OVER () - 1 AS nth FROM public.clusters WHERE name LIKE 'c%%')
			INSERT INTO %[1]s (%[4]s) SELECT %[4]s FROM (SELECT to_jsonb(t) AS row FROM %[1]s t WHERE %[2]s LIMIT 1) r, generate_series(1, 10000) n JOIN c ON c.nth = n %% 99,
			LATERAL jsonb_populate_record(NULL::%[1]s, r.row || jsonb_build_object(%[3]s)) made`,
			many.table, many.where, many.other, columns))
	}
	mustExec(t, w.conn, "RESET session_replication_role")
	if _, err := w.conn.Exec(t.Context(), "VACUUM ANALYZE"); err != nil {
		t.Fatal(err)
	}
	w.deploy(t, w.operator, snapshot("running"))
	running, _ := a.mustClaim(t)
	a.mustReport(t, running, "PROCESSING", applying)
	w.deploy(t, w.operator, snapshot("queued"))

	about, err := json.Marshal(map[string]any{"instance_id": a.instance, "boot_id": a.boot, "name": a.name, "host": a.host, "version": "test", "contract": 9, "slots": 2})
	if err != nil {
		t.Fatal(err)
	}
	beat := `{"free": true, "poll": true}`
	for name, call := range map[string]struct {
		query string
		args  []any
	}{
		"register":             {"SELECT public.register_agent($1, $2)::text", []any{about}},
		"check":                {"SELECT public.check_agent($1, $2)::text", []any{about}},
		"heartbeat":            {"SELECT public.agent_heartbeat($1, $2, $3, '{}')::text", []any{a.instance, a.boot}},
		"heartbeat with lease": {"SELECT public.agent_heartbeat($1, $2, $3, ARRAY[$4::uuid])::text", []any{a.instance, a.boot, running}},
		"heartbeat, waiting":   {"SELECT public.agent_heartbeat($1, $2, $3, ARRAY[$4::uuid], $5)::text", []any{a.instance, a.boot, running, beat}},
		"claim":                {"SELECT coalesce(max(provision_id::text), '-') FROM public.fetch_next_provision($1, $2, $3, $4)", []any{a.instance, a.boot, uuid.New()}},
		"claim trace":          {"SELECT coalesce(public.claim_trace($1, $2), '-')", []any{running}},
		"delegate":             {"SELECT public.delegate_claim($1, $2, repeat('0', 64))::text", []any{running}},
		"renew":                {"SELECT public.renew_claim($1, $2)::text", []any{running}},
		"pending":              {"SELECT public.pending_provisions($1)::text", nil},
		"sweep":                {"SELECT count(*)::text FROM public.fail_orphaned_provisions($1, $2, $3, ARRAY[$4::uuid])", []any{a.instance, a.boot, running}},
		"checks":               {"SELECT public.lease_checks($1, $2, $3, 10)::text", []any{a.instance, a.boot}},
		"lines":                {`SELECT public.insert_provision_log($1, $2, 1, '[{"stream": "STDOUT", "text": "x\n", "at": "2026-01-01T00:00:00Z"}]')::text`, []any{running}},
		"report":               {"SELECT public.update_provision_status($1, $2, 'SUCCESS', '{}')::text", []any{running}},
		"find a key":           {"SELECT public.agent_key($1, $2)", []any{j.fingerprint()}},
	} {
		scansNothing(t, w, name, w.tokenHash, "", call.query, call.args...)
	}
	for name, call := range map[string]string{
		"register by key": "SELECT public.register_agent($1, $2::jsonb || jsonb_build_object('name', 'keyed', 'instance_id', gen_random_uuid()))::text",
		"shared identity": "SELECT public.shared_identity($1)", "join status": "SELECT public.join_status()::text",
		"pending by key": "SELECT public.pending_provisions($1)::text",
	} {
		var args []any
		if name == "register by key" {
			args = []any{about}
		}
		scansNothing(t, w, name, j.fingerprint(), hex.EncodeToString(j.key), call, args...)
	}
}

// scansNothing makes a call, as an agent of whom the gateway says the key, or with its token, and
// takes it back.
func scansNothing(t *testing.T, w *world, name, hash, key, query string, args ...any) {
	t.Helper()
	const few = 500 // rows of a small table may be read as a whole
	tx, err := w.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it is what the test wants
	// The first heartbeat of each minute reads all agents, for the clock's sake.
	for limit := patience.Begin(time.Minute); !one[bool](t, w.conn, "SELECT extract(second FROM clock_timestamp()) BETWEEN 12 AND 50"); limit.Pause() {
	}
	if _, err := tx.Exec(t.Context(), "UPDATE tendril.pulse SET stamped_at = clock_timestamp() - interval '10 seconds', reap_not_before = '-infinity'"); err != nil {
		t.Fatal(err)
	}
	if key != "" {
		if _, err := tx.Exec(t.Context(), `SELECT set_config('tendril.signing_key', $1, true), set_config('tendril.nonce', '', true), set_config('tendril.signed_at', extract(epoch FROM clock_timestamp())::text, true),
			set_config('tendril.signed_until', extract(epoch FROM clock_timestamp() + interval '1 minute')::text, true), set_config('tendril.address', '192.0.2.7', true)`, key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE anon"); err != nil {
		t.Fatal(err)
	}
	all := args
	if name != "join status" {
		all = append([]any{hash}, args...)
	}
	// What a transaction that was taken back has read is counted on.
	const count = "SELECT coalesce(jsonb_object_agg(schemaname || '.' || relname, seq_tup_read), '{}') FROM pg_stat_xact_all_tables WHERE schemaname IN ('public', 'tendril') AND seq_tup_read > 0"
	var before, after map[string]int
	if err := tx.QueryRow(t.Context(), count).Scan(&before); err != nil {
		t.Fatal(err)
	}
	var answer *string
	if err := tx.QueryRow(t.Context(), query, all...).Scan(&answer); err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if err := tx.QueryRow(t.Context(), count).Scan(&after); err != nil {
		t.Fatal(err)
	}
	for table, rows := range after {
		if read := rows - before[table]; read > few {
			t.Errorf("%s reads %d rows of %s from its beginning on", name, read, table)
		}
	}
}
