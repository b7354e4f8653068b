package sql_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// retention says how long the rows of each table are kept, with the setting and its default,
// or that the table does not grow. docs/CONTRACT.md has it below each table.
var retention = map[string]string{
	"public.provisions":             "`provision_delete_after` (never) after its end; what hangs on it goes first",
	"public.provision_events":       "with its run, or `event_delete_after` (never)",
	"public.provision_stages":       "with its run",
	"public.provision_progress":     "with its run",
	"public.provision_inputs":       "with its run",
	"public.provision_logs":         "moved to `provision_log_archives`, `log_archive_after` (7 days) after the run's end",
	"public.provision_log_archives": "with its run, or `log_delete_after` (never) after its end",
	"tendril.log_heads":             "with its run",
	"tendril.log_ends":              "with its run or its log",
	"tendril.claims":                "`claim_delete_after` (90 days) after its end",
	"tendril.blobs":                 "a plan until its run ends; a workspace's last `state_history` (20) states; a result `result_kept` (7 days); an upload until it was taken, at most `upload_kept` (1 day)",
	"tendril.blob_parts":            "with its blob",
	"public.audit_events":           "`audit_delete_after` (never)",
	"public.agents":                 "`agent_delete_after` (30 days) after its last heartbeat",
	"tendril.cluster_tokens":        "`token_delete_after` (90 days) after it was revoked or expired",
	"tendril.identity_shares":       "until it expires, at most 8 days",
	"tendril.runners":               "with its claim",
	"tendril.agent_keys":            "`token_delete_after` (90 days) after it was revoked or expired",
	"tendril.join_tokens":           "`token_delete_after` (90 days) after it was used, revoked or expired",
	"tendril.trusted_issuers":       "until an admin trusts it no more",
	"tendril.key_accounts":          "with its key",
	"tendril.join_requests":         "an hour after its code expired, or until its key has joined",
	"tendril.join_guesses":          "an hour",
	"tendril.nonces":                "until the signature has expired",
	"tendril.watched":               "for a minute",
	"tendril.credentials":           "`credential_delete_after` (30 days) after it was revoked or expired",
	"public.invitations":            "`invitation_delete_after` (90 days) after it was accepted or declined, or expired",
	"tendril.requests":              "`request_delete_after` (1 day)",
	"public.webhook_deliveries":     "`delivery_delete_after` (30 days), and the last `delivery_limit` (1000) of each webhook",
	"public.template_inspections":   "while it is in the catalogue; others `inspection_delete_after` (90 days)",
	"public.template_tags":          "while it is in the catalogue; others `tag_delete_after` (90 days)",
	"public.cluster_pins":           "a tag's for ever, for it protects the tag; a commit's `pin_delete_after` (90 days)",
	"public.template_pins":          "for ever: it protects the tag",
	"public.resources":              "while the state lists it",
	"public.machines":               "while the state lists it; one that is gone `machine_delete_after` (90 days)",
	"tendril.machine_checks":        "with its machine",
	"public.pools":                  "while an agent has it, and afterwards with its age",
	"public.pool_nodes":             "while the pool has it",
	"public.pool_quotas":            "until it is deleted; at most 200 in an organisation",
	"public.pool_images":            "with its pool; at most 200 of one",
	"public.reservations":           "until the machine is destroyed, and with its workspace",
	"public.machine_events":         "`event_delete_after` (never), and with its machine",
	"public.workspaces":             "for ever",
	"public.orgs":                   "for ever",
	"public.clusters":               "for ever",
	"public.templates":              "until it is removed",
	"public.webhooks":               "until it is removed; at most 50 in an organisation",
	"tendril.webhook_urls":          "with its webhook",
	"public.org_members":            "until they are removed",
	"public.people":                 "with its member",
	"tendril.persons":               "for ever: names in the audit and in runs",
	"tendril.identities":            "with its person",
	"tendril.cluster_usage":         "with its cluster",
	"tendril.settings":              "does not grow",
	"tendril.pulse":                 "does not grow",
	"tendril.expiry":                "does not grow",
	"tendril.log_backlog":           "does not grow",
	"tendril.locks":                 "does not grow",
	"tendril.function_files":        "does not grow",
	"tendril.schema_migrations":     "does not grow",
}

