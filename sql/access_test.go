package sql_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	tendrilsql "github.com/tendril-run/tendril/sql"
)

// tables says for every table and view in public from which role on a member of
// an organisation reads its rows. Nobody reads another organisation's, and
// nobody changes a row but by a function.
var tables = map[string]string{
	"orgs": "viewer", "org_members": "viewer", "clusters": "viewer", "cluster_overview": "viewer", "agents": "viewer",
	"templates": "viewer", "template_pins": "viewer", "cluster_pins": "viewer", "workspaces": "viewer", "resources": "viewer", "machines": "viewer", "machine_events": "viewer",
	"pools": "viewer", "pool_nodes": "viewer", "reservations": "viewer", "pool_quotas": "viewer", "pool_images": "viewer",
	"provisions": "viewer", "provision_progress": "viewer", "provision_logs": "viewer", "provision_log_archives": "viewer", "provision_events": "viewer", "provision_inputs": "viewer",
	"provision_stages": "viewer", "people": "viewer", "template_inspections": "viewer", "template_tags": "viewer",
	"audit_events": "admin", "invitations": "admin", "webhooks": "viewer", "webhook_deliveries": "admin",
}

// sequences are those behind identity columns: nobody's.
var sequences = []string{"provisions_number_seq", "audit_events_id_seq", "provision_events_id_seq", "machine_events_id_seq"}

// callers says who calls a function in public.
type callers interface{ roles() []string }

// forAgents is a function that agents call, by a token; args are those after it.
type forAgents struct{ args func(s *scene) []any }

func (forAgents) roles() []string { return []string{"anon", "tendril_agent"} }

// forJoiners is a function that agents call to join, by a signed request.
type forJoiners struct{ args []any }

func (forJoiners) roles() []string { return []string{"anon"} }

// forAdmins is a function for those who are admin somewhere, with its arguments.
type forAdmins struct{ args []any }

func (forAdmins) roles() []string { return []string{"authenticated", "service_role"} }

// forPeople is a function that people call from a role on in the organisation
// that its first argument, of belongs to. Everybody else gets one answer, whether
// there is such a thing or not.
type forPeople struct {
	least, otherwise string
	of               func(s *scene) uuid.UUID
	rest             func(s *scene) []any // the other arguments
	query            string               // where arguments have names
}

func (forPeople) roles() []string { return []string{"authenticated", "service_role"} }

// forOneself is a function about the caller's own: whoever has a name may call it.
// others is what everybody but the admin is answered, where it is about something
// of the admin's.
type forOneself struct {
	args   func(s *scene) []any
	others string
}

func (forOneself) roles() []string { return []string{"authenticated"} }

// forThePlatform is a function of the platform's own back end.
type forThePlatform struct{}

func (forThePlatform) roles() []string { return []string{"service_role"} }

