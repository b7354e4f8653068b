package sql_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/olddb"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

// reading runs do in a transaction and says how many rows of the queue's tables
// it has read, and whether it has written anything.
func (w *world) reading(t *testing.T, do func(tx pgx.Tx) error) (read int, wrote bool) {
	t.Helper()
	// What the session has read before may be counted as well.
	const count = `SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0), pg_current_xact_id_if_assigned() IS NOT NULL
		FROM pg_stat_xact_user_tables WHERE relname IN ('provisions', 'workspaces', 'claims')`
	var before int
	err := pgx.BeginFunc(t.Context(), w.conn, func(tx pgx.Tx) error {
		return errors.Join(
			tx.QueryRow(t.Context(), count).Scan(&before, &wrote),
			do(tx),
			tx.QueryRow(t.Context(), count).Scan(&read, &wrote))
	})
	if err != nil {
		t.Fatal(err)
	}
	return read - before, wrote
}

// fetch asks for work in a transaction.
func (a *agent) fetch(t *testing.T, tx pgx.Tx) (provision uuid.UUID, err error) {
	err = tx.QueryRow(t.Context(), "SELECT provision_id FROM public.fetch_next_provision($1, $2, $3, gen_random_uuid())", a.w.tokenHash, a.instance, a.boot).Scan(&provision)
	if errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, nil
	}
	return provision, err
}

// However much is queued for other agents, who has nothing to do reads next to
// nothing and writes nothing.
func TestEmptyPollReadsLittle(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	mustExec(t, w.conn, `INSERT INTO public.provisions (cluster_id, config_snapshot)
		SELECT $1, jsonb_set($2, '{workspace}', to_jsonb('w' || n)) FROM generate_series(1, 500) n`, w.cluster, snapshot("a"))
	mustExec(t, w.conn, "UPDATE public.workspaces SET home_instance = gen_random_uuid() WHERE substr(name, 2)::int % 2 = 0")
	mustExec(t, w.conn, "UPDATE public.workspaces SET unsaved_state_on = gen_random_uuid() WHERE home_instance IS NULL")
	mustExec(t, w.conn, "ANALYZE")
	got := uuid.New()
	read, wrote := w.reading(t, func(tx pgx.Tx) (err error) {
		got, err = agent.fetch(t, tx)
		return err
	})
	if got != uuid.Nil || read > 10 || wrote {
		t.Errorf("an empty poll answered %s, read %d rows and wrote: %t, want nothing, a handful of 500, false", got, read, wrote)
	}
}

// The most urgent goes first, whether it is for anybody or for this agent only;
// what two agents would have to run is for nobody.
func TestClaimOrderOfWhatIsOurs(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	insert := func(workspace string, priority int) uuid.UUID {
		return one[uuid.UUID](t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, $3) RETURNING id", w.cluster, snapshot(workspace), priority)
	}
	torn := insert("torn", 9)
	want := []uuid.UUID{insert("home", 3), insert("shared", 2), insert("unsaved", 2), insert("both", 1), insert("last", 0)}
	mustExec(t, w.conn, "UPDATE public.workspaces SET home_instance = $1 WHERE name IN ('home', 'both', 'torn')", agent.instance)
	mustExec(t, w.conn, "UPDATE public.workspaces SET unsaved_state_on = $1 WHERE name IN ('unsaved', 'both')", agent.instance)
	mustExec(t, w.conn, "UPDATE public.workspaces SET unsaved_state_on = gen_random_uuid() WHERE name = 'torn'")
	for i, id := range want {
		if _, got := agent.mustClaim(t); got != id {
			t.Errorf("claim %d = %s, want %s", i+1, got, id)
		}
	}
	if got, err := agent.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("claim = %s, %v, want nothing: %s is for two agents", got, err, torn)
	}
}

// Plans are kept: one made when a table's partial indexes were empty must not
// read all of them when they have grown.
func TestPlansOfAnEmptyQueueServeAFullOne(t *testing.T) {
	t.Parallel()
	const many = 300
	w := newContract(t)
	agent := w.newAgent(t, "one")
	// Statistics of a system that has run for long and is idle now.
	mustExec(t, w.conn, "SET session_replication_role = replica")
	mustExec(t, w.conn, `INSERT INTO public.workspaces (org_id, cluster_id, name) SELECT $1, $2, 'old' || n FROM generate_series(1, 500) n`, w.org, w.cluster)
	mustExec(t, w.conn, `INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot, status)
		SELECT w.org_id, w.cluster_id, w.id, '{}', 'SUCCESS' FROM public.workspaces w, generate_series(1, 10)`)
	mustExec(t, w.conn, `INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, state, lease_until)
		SELECT gen_random_uuid(), id, workspace_id, cluster_id, $1, $2, 'h', 'ended', now() FROM public.provisions`, agent.instance, agent.boot)
	mustExec(t, w.conn, "SET session_replication_role = origin")
	mustExec(t, w.conn, "VACUUM ANALYZE")
	mustExec(t, w.conn, "SET plan_cache_mode = force_generic_plan")
	w.deploy(t, w.operator, snapshot("first"))
	claim, _ := agent.mustClaim(t)
	if _, err := agent.heartbeat(t, claim); err != nil {
		t.Fatal(err)
	}

	mustExec(t, w.conn, `INSERT INTO public.provisions (cluster_id, config_snapshot)
		SELECT $1, jsonb_set($2, '{workspace}', to_jsonb('w' || n)) FROM generate_series(1, 2 * $3::int) n`, w.cluster, snapshot("a"), many)
	mustExec(t, w.conn, `SELECT count(f) FROM generate_series(1, $4::int) n, LATERAL public.fetch_next_provision($1, $2, $3, md5(n::text)::uuid) f`,
		w.tokenHash, agent.instance, agent.boot, many)
	if got := one[int](t, w.conn, "SELECT count(*) FROM tendril.claims WHERE state = 'running'"); got < many/2 {
		t.Fatalf("claims = %d, want many", got)
	}
	read, _ := w.reading(t, func(tx pgx.Tx) error {
		got, err := agent.fetch(t, tx)
		if got == uuid.Nil {
			t.Error("a claim got nothing")
		}
		return err
	})
	if read > 40 {
		t.Errorf("a claim read %d rows, want a handful of %d", read, many)
	}
	mustExec(t, w.conn, "UPDATE tendril.pulse SET stamped_at = clock_timestamp() - interval '10 seconds'") // old enough to be stamped, too young for an outage
	read, _ = w.reading(t, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.agent_heartbeat($1, $2, $3, $4)", w.tokenHash, agent.instance, agent.boot, []uuid.UUID{claim})
		return err
	})
	if read > 10 {
		t.Errorf("a heartbeat of one claim read %d rows, want a handful of %d", read, many)
	}
}