// Every table that grows has a retention, whose setting has the default that is documented.
func TestEveryTableHasARetention(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t, migrated).Conn(t)
	rows, _ := conn.Query(t.Context(), `SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname IN ('public', 'tendril') AND c.relkind IN ('r', 'p')`)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range all {
		if retention[table] == "" {
			t.Errorf("retention lacks %s: say how long its rows are kept, or that it does not grow", table)
		}
	}
	for table := range retention {
		if !slices.Contains(all, table) {
			t.Errorf("retention has %s, which the database has not", table)
		}
	}
	page, err := os.ReadFile("../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	withDefault := regexp.MustCompile("`(\\w+)` \\(([^)]+)\\)")
	for _, m := range withDefault.FindAllStringSubmatch(strings.Join(slices.Collect(maps.Values(retention)), "\n"), -1) {
		said[m[1]] = m[2]
	}
	for _, m := range withDefault.FindAllStringSubmatch(string(page), -1) {
		if want, ok := said[m[1]]; ok && m[2] != want {
			t.Errorf("docs/OPERATIONS.md says of %s: %q, want %q", m[1], m[2], want)
		}
	}
	rows, _ = conn.Query(t.Context(), `SELECT s.key, coalesce(s.value, 'never') FROM tendril.settings t, jsonb_each_text(to_jsonb(t)) s
		WHERE s.key ~ '_(delete_after|archive_after|kept|limit|history)$'`)
	var name, value string
	if _, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		if strings.HasSuffix(name, "_limit") {
			return nil
		}
		if said[name] != value {
			t.Errorf("retention says of %s: %q, want %q", name, said[name], value)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// expire removes old rows, and says how many of which table.
func (w *world) expireRows(t *testing.T, limit int) map[string]int {
	t.Helper()
	rows, err := w.conn.Query(t.Context(), "SELECT what, removed, problem FROM tendril.expire($1, '1 minute')", limit)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	var what string
	var removed int
	var problem *string
	if _, err := pgx.ForEachRow(rows, []any{&what, &removed, &problem}, func() error {
		all[what] += removed
		if problem != nil {
			t.Errorf("%s: %s", what, *problem)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// keepADay sets every retention to a day.
const keepADay = `UPDATE tendril.settings SET audit_delete_after = '1 day', provision_delete_after = '1 day', event_delete_after = '1 day', claim_delete_after = '1 day',
	agent_delete_after = '1 day', token_delete_after = '1 day', credential_delete_after = '1 day', invitation_delete_after = '1 day', delivery_delete_after = '1 day',
	request_delete_after = '1 day', inspection_delete_after = '1 day', tag_delete_after = '1 day', pin_delete_after = '1 day' WHERE only_row`

// fillOld adds rows to each table that has a retention: $2 of them young and $3
// old, all of which nobody needs.
func (s *scene) fillOld(t *testing.T, young, old int) {
	t.Helper()
	mustExec(t, s.conn, "SET session_replication_role = replica")
	// Where the order of rows counts, the scene's own came first.
	mustExec(t, s.conn, "UPDATE public.audit_events SET at = at - interval '50 days'")
	mustExec(t, s.conn, "UPDATE public.provision_events SET at = at - interval '50 days'")
	mustExec(t, s.conn, "UPDATE public.provisions SET created_at = created_at - interval '50 days' WHERE id = $1", s.ended)
	mustExec(t, s.conn, "UPDATE tendril.expiry SET next_number = 1 WHERE name = 'claims'")
	for _, fill := range []string{
		`INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, state, lease_until, ended_at)
			SELECT gen_random_uuid(), p.id, p.workspace_id, p.cluster_id, gen_random_uuid(), gen_random_uuid(), 'h', 'ended', a.at, a.at FROM public.provisions p, filled a WHERE p.id = $1`,
		`INSERT INTO public.agents (org_id, cluster_id, instance_id, boot_id, name, host, version, contract, slots, last_heartbeat_at)
			SELECT p.org_id, p.cluster_id, gen_random_uuid(), gen_random_uuid(), 'a' || a.n, 'h', '1', 1, 1, a.at FROM public.provisions p, filled a WHERE p.id = $1`,
		"INSERT INTO tendril.cluster_tokens (cluster_id, digest, revoked_at) SELECT p.cluster_id, sha256(a.n::text::bytea), a.at FROM public.provisions p, filled a WHERE p.id = $1",
		"INSERT INTO tendril.credentials (kind, user_id, digest, expires_at) SELECT 'session', p.id, sha256(a.n::text::bytea), a.at FROM public.provisions p, filled a WHERE p.id = $1",
		"INSERT INTO public.invitations (org_id, email, role, expires_at) SELECT p.org_id, a.n || '@old.example', 'viewer', a.at FROM public.provisions p, filled a WHERE p.id = $1",
		"INSERT INTO tendril.requests SELECT p.id, 'k' || a.n, repeat('a', 64), '', NULL, a.at FROM public.provisions p, filled a WHERE p.id = $1",
		`WITH w AS (INSERT INTO public.webhooks (id, org_id, name, kind, host, events)
				SELECT gen_random_uuid(), p.org_id, gen_random_uuid()::text, 'generic', 'h', '{drift}' FROM public.provisions p, generate_series(1, 40) WHERE p.id = $1 RETURNING id, org_id),
			nth AS (SELECT id, org_id, row_number() OVER (ORDER BY id) - 1 AS n FROM w)
			INSERT INTO public.webhook_deliveries (org_id, webhook_id, event, payload, created_at, next_at)
			SELECT nth.org_id, nth.id, 'x', '{}', a.at, NULL FROM nth JOIN filled a ON a.n % 40 = nth.n`,
		`INSERT INTO public.template_inspections (org_id, repo, version, path, address, status, requested_at)
			SELECT p.org_id, 'https://git.example/old', 'v' || a.n, '', 'https://git.example/old', 'done', a.at FROM public.provisions p, filled a WHERE p.id = $1`,
		"INSERT INTO public.template_tags (org_id, repo, tags, listed_at) SELECT p.org_id, 'https://git.example/old' || a.n, '[]', a.at FROM public.provisions p, filled a WHERE p.id = $1",
		"INSERT INTO public.cluster_pins (cluster_id, org_id, repo, version, commit, first_used_at) SELECT p.cluster_id, p.org_id, 'https://git.example/old', lpad(a.n::text, 40, '0'), repeat('a', 40), a.at FROM public.provisions p, filled a WHERE p.id = $1",
		"INSERT INTO public.audit_events (org_id, at, action, object) SELECT p.org_id, a.at, 'a', 'o' FROM public.provisions p, filled a WHERE p.id = $1 ORDER BY a.at",
		"INSERT INTO public.provision_events (provision_id, org_id, kind, at) SELECT p.id, p.org_id, 'k', a.at FROM public.provisions p, filled a WHERE p.id = $1 ORDER BY a.at",
	} {
		mustExec(t, s.conn, `CREATE TEMP TABLE filled AS SELECT n, now() - CASE WHEN n <= $1::int THEN interval '40 days' ELSE interval '0' END AS at FROM generate_series(1, $1::int + $2::int) n`, old, young)
		mustExec(t, s.conn, fill, s.ended)
		mustExec(t, s.conn, "DROP TABLE filled")
	}
	mustExec(t, s.conn, "SET session_replication_role = origin")
}

// filled are the tables that fillOld fills.
var filled = []string{
	"public.agents", "public.audit_events", "tendril.claims", "public.cluster_pins", "tendril.cluster_tokens", "tendril.credentials", "public.invitations",
	"public.provision_events", "tendril.requests", "public.template_inspections", "public.template_tags", "public.webhook_deliveries",
}

// What is old goes, a portion a call, and a call reads what it removes and not what
// stays, however much that is.
func TestExpireReadsWhatItRemoves(t *testing.T) {
	t.Parallel()
	const young, old, limit = 3000, 30, 20
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	mustExec(t, s.conn, keepADay)
	mustExec(t, s.conn, "UPDATE tendril.settings SET delivery_limit = 80 WHERE only_row")
	s.fillOld(t, 0, 0)
	s.expireRows(t, 1000)
	s.fillOld(t, young, old)
	mustExec(t, s.conn, "VACUUM ANALYZE")
	const count = `SELECT schemaname || '.' || relname, (coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int FROM pg_stat_xact_user_tables`
	for call, want := range []int{limit, old - limit, 0} {
		mustExec(t, s.conn, "UPDATE tendril.expiry SET began_at = '-infinity' WHERE name = 'agents'")
		var got map[string]int
		read := map[string]int{}
		err := pgx.BeginFunc(t.Context(), s.conn, func(tx pgx.Tx) error {
			take := func(sign int) {
				rows, _ := tx.Query(t.Context(), count)
				var table string
				var n int
				if _, err := pgx.ForEachRow(rows, []any{&table, &n}, func() error {
					read[table] += sign * n
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			take(-1)
			got = s.expireRows(t, limit)
			take(+1)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range filled {
			// Deliveries go by ten webhooks a call.
			if got[table] != want && table != "public.webhook_deliveries" {
				t.Errorf("call %d removed %d of %s, want %d", call+1, got[table], table, want)
			}
			most := 8*limit + 60
			if table == "public.webhook_deliveries" { // and of ten webhooks as many as are kept are counted
				most += 2 * 10 * 80
			}
			// Agents are read once an hour, all of them; claims by their run, which has a few.
			if table != "public.agents" && table != "tendril.claims" && read[table] > most {
				t.Errorf("call %d read %d rows of %s to remove %d, want at most %d of %d", call+1, read[table], table, want, most, young+old)
			}
		}
	}
	for calls := 0; one[int](t, s.conn, "SELECT count(*) FROM public.webhook_deliveries WHERE created_at < now() - interval '1 day'") > 0; calls++ {
		if calls > 1000 {
			t.Fatal("old deliveries of some webhooks stay")
		}
		s.expireRows(t, limit)
	}
	for _, table := range filled {
		if got := one[int](t, s.conn, "SELECT count(*) FROM "+table); got < young {
			t.Errorf("%d rows of %s are left, want all that are young", got, table)
		}
	}
}

// What something live needs stays, however old it is.
func TestExpireLeavesWhatIsNeeded(t *testing.T) {
	t.Parallel()
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	mustExec(t, s.conn, keepADay)
	mustExec(t, s.conn, "UPDATE tendril.settings SET delivery_limit = 2 WHERE only_row")
	// A workspace with a history: its last success, what failed since, and a run before.
	run := func(status string) uuid.UUID {
		id := one[uuid.UUID](t, s.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, 50) RETURNING id", s.cluster, snapshot("old"))
		s.agent.run(t, status, "{}")
		return id
	}
	gone := []uuid.UUID{run("SUCCESS"), run("FAILED")}
	stays := []uuid.UUID{run("SUCCESS")}
	gone = append(gone, run("FAILED"))
	stays = append(stays, run("FAILED"), s.ended, s.awaiting, s.taking, s.queued)
	const past = "40 days"
	mustExec(t, s.conn, "SET session_replication_role = replica")
	for _, statement := range []string{
		"UPDATE public.provisions SET created_at = created_at - $1::interval, finished_at = finished_at - $1::interval",
		"UPDATE tendril.claims SET ended_at = ended_at - $1::interval, created_at = created_at - $1::interval",
		"UPDATE public.agents SET last_heartbeat_at = last_heartbeat_at - $1::interval",
		"UPDATE public.template_inspections SET requested_at = requested_at - $1::interval, inspected_at = inspected_at - $1::interval, status = 'done'",
		"UPDATE public.template_tags SET listed_at = listed_at - $1::interval",
		"UPDATE public.cluster_pins SET first_used_at = first_used_at - $1::interval",
		"UPDATE public.template_pins SET first_used_at = first_used_at - $1::interval",
	} {
		mustExec(t, s.conn, statement, past)
	}
	mustExec(t, s.conn, "SET session_replication_role = origin")
	// Agents: one that is the home of a workspace, one with an unsaved state, one that nobody needs.
	agents := map[string]*agent{}
	for _, name := range []string{"home", "unsaved", "needless"} {
		agents[name] = s.newAgent(t, name)
		mustExec(t, s.conn, "UPDATE public.agents SET last_heartbeat_at = now() - interval '40 days' WHERE name = $1", name)
	}
	mustExec(t, s.conn, "UPDATE public.workspaces SET home_instance = $1 WHERE name = 'ended'", agents["home"].instance)
	mustExec(t, s.conn, "UPDATE public.workspaces SET unsaved_state_on = $1 WHERE name = 'ended'", agents["unsaved"].instance)
	// Deliveries: more than are kept, and of a webhook that is gone.
	mustExec(t, s.conn, "INSERT INTO public.webhook_deliveries (org_id, webhook_id, event, payload) SELECT $1, $2, 'new', '{}' FROM generate_series(1, 5)", s.org, s.webhook)
	mustExec(t, s.conn, "INSERT INTO public.webhook_deliveries (org_id, webhook_id, event, payload) SELECT $1, gen_random_uuid(), 'orphan', '{}'", s.org)
	live := one[int](t, s.conn, "SELECT count(*) FROM tendril.claims c JOIN public.provisions p ON p.id = c.provision_id WHERE c.state <> 'ended' OR p.status NOT IN ('SUCCESS', 'FAILED', 'CANCELLED')")
	s.expireRows(t, 1000)

	there := func(id uuid.UUID) bool {
		return one[bool](t, s.conn, "SELECT EXISTS (SELECT FROM public.provisions WHERE id = $1)", id)
	}
	for _, id := range stays {
		if !there(id) {
			t.Errorf("run %s is gone, want it kept", id)
		}
	}
	for _, id := range gone {
		if there(id) {
			t.Errorf("run %s is there, want it gone: neither the newest nor the last success", id)
		}
	}
	if got := one[int](t, s.conn, "SELECT count(*) FROM tendril.claims"); got != live {
		t.Errorf("%d claims are left, want the %d that are open or of a run that is not over", got, live)
	}
	got := one[[]string](t, s.conn, "SELECT array_agg(name ORDER BY name) FROM public.agents WHERE cluster_id = $1", s.cluster)
	if want := []string{"home", "one", "unsaved"}; !slices.Equal(got, want) {
		t.Errorf("agents = %q, want %q: what they run, or have the state of, is needed", got, want)
	}
	for table, want := range map[string]int{"public.template_pins": 2, "public.cluster_pins": 1, "public.template_inspections": 1, "public.template_tags": 1} {
		if got := one[int](t, s.conn, "SELECT count(*) FROM "+table); got < want {
			t.Errorf("%s: %d rows left, want %d or more: of tags, and of the catalogue", table, got, want)
		}
	}
	if got := one[int](t, s.conn, "SELECT count(*) FROM public.webhook_deliveries WHERE webhook_id = $1", s.webhook); got != 2 {
		t.Errorf("%d deliveries of a webhook are left, want as many as are kept, 2", got)
	}
	if got := one[int](t, s.conn, "SELECT count(*) FROM public.webhook_deliveries WHERE event = 'orphan'"); got != 0 {
		t.Errorf("%d deliveries of a webhook that is gone are left", got)
	}
	detail := one[string](t, s.conn, "SELECT string_agg(detail::text, ' ') FROM public.audit_events WHERE action = 'delete_provisions' AND org_id = $1", s.org)
	if want := fmt.Sprintf(`"count": %d`, len(gone)); !strings.Contains(detail, want) {
		t.Errorf("audited = %s, want %s", detail, want)
	}
	// Today's deploy works where everything old is gone.
	mustExec(t, s.conn, "UPDATE public.workspaces SET home_instance = NULL, unsaved_state_on = NULL")
	mustExec(t, s.conn, "SELECT tendril.queue_refresh(w) FROM public.workspaces w WHERE name = 'old'")
	if got := one[string](t, s.conn, "SELECT operation FROM public.provisions ORDER BY number DESC LIMIT 1"); got != "refresh" {
		t.Errorf("the newest provision is a %s, want the refresh of what was applied last", got)
	}
}

// A run goes in portions: what hangs on it first.
func TestExpireProvisionsInPortions(t *testing.T) {
	t.Parallel()
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	mustExec(t, s.conn, "UPDATE tendril.settings SET provision_delete_after = '1 day' WHERE only_row")
	if cancelled := s.deploy(t, s.operator, snapshot("ended")); cancelled != uuid.Nil {
		mustExec(t, s.conn, "UPDATE public.provisions SET status = 'CANCELLED', finished_at = now() WHERE id = $1", cancelled)
	}
	mustExec(t, s.conn, "SET session_replication_role = replica")
	mustExec(t, s.conn, "UPDATE public.provisions SET created_at = created_at - interval '9 days', finished_at = finished_at - interval '9 days' WHERE id = $1", s.ended)
	mustExec(t, s.conn, "INSERT INTO public.provision_events (provision_id, org_id, kind, at) SELECT $1, $2, 'k', now() FROM generate_series(1, 250)", s.ended, s.org)
	mustExec(t, s.conn, "SET session_replication_role = origin")
	var left []int
	for range 4 {
		s.expireRows(t, 100)
		left = append(left, one[int](t, s.conn, "SELECT count(*) FROM public.provision_events WHERE provision_id = $1", s.ended))
	}
	if one[bool](t, s.conn, "SELECT EXISTS (SELECT FROM public.provisions WHERE id = $1)", s.ended) || left[0] < 100 || left[1] != left[0]-100 || left[3] != 0 {
		t.Errorf("events left after each call = %v, want 100 fewer each time, and then the run gone", left)
	}
	for _, table := range []string{"public.provision_stages", "public.provision_progress", "public.provision_log_archives", "tendril.log_heads", "tendril.log_ends", "tendril.claims"} {
		if got := one[int](t, s.conn, "SELECT count(*) FROM "+table+" WHERE provision_id = $1", s.ended); got != 0 {
			t.Errorf("%d rows of %s are left of a run that is gone", got, table)
		}
	}
	// What was passed over has its turn again after a week.
	next := func() int {
		t.Helper()
		s.expireRows(t, 100)
		return one[int](t, s.conn, "SELECT next_number FROM tendril.expiry WHERE name = 'provisions'")
	}
	passed := s.oldRun(t)
	before := next()
	if !one[bool](t, s.conn, "SELECT EXISTS (SELECT FROM public.provisions WHERE id = $1)", passed) || next() != before || before == 1 {
		t.Error("a run behind the place where the last call was has gone, or the next call begins at the beginning")
	}
	mustExec(t, s.conn, "UPDATE tendril.expiry SET began_at = began_at - interval '8 days' WHERE name = 'provisions'")
	next()
	if one[bool](t, s.conn, "SELECT EXISTS (SELECT FROM public.provisions WHERE id = $1)", passed) {
		t.Error("a run that was passed over is there after the next pass, want it gone")
	}
}

// oldRun makes a run old that was kept in the last pass: now another has followed it.
func (s *scene) oldRun(t *testing.T) uuid.UUID {
	t.Helper()
	old := one[uuid.UUID](t, s.conn, "SELECT id FROM public.provisions WHERE workspace_id = $1 AND status = 'CANCELLED'", s.workspaces["ended"])
	mustExec(t, s.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", s.cluster, snapshot("ended"))
	mustExec(t, s.conn, "UPDATE public.provisions SET created_at = created_at - interval '9 days', finished_at = finished_at - interval '9 days' WHERE number <= (SELECT number FROM public.provisions WHERE id = $1)", old)
	mustExec(t, s.conn, "UPDATE tendril.expiry SET next_number = (SELECT max(number) + 1 FROM public.provisions) WHERE name = 'provisions'")
	return old
}

// One table that can't be cleaned up does not keep the others from it, and is named.
func TestExpireGoesOn(t *testing.T) {
	t.Parallel()
	s := newScene(t, pgtest.New(t, migrated).Conn(t))
	mustExec(t, s.conn, keepADay)
	s.fillOld(t, 0, 3)
	mustExec(t, s.conn, `CREATE FUNCTION public.broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'broken'; END $$;
		CREATE TRIGGER broken BEFORE DELETE ON tendril.credentials FOR EACH ROW EXECUTE FUNCTION public.broken()`)
	rows, _ := s.conn.Query(t.Context(), "SELECT what, removed, coalesce(problem, '') FROM tendril.expire(p_time => '1 minute')")
	got := map[string]string{}
	var what, problem string
	var removed int
	if _, err := pgx.ForEachRow(rows, []any{&what, &removed, &problem}, func() error {
		got[what] = fmt.Sprint(removed, problem)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, table := range filled {
		if table == "tendril.credentials" {
			if !strings.Contains(got[table], "broken (P0001)") {
				t.Errorf("credentials = %q, want what is wrong with them", got[table])
			}
		} else if got[table] == "" {
			t.Errorf("nothing of %s was removed: %v", table, slices.Sorted(maps.Keys(got)))
		}
	}
	// While one is at work the next has nothing to do.
	other := s.another(t)
	mustExec(t, other, "BEGIN; SELECT FROM tendril.expiry FOR UPDATE")
	s.fillOldAgain(t)
	if got := s.expireRows(t, 1000); len(got) > 0 {
		t.Errorf("removed %v beside another call, want nothing", got)
	}
	mustExec(t, other, "ROLLBACK")
}

// fillOldAgain adds one old row.
func (s *scene) fillOldAgain(t *testing.T) {
	t.Helper()
	mustExec(t, s.conn, "INSERT INTO tendril.requests SELECT $1, 'again', repeat('a', 64), '', NULL, now() - interval '9 days'", s.adminID)
}