// functions are all those in public.
var functions = map[string]callers{
	"register_agent": forAgents{func(s *scene) []any {
		return []any{fmt.Sprintf(`{"instance_id": %q, "boot_id": %q, "name": "new", "host": "h", "version": "1", "contract": 1, "slots": 1}`, uuid.New(), uuid.New())}
	}},
	"check_agent":          forAgents{func(s *scene) []any { return []any{`{"name": "new"}`} }},
	"agent_heartbeat":      forAgents{func(s *scene) []any { return []any{s.agent.instance, s.agent.boot, []uuid.UUID{s.running}} }},
	"fetch_next_provision": forAgents{func(s *scene) []any { return []any{s.agent.instance, s.agent.boot, uuid.New()} }},
	"claim_trace":          forAgents{func(s *scene) []any { return []any{s.running} }},
	"delegate_claim":       forAgents{func(s *scene) []any { return []any{s.running, strings.Repeat("0", 64)} }},
	"renew_claim":          forAgents{func(s *scene) []any { return []any{s.running} }},
	"insert_provision_log": forAgents{func(s *scene) []any { return []any{s.running, 1, `[]`} }},
	"append_provision_log": forAgents{func(s *scene) []any {
		return []any{s.running, 1, []string{}, []string{}, []time.Time{}}
	}},
	"update_provision_status":  forAgents{func(s *scene) []any { return []any{s.running, "PROCESSING", `{}`} }},
	"fail_orphaned_provisions": forAgents{func(s *scene) []any { return []any{s.agent.instance, s.agent.boot, []uuid.UUID{}} }},

	"rotate_agent_key": forAgents{func(s *scene) []any {
		return []any{s.agent.instance, s.agent.boot, strings.ReplaceAll(uuid.NewString()+uuid.NewString(), "-", "")}
	}},
	"agent_key": forAgents{func(*scene) []any { return []any{strings.Repeat("0", 64)} }},
	"share_identity": forAgents{func(s *scene) []any {
		return []any{s.agentKey, "-----BEGIN AGE ENCRYPTED FILE-----", time.Now().Add(time.Hour)}
	}},
	"shared_identity": forAgents{func(*scene) []any { return nil }},

	"pending_provisions": forAgents{func(*scene) []any { return nil }},
	"lease_checks":       forAgents{func(s *scene) []any { return []any{s.agent.instance, s.agent.boot, 1} }},
	"report_pools":       forAgents{func(s *scene) []any { return []any{s.agent.instance, s.agent.boot, lab(2)} }},
	"reserve_machines":   forAgents{func(s *scene) []any { return []any{s.running, "[" + wanted("r") + "]"} }},
	"release_machines":   forAgents{func(s *scene) []any { return []any{s.running, []string{"r"}} }},
	"report_checks":      forAgents{func(s *scene) []any { return []any{s.agent.instance, s.agent.boot, `[]`} }},
	"put_blob": forAgents{func(s *scene) []any {
		return []any{s.running, "result", 0, 1, 1, aResultDigest, `{}`, aResult}
	}},
	"get_blob": forAgents{func(s *scene) []any { return []any{s.running, "state", 0, 1} }},

	"request_join": forJoiners{[]any{joining}},
	"join_status":  forJoiners{},
	"trusted_keys": forJoiners{[]any{"https://issuer.example", "tendril:x", "system:serviceaccount:a:b"}},
	"join_request": forAdmins{[]any{"BCDF-GHJK"}},
	"refuse_join":  forAdmins{[]any{"BCDF-GHJK"}},
	"approve_join": forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster, query: "SELECT public.approve_join('BCDF-GHJK', $1, repeat('0', 64))"},

	"trust_issuer": forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster,
		query: `SELECT public.trust_issuer($1, 'https://issuer.example', '{system:serviceaccount:a:b}', '{"keys": [{"kty": "EC"}]}')`},
	"trusted_issuers":      forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster},
	"untrust_issuer":       forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster, rest: func(*scene) []any { return []any{uuid.Nil} }},
	"create_join_token":    forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster},
	"create_cluster":       forPeople{least: "admin", otherwise: "org_not_found", of: theOrg, query: "SELECT public.create_cluster('another', p_org => $1)"},
	"rotate_cluster_token": forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster},
	"revoke_cluster_token": forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster},
	"cluster_tokens":       forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster},
	"pause_cluster":        forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster},
	"set_cluster_key":      forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster, rest: func(*scene) []any { return []any{"age1" + strings.Repeat("q", 58)} }},

	"set_cluster_policy": forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster, rest: func(*scene) []any { return []any{`{"approval": "always"}`} }},

	"cancel_provision":  forPeople{least: "operator", otherwise: "provision_not_found", of: func(s *scene) uuid.UUID { return s.queued }},
	"approve_provision": forPeople{least: "operator", otherwise: "provision_not_found", of: func(s *scene) uuid.UUID { return s.awaiting }, rest: func(*scene) []any { return []any{aPlan} }},
	"reject_provision":  forPeople{least: "operator", otherwise: "provision_not_found", of: func(s *scene) uuid.UUID { return s.awaiting }},
	"give_input":        forPeople{least: "operator", otherwise: "provision_not_found", of: func(s *scene) uuid.UUID { return s.asking }, rest: func(*scene) []any { return []any{`{"done": false, "reason": "no"}`} }},
	"assign_input":      forPeople{least: "operator", otherwise: "provision_not_found", of: func(s *scene) uuid.UUID { return s.asking }, rest: func(*scene) []any { return []any{nil} }},
	"comment_provision": forPeople{least: "operator", otherwise: "provision_not_found", of: func(s *scene) uuid.UUID { return s.queued }, rest: func(*scene) []any { return []any{"a comment"} }},
	"retry_provision":   forPeople{least: "operator", otherwise: "provision_not_found", of: func(s *scene) uuid.UUID { return s.ended }},

	"plan_machines": forPeople{least: "operator", otherwise: "cluster_not_found", of: theCluster, rest: func(*scene) []any {
		return []any{snapshot("planned"), `[{"name": "ada"}]`}
	}},
	"delete_planned_machine": forPeople{least: "operator", otherwise: "machine_not_found", of: func(s *scene) uuid.UUID { return s.planned }},

	"set_pool_quota":    forPeople{least: "admin", otherwise: "org_not_found", of: theOrg, rest: func(*scene) []any { return []any{`{"machines": 9}`} }},
	"delete_pool_quota": forPeople{least: "admin", otherwise: "org_not_found", of: theOrg, rest: func(s *scene) []any { return []any{s.quota} }},
	"pool_quota_uses":   forPeople{least: "viewer", otherwise: "org_not_found", of: theOrg},
	"pool_loads":        forPeople{least: "viewer", otherwise: "org_not_found", of: theOrg},
	"preview_machines": forPeople{least: "operator", otherwise: "cluster_not_found", of: theCluster, rest: func(*scene) []any {
		return []any{"preview", "[" + wanted("ada") + "]"}
	}},
	"free_place":        forPeople{least: "admin", otherwise: "workspace_not_found", of: theWorkspace("queued"), rest: func(*scene) []any { return []any{"leftover"} }},
	"set_pool_template": forPeople{least: "admin", otherwise: "pool_not_found", of: func(s *scene) uuid.UUID { return s.pool }, rest: func(*scene) []any { return []any{nil} }},
	"set_pool_image":    forPeople{least: "admin", otherwise: "pool_not_found", of: func(s *scene) uuid.UUID { return s.pool }, rest: func(*scene) []any { return []any{"debian", "debian-12"} }},

	"upload_blob":    forPeople{least: "admin", otherwise: "cluster_not_found", of: theCluster, rest: func(*scene) []any { return []any{1, 1, aResult} }},
	"fetch_result":   forPeople{least: "operator", otherwise: "provision_not_found", of: func(s *scene) uuid.UUID { return s.ended }},
	"state_versions": forPeople{least: "viewer", otherwise: "workspace_not_found", of: theWorkspace("queued")},

	"provision_log":      forPeople{least: "viewer", otherwise: "provision_not_found", of: func(s *scene) uuid.UUID { return s.ended }},
	"provision_agents":   forPeople{least: "viewer", otherwise: "provision_not_found", of: func(s *scene) uuid.UUID { return s.ended }},
	"why_waiting":        forPeople{least: "viewer", otherwise: "provision_not_found", of: func(s *scene) uuid.UUID { return s.queued }},
	"set_drift_schedule": forPeople{least: "operator", otherwise: "workspace_not_found", of: theWorkspace("queued"), rest: func(*scene) []any { return []any{"1 day"} }},

	"lock_workspace":    forPeople{least: "operator", otherwise: "workspace_not_found", of: theWorkspace("queued"), rest: func(*scene) []any { return []any{"a reason"} }},
	"unlock_workspace":  forPeople{least: "operator", otherwise: "workspace_not_found", of: theWorkspace("queued")},
	"release_workspace": forPeople{least: "admin", otherwise: "workspace_not_found", of: theWorkspace("held")},
	"rebind_workspace":  forPeople{least: "admin", otherwise: "workspace_not_found", of: theWorkspace("queued"), rest: func(*scene) []any { return []any{"https://git.example/a/b", "a reason"} }},

	"set_member":    forPeople{least: "admin", otherwise: "org_not_found", of: theOrg, rest: func(s *scene) []any { return []any{s.viewer, "viewer"} }},
	"remove_member": forPeople{least: "admin", otherwise: "org_not_found", of: theOrg, rest: func(s *scene) []any { return []any{s.viewer} }},
	"save_template": forPeople{least: "admin", otherwise: "org_not_found", of: theOrg, rest: func(*scene) []any { return []any{"new", "https://git.example/a/b", "v1"} }},
	"pin_template": forPeople{least: "admin", otherwise: "org_not_found", of: theOrg, rest: func(*scene) []any {
		return []any{"https://git.example/a/b", "v1", strings.Repeat("a", 40), "a reason"}
	}},
	"inspect_template": forPeople{least: "operator", otherwise: "org_not_found", of: theOrg, rest: func(*scene) []any { return []any{"https://git.example/a/b", "v1"} }},
	"remove_template":  forPeople{least: "admin", otherwise: "org_not_found", of: theOrg, rest: func(*scene) []any { return []any{"template"} }},

	"invite_member":     forPeople{least: "admin", otherwise: "org_not_found", of: theOrg, rest: func(*scene) []any { return []any{"ada@example.com", "viewer"} }},
	"revoke_invitation": forPeople{least: "admin", otherwise: "org_not_found", of: theOrg, rest: func(s *scene) []any { return []any{s.invitation} }},

	"create_webhook": forPeople{least: "admin", otherwise: "org_not_found", of: theOrg, rest: func(*scene) []any {
		return []any{uuid.New(), `{"name": "new", "kind": "slack", "host": "https://h", "url": "c2VhbGVk", "events": ["drift"]}`}
	}},
	"change_webhook": forPeople{least: "admin", otherwise: "webhook_not_found", of: theWebhook, rest: func(*scene) []any { return []any{`{"rotate": true}`} }},
	"remove_webhook": forPeople{least: "admin", otherwise: "webhook_not_found", of: theWebhook},
	"send_webhook":   forPeople{least: "admin", otherwise: "webhook_not_found", of: theWebhook},

	"own_invitations":    forOneself{args: func(*scene) []any { return nil }},
	"accept_invitation":  forOneself{func(s *scene) []any { return []any{s.own, "viewer"} }, "PT404 invitation_not_found"},
	"decline_invitation": forOneself{func(s *scene) []any { return []any{s.own} }, "PT404 invitation_not_found"},

	"own_credentials":     forOneself{args: func(*scene) []any { return nil }},
	"create_api_token":    forOneself{args: func(*scene) []any { return []any{"a name"} }},
	"revoke_credential":   forOneself{args: func(s *scene) []any { return []any{s.session} }},
	"sign_out_everywhere": forOneself{args: func(*scene) []any { return []any{true} }},

	"begin_request":  forOneself{args: func(*scene) []any { return []any{"a key", aPlan} }},
	"finish_request": forOneself{args: func(*scene) []any { return []any{"another key", aPlan, "/here", `{}`} }},

	"create_org": forThePlatform{},
}