// The heartbeat of an agent without work leaves nothing that must be on the disk.
func TestIdleHeartbeatDoesNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	setting := func(claims ...uuid.UUID) (value string) {
		w.as(t, "anon", uuid.Nil, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "SET LOCAL synchronous_commit = on"); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), "SELECT public.agent_heartbeat($1, $2, $3, $4)", w.tokenHash, agent.instance, agent.boot, append([]uuid.UUID{}, claims...)); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&value)
		})
		return value
	}
	if got := setting(); got != "off" {
		t.Errorf("synchronous_commit of an idle heartbeat = %s, want off", got)
	}
	claim, _ := agent.mustClaim(t)
	if got := setting(claim); got != "on" {
		t.Errorf("synchronous_commit of a heartbeat that renews a lease = %s, want it as it was", got)
	}
	w.expire(t, claim)
	if got := setting(); got != "on" {
		t.Errorf("synchronous_commit of a heartbeat that reaps = %s, want it as it was", got)
	}
	if got := one[string](t, w.conn, "SELECT state FROM tendril.claims"); got != "lost" {
		t.Errorf("the claim whose lease ran out is %s, want lost", got)
	}
}

// A server may have been built without lz4. This one says so as those do.
func TestMigrateWithoutLZ4(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := olddb.At("9")(t.Context(), db.URL); err != nil {
		t.Fatal(err)
	}
	conn := db.Conn(t)
	mustExec(t, conn, `CREATE FUNCTION public.no_lz4() RETURNS event_trigger LANGUAGE plpgsql AS $$ DECLARE stack text; BEGIN
		GET DIAGNOSTICS stack = PG_CONTEXT; -- its second line has the statement
		IF split_part(stack, E'\n', 2) LIKE '%COMPRESSION lz4%' THEN
			RAISE EXCEPTION 'compression method lz4 not supported' USING ERRCODE = 'feature_not_supported';
		END IF; END $$`)
	mustExec(t, conn, "CREATE EVENT TRIGGER no_lz4 ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION public.no_lz4()")
	if _, err := tendrilsql.Migrate(t.Context(), db.URL); err != nil {
		t.Fatalf("Migrate(a server without lz4) = %v, want nil", err)
	}
	const compressed = "SELECT attcompression::text FROM pg_attribute WHERE attrelid = 'public.provision_logs'::regclass AND attname = 'log_chunk'"
	if got := one[string](t, conn, compressed); got != "" {
		t.Errorf("compression there = %q, want the server's own", got)
	}
	has := one[bool](t, conn, "SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'")
	if got := one[string](t, newContract(t).conn, compressed); (got == "l") != has {
		t.Errorf("compression where lz4 is there (%t) = %q, want l", has, got)
	}
}

// Keys begin with the time they were made, or each new row's entry in an index
// goes to a page of its own, and with that page to the WAL.
func TestKeysBeginWithTheTime(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	var before, after int64
	ids := map[string][]uuid.UUID{}
	const clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
	if err := w.conn.QueryRow(t.Context(), clock).Scan(&before); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		var provision, workspace uuid.UUID
		if err := w.conn.QueryRow(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id, workspace_id",
			w.cluster, snapshot(name)).Scan(&provision, &workspace); err != nil {
			t.Fatal(err)
		}
		ids["provisions"], ids["workspaces"] = append(ids["provisions"], provision), append(ids["workspaces"], workspace)
	}
	if err := w.conn.QueryRow(t.Context(), clock).Scan(&after); err != nil {
		t.Fatal(err)
	}
	for table, made := range ids {
		for _, id := range made {
			seconds, nanoseconds := id.Time().UnixTime()
			at := seconds*1000 + nanoseconds/1e6
			if id.Version() != 7 || id.Variant() != uuid.RFC4122 || at < before-1 || at > after+1 {
				t.Errorf("id in %s = %s (version %d, %s, made at %d), want version 7 of between %d and %d",
					table, id, id.Version(), id.Variant(), at, before, after)
			}
		}
		if made[0] == made[1] {
			t.Errorf("two ids in %s = %s, want different ones", table, made[0])
		}
	}
}