func theOrg(s *scene) uuid.UUID     { return s.org }
func theCluster(s *scene) uuid.UUID { return s.cluster }
func theWebhook(s *scene) uuid.UUID { return s.webhook }

func theWorkspace(name string) func(*scene) uuid.UUID {
	return func(s *scene) uuid.UUID { return s.workspaces[name] }
}

// TestAccess tries all that an outsider can do with each object in public, as
// everybody there is. What is new there and not in the lists above fails it.
func TestAccess(t *testing.T) {
	t.Parallel()
	for name, regime := range regimes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, conn := newRegime(t, regime)
			if _, err := tendrilsql.Migrate(t.Context(), db.URL); err != nil {
				t.Fatal(err)
			}
			s := newScene(t, conn)
			s.testEntries(t)
			mustExec(t, conn, answers)
			forbidden := s.forbidden(t)
			for _, a := range s.everybody(t) {
				// Privileges are the role's: malformed claims change none, whatever the regime.
				if !a.malformed {
					s.wantDenied(t, a, forbidden)
				} else if name != "grants all" {
					continue
				}
				for table := range tables {
					s.testTable(t, a, table)
				}
				s.testDeploy(t, a)
				for name, f := range functions {
					s.testFunction(t, a, name, f)
				}
			}
		})
	}
}

// testEntries holds the lists to the catalogue.
func (s *scene) testEntries(t *testing.T) {
	t.Helper()
	rows, err := s.conn.Query(t.Context(), `
		SELECT kind || ' ' || name FROM (
		  SELECT c.oid, CASE c.relkind WHEN 'S' THEN 'sequence' ELSE 'table' END AS kind, c.relname AS name FROM pg_class c
		  WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
		  UNION ALL SELECT p.oid, 'function', p.proname FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace) o
		WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = o.oid AND d.deptype = 'e') ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for name := range tables {
		want = append(want, "table "+name)
	}
	for name := range functions {
		want = append(want, "function "+name)
	}
	for _, name := range sequences {
		want = append(want, "sequence "+name)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) { // an overloaded function is there twice
		t.Errorf("objects in public = %q, want an entry in tables, sequences or functions for each: %q", got, want)
	}
}

// testTable reads a table.
func (s *scene) testTable(t *testing.T, a actor, table string) {
	t.Helper()
	key := "org_id"
	if table == "orgs" {
		key = "id"
	}
	count := fmt.Sprintf("SELECT count(*), coalesce(array_agg(DISTINCT %s), '{}') FROM public.%s", key, table)
	if !a.reads {
		s.wantDenied(t, a, []string{count})
		return
	}
	want := 0
	switch {
	case a.platform:
		want = one[int](t, s.conn, "SELECT count(*) FROM public."+table)
	case a.org != uuid.Nil && (tables[table] == "viewer" || a.member == "admin"):
		want = one[int](t, s.conn, fmt.Sprintf("SELECT count(*) FROM public.%s WHERE %s = $1", table, key), a.org)
		if want == 0 {
			t.Errorf("%s has no row of %s's organisation: the test shows nothing", table, a.name)
		}
	}
	var got int
	var orgs []uuid.UUID
	err := s.attempt(t, a, func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), count).Scan(&got, &orgs) })
	if err != nil || got != want || !a.platform && slices.ContainsFunc(orgs, func(o uuid.UUID) bool { return o != a.org }) {
		t.Errorf("%s sees %d rows of %s, of organisations %v, %v, want %d of its own", a.name, got, table, orgs, err, want)
	}
}

// testDeploy inserts what is a whole deploy.
func (s *scene) testDeploy(t *testing.T, a actor) {
	t.Helper()
	insert := func(cluster uuid.UUID, columns, values string) error {
		return s.attempt(t, a, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot"+columns+") VALUES ($1, $2"+values+") ON CONFLICT DO NOTHING", cluster, snapshot("new"))
			return err
		})
	}
	may, want := a.platform || a.org == s.org && atLeast(a.member, "operator"), "PT404 cluster_not_found"
	switch {
	case !a.deploys:
		want = "42501"
	case may:
		want = "ok"
	}
	s.wantAnswer(t, a, "a deploy", insert(s.cluster, "", ""), want)
	s.wantAnswer(t, a, "a deploy with all that it may say", insert(s.cluster, ", id, priority", ", gen_random_uuid(), 1"), want)
	if !a.platform {
		s.wantAnswer(t, a, "a deploy in another's name", insert(s.cluster, ", requested_by", ", gen_random_uuid()"), map[bool]string{true: "PT404 cluster_not_found", false: "42501"}[a.dbRole == "service_role"])
	}
	// What would pass by the question who asks, or by an approval.
	for column, value := range map[string]string{"attempt": "2", "retry_of": "gen_random_uuid()", "not_before": "now()", "approved_plan": "repeat('d', 64)", "status": "'QUEUED'"} {
		s.wantAnswer(t, a, "a deploy with "+column, insert(s.cluster, ", "+column, ", "+value), "42501")
	}
	if a.deploys && !may {
		// Whatever else is wrong with it: a stranger is told the same of a cluster
		// that is there and of one that is not.
		for _, with := range [][2]string{{"", ""}, {", priority", ", 101"}, {", priority", ", NULL"}, {", id", ", NULL"}, {", id", ", '" + s.queued.String() + "'"}} {
			absent := uuid.New()
			there, none := insert(s.cluster, with[0], with[1]), insert(absent, with[0], with[1])
			if got, want := strings.ReplaceAll(fmt.Sprint(there), s.cluster.String(), "ID"), strings.ReplaceAll(fmt.Sprint(none), absent.String(), "ID"); got != want {
				t.Errorf("%s deploys (%q): %q to a cluster that is there and %q to none, want one answer", a.name, with, got, want)
			}
		}
	}
}

// testFunction calls a function that would do something, and undoes it.
func (s *scene) testFunction(t *testing.T, a actor, name string, f callers) {
	t.Helper()
	call := func(args ...any) error {
		list := make([]string, len(args))
		for i := range args {
			list[i] = fmt.Sprintf("$%d", i+1)
		}
		query := fmt.Sprintf("SELECT public.%s(%s)", name, strings.Join(list, ", "))
		if p, ok := f.(forPeople); ok && p.query != "" {
			query = p.query
		}
		return s.attempt(t, a, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), query, args...)
			return err
		})
	}
	executes := slices.Contains(f.roles(), a.dbRole)
	switch f := f.(type) {
	case forAgents:
		want := map[bool]string{true: "PT401 token_invalid", false: "42501"}[executes]
		for _, hash := range []string{"", strings.Repeat("0", 64), s.token} {
			s.wantAnswer(t, a, name+" with a wrong token", call(append([]any{hash}, f.args(s)...)...), want)
		}
		if executes {
			want = "ok"
		}
		s.wantAnswer(t, a, name+" with the token of cluster A", call(append([]any{s.tokenHash}, f.args(s)...)...), want)
	case forPeople:
		var rest []any
		if f.rest != nil {
			rest = f.rest(s)
		}
		absent := uuid.New()
		there, none := call(append([]any{f.of(s)}, rest...)...), call(append([]any{absent}, rest...)...)
		switch {
		case !executes:
			s.wantAnswer(t, a, name, there, "42501")
		case a.platform || a.org == s.org && atLeast(a.member, f.least):
			s.wantAnswer(t, a, name, there, "ok")
		default:
			s.wantAnswer(t, a, name, there, "PT404 "+f.otherwise)
			if got, want := strings.ReplaceAll(fmt.Sprint(there), f.of(s).String(), "ID"), strings.ReplaceAll(fmt.Sprint(none), absent.String(), "ID"); got != want {
				t.Errorf("%s calls %s: %q for what is there and %q for what is not, want one answer", a.name, name, got, want)
			}
		}
	case forJoiners:
		want := map[bool]string{true: "PT401 signature_missing", false: "42501"}[executes]
		s.wantAnswer(t, a, name+" by a request that is not signed", call(f.args...), want)
	case forAdmins:
		want := "42501"
		switch {
		case executes && (a.platform || a.member == "admin"):
			want = "ok"
		case executes:
			want = "PT403 not_an_admin"
		}
		s.wantAnswer(t, a, name, call(f.args...), want)
	case forOneself:
		want := "42501"
		switch {
		case executes && a.malformed:
			want = "PT401 not_signed_in"
		case executes && a.name == "admin":
			want = "ok"
		case executes:
			want = cmp.Or(f.others, "ok")
		}
		s.wantAnswer(t, a, name, call(f.args(s)...), want)
	case forThePlatform:
		want := "42501"
		switch {
		case a.platform:
			want = "ok"
		case executes:
			want = "PT403 not_allowed"
		}
		s.wantAnswer(t, a, name, call("new", uuid.New()), want)
	}
}

// forbidden are statements that no outsider may run: they change tables in public, use a
// sequence there, or name what is in schema tendril.
func (s *scene) forbidden(t *testing.T) []string {
	t.Helper()
	rows, err := s.conn.Query(t.Context(), `
		SELECT 'SELECT * FROM ' || c.oid::regclass FROM pg_class c WHERE c.relnamespace = 'tendril'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
		UNION ALL
		SELECT format('SELECT tendril.%I(%s)', p.proname, (SELECT string_agg('NULL::' || format_type(a, NULL), ', ' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY u (a, n)))
		FROM pg_proc p WHERE p.pronamespace = 'tendril'::regnamespace
		UNION ALL SELECT 'CREATE TABLE tendril.x ()' UNION ALL SELECT 'CREATE TABLE public.x ()'`)
	if err != nil {
		t.Fatal(err)
	}
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(statements) < 40 {
		t.Fatalf("what there is in schema tendril = %d objects, %v, want all", len(statements), err)
	}
	for table := range tables {
		key := "org_id"
		if table == "orgs" {
			key = "id"
		}
		for _, statement := range []string{
			"INSERT INTO public.%[1]s (%[2]s) VALUES (DEFAULT)", "UPDATE public.%[1]s SET %[2]s = DEFAULT", "DELETE FROM public.%[1]s",
			"SELECT FROM public.%[1]s FOR KEY SHARE", "LOCK TABLE public.%[1]s IN SHARE MODE",
		} {
			statements = append(statements, fmt.Sprintf(statement, table, key))
		}
		if table != "cluster_overview" { // a view
			statements = append(statements, "TRUNCATE public."+table+" CASCADE", "ALTER TABLE public."+table+" DISABLE ROW LEVEL SECURITY", "DROP TABLE public."+table)
		}
	}
	for _, sequence := range sequences {
		statements = append(statements, "SELECT nextval('public."+sequence+"')", "SELECT setval('public."+sequence+"', 1)", "SELECT last_value FROM public."+sequence)
	}
	return statements
}

// answers makes a function that runs statements as its caller and returns the SQLSTATE of
// each, 00000 where it went well. One call is far faster than a transaction for each.
const answers = `CREATE SCHEMA trial;
	CREATE FUNCTION trial.answers(statements text[]) RETURNS text[] LANGUAGE plpgsql AS $$
	DECLARE
	  all_of_them text[] := '{}';
	  statement   text;
	BEGIN
	  FOREACH statement IN ARRAY statements LOOP
	    BEGIN
	      EXECUTE statement;
	      all_of_them := all_of_them || '00000'::text;
	    EXCEPTION WHEN OTHERS THEN
	      all_of_them := all_of_them || SQLSTATE::text;
	    END;
	  END LOOP;
	  RETURN all_of_them;
	END $$;
	GRANT USAGE ON SCHEMA trial TO PUBLIC;
	GRANT EXECUTE ON FUNCTION trial.answers(text[]) TO PUBLIC`

// wantDenied tries statements as an actor. The database needs the function of answers.
func (s *scene) wantDenied(t *testing.T, a actor, statements []string) {
	t.Helper()
	var got []string
	err := s.attempt(t, a, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT trial.answers($1)", statements).Scan(&got)
	})
	if err != nil || len(got) != len(statements) {
		t.Fatalf("%s: %d answers to %d statements, %v", a.name, len(got), len(statements), err)
	}
	for i, answer := range got {
		if answer != "42501" {
			t.Errorf("%s: %s = %s, want 42501", a.name, statements[i], answer)
		}
	}
}

// wantAnswer holds an answer to "ok", a SQLSTATE, or a SQLSTATE and a reason.
func (s *scene) wantAnswer(t *testing.T, a actor, what string, err error, want string) {
	t.Helper()
	if got := answerOf(err); got != want {
		t.Errorf("%s: %s = %s (%v), want %s", a.name, what, got, err, want)
	}
}
