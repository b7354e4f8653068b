package sql_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
	tendrilsql "github.com/tendril-run/tendril/sql"
)

var update = flag.Bool("update", false, "write docs/CONTRACT.md")

const contractPath = "../docs/CONTRACT.md"

// docs/CONTRACT.md is what the database and the headers of its functions say.
func TestContractIsWritten(t *testing.T) {
	t.Parallel()
	got := writeContract(t, pgtest.New(t, migrated).Conn(t))
	if *update {
		if err := os.WriteFile(contractPath, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(contractPath)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
		line := 0
		for line < min(len(gotLines), len(wantLines))-1 && gotLines[line] == wantLines[line] {
			line++
		}
		t.Errorf("docs/CONTRACT.md is not what the database says, from line %d on (go test ./sql -run Contract -update writes it):\n got %s\nwant %s",
			line+1, gotLines[line], wantLines[line])
	}
}

// writeContract makes docs/CONTRACT.md.
func writeContract(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	c := &contract{t: t, conn: conn, headers: readHeaders(t), takes: signatures(t, conn)}
	c.callers = mayCall(t, conn, c.headers)
	c.say(contractHead, one[int](t, conn, "SELECT tendril.contract_version()"))
	c.writeStates()
	c.say("\n## Deploy\n")
	c.writeDeploy()
	c.say("\n## Functions for agents\n\nRoles `anon` and `tendril_agent` may call these.")
	c.writeFunctions(func(who []string) bool { return slices.Contains(who, "tendril_agent") })
	c.writeChannels()
	c.say("\n## Functions for people\n\nRole `authenticated` may call these as a user, and `service_role` those that are not about the caller.")
	c.writeFunctions(func(who []string) bool {
		return slices.Contains(who, "authenticated") && !slices.Equal(who, []string{"authenticated", "policies"})
	})
	c.say("\n## Functions for the platform\n\nOnly `service_role` may call these.")
	c.writeFunctions(func(who []string) bool { return slices.Equal(who, []string{"service_role"}) })
	c.say("\n## Functions for the control plane\n\nOnly the owner of schema `tendril` may call these: `trellis`, and jobs of pg_cron. They may change with any release.")
	c.writeFunctions(func(who []string) bool { return slices.Contains(who, "the control plane") })
	c.say("\n## Functions for policies\n\nRow-level security calls these as the user who reads. Schema `tendril` is closed, so nobody else can name them.")
	c.writeFunctions(func(who []string) bool { return slices.Contains(who, "policies") })
	c.writeTables()
	c.writeErrors()
	return c.text.String()
}

const contractHead = `# The contract

<!-- Made by "go test ./sql -run Contract -update" from sql/functions and from the comments in the database. Do not edit. -->

This page is for developers of an agent, a client or a control plane in another language. The database is the contract between control plane and agents: SQL checks every rule, for all callers. This is version %d of the contract.

[Roles and tokens](#roles-and-tokens) · [Calls](#calls) · [A run](#a-run) · [States of a provision](#states-of-a-provision) · [Deploy](#deploy) · [Functions for agents](#functions-for-agents) · [Functions for people](#functions-for-people) · [Tables](#tables) · [Errors](#errors)

## Roles and tokens

| Role | Who |
|---|---|
| ` + "`anon`" + ` | Agents that call through PostgREST, on Supabase or on ` + "`trellis serve`" + ` |
| ` + "`tendril_agent`" + ` | Agents with a connection to PostgreSQL: a login role that is a member of it |
| ` + "`authenticated`" + ` | People. The user id is ` + "`sub`" + ` of the claims in ` + "`request.jwt.claims`" + ` |
| ` + "`service_role`" + ` | Back ends of the platform that act without a user |
| the owner of schema ` + "`tendril`" + ` | The control plane: ` + "`trellis`" + `, and jobs of pg_cron |

Agents authenticate with a token of their cluster, in each call: ` + "`p_token_hash`" + ` is the SHA-256 of the token's text (` + "`tnd_…`" + `), as 64 hexadecimal digits in lower case. The database stores a digest of that digest.

Schema ` + "`public`" + ` has what outsiders may use: functions, and tables under row-level security. Schema ` + "`tendril`" + ` is internal.

## Calls

Call functions by name with named arguments: ` + "`POST /rest/v1/rpc/NAME`" + ` with a JSON object through PostgREST, or ` + "`SELECT * FROM public.NAME(…)`" + ` with the extended protocol, so that token hashes stay out of the server's log. Arguments with a default may be omitted. Times are ` + "`timestamptz`" + `.

A refusal has the SQLSTATE ` + "`PTnnn`" + `, which PostgREST answers as HTTP status nnn. Its DETAIL is the reason, a stable word for programs; its message and hint are for people and may change. A function that refuses has changed nothing.

- ` + "`PT413`" + `, ` + "`PT422`" + ` and SQLSTATE classes 21, 22 and 23: the content is refused. Leave it out, and say so in the run's log (` + "`set_aside`" + `).
- Other ` + "`PT4xx`" + ` but ` + "`PT429`" + `: the call is refused, and the same call will not succeed.
- ` + "`PT429`" + `, ` + "`PT5xx`" + `, any other SQLSTATE, or no answer: an outage. Keep what you have and repeat the call later, with growing delays.
- Each call of an agent may be repeated after a lost reply, with the same arguments.

## A run

1. At its start an agent calls ` + "`register_agent`" + `, delivers what earlier runs left on its disk, and calls ` + "`fail_orphaned_provisions`" + `.
2. It calls ` + "`agent_heartbeat`" + ` every ` + "`heartbeat_seconds`" + ` with the claims it runs, and stops those that the answer names.
3. With a free slot it calls ` + "`fetch_next_provision`" + ` with a new claim id: after a notification, after a run, and every ` + "`poll_seconds`" + `.
4. It reports stages with ` + "`update_provision_status`" + ` and output with ` + "`append_provision_log`" + ` or ` + "`insert_provision_log`" + `.
5. Before it applies it reports stage ` + "`apply`" + `, and applies only if that call succeeds. A plan that needs approval is stored with ` + "`put_blob`" + ` and reported as ` + "`AWAITING_APPROVAL`" + `; after the approval the provision is fetched again with ` + "`approved_plan`" + `.
6. It appends the last log lines and reports the result. An apply that has begun is never stopped because the database is away: the agent stores logs and result and delivers them later. Only work that continues without the agent is set down before the lease ends.`

// contract is the page that is written.
type contract struct {
	t       *testing.T
	conn    *pgx.Conn
	headers map[string]*functionHeader
	takes   map[string]signature
	callers map[string][]string
	text    strings.Builder
	written int // functions
}

func (c *contract) say(format string, args ...any) {
	_, _ = fmt.Fprintf(&c.text, format+"\n", args...)
}

// howStatusChanges says of each change of status what brings it about.
var howStatusChanges = map[string]string{
	"QUEUED → PROCESSING":            "an agent claims it: `fetch_next_provision`",
	"QUEUED → CANCELLED":             "a person cancels it: `cancel_provision`",
	"PROCESSING → SUCCESS":           "the agent reports it: `update_provision_status`",
	"PROCESSING → FAILED":            "the agent reports it, or is lost: `update_provision_status`, `fail_orphaned_provisions`, `tendril.reap`",
	"PROCESSING → CANCELLED":         "the agent reports it after `cancel_provision`",
	"PROCESSING → AWAITING_APPROVAL": "the agent reports a plan that needs approval: `update_provision_status`",
	"AWAITING_APPROVAL → QUEUED":     "a person approves the plan: `approve_provision`",
	"AWAITING_APPROVAL → CANCELLED":  "a person rejects or cancels it, or nobody approves in time: `reject_provision`, `cancel_provision`, `tendril.reap`",
	"PROCESSING → AWAITING_INPUT":    "the agent reports what a person is to do: `update_provision_status`",
	"PROCESSING → QUEUED":            "its work continues by itself, and the agent sets it down or has crashed, or it found no room in a pool: `update_provision_status`, `fail_orphaned_provisions`",
	"AWAITING_INPUT → QUEUED":        "a person says that it is done, or can't be: `give_input`",
	"AWAITING_INPUT → CANCELLED":     "a person cancels it, or nobody answers in time: `cancel_provision`, `tendril.reap`",
	"FAILED → SUCCESS":               "the lost agent reports its result after all",
	"FAILED → CANCELLED":             "the lost agent reports its result after all",
}

// answered and setDown stand in for an error code where a person has answered, and where an
// agent has set the run down.
const (
	answered = "answered"
	setDown  = "set down"
)

// writeStates draws what tendril.guard_status() lets through: it tries every change.
func (c *contract) writeStates() {
	c.t.Helper()
	c.say("\n## States of a provision\n")
	var statuses []string
	for _, m := range regexp.MustCompile(`'([A-Z_]+)'`).FindAllStringSubmatch(one[string](c.t, c.conn,
		"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'provisions_status_check'"), -1) {
		statuses = append(statuses, m[1])
	}
	tried := pgx.BeginFunc(c.t.Context(), c.conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(c.t.Context(), `CREATE TEMP TABLE tried (id uuid, status text, plan_digest text, approved_plan text, error_code text, waits_for text) ON COMMIT DROP;
			CREATE TRIGGER guard BEFORE UPDATE ON tried FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION tendril.guard_status()`)
		if err != nil {
			return err
		}
		may := func(from, to string, code, plan, approved *string) bool {
			inner, err := tx.Begin(c.t.Context())
			if err != nil {
				c.t.Fatal(err)
			}
			defer func() { _ = inner.Rollback(c.t.Context()) }()
			if _, err = inner.Exec(c.t.Context(), "INSERT INTO tried (id, status, plan_digest, approved_plan, error_code) SELECT gen_random_uuid(), $1, $2, $3, $4", from, plan, approved, code); err != nil {
				c.t.Fatal(err)
			}
			if code != nil && *code == answered {
				// Its provision is not there.
				if _, err = inner.Exec(c.t.Context(), `SET LOCAL session_replication_role = replica;
					INSERT INTO public.provision_inputs (provision_id, org_id, request, expires_at, answer, answered_at)
					SELECT id, id, '{}', now(), '{}', now() FROM tried;
					SET LOCAL session_replication_role = origin`); err != nil {
					c.t.Fatal(err)
				}
			}
			if code != nil && *code == setDown {
				if _, err = inner.Exec(c.t.Context(), `SET LOCAL session_replication_role = replica;
					INSERT INTO tendril.claims (id, provision_id, workspace_id, cluster_id, instance_id, boot_id, host, lease_until, apply_begun_at, plan_digest, set_down_at)
					SELECT id, id, id, id, id, id, '', now(), now(), 'digest', now() FROM tried;
					SET LOCAL session_replication_role = origin`); err != nil {
					c.t.Fatal(err)
				}
			}
			_, err = inner.Exec(c.t.Context(), "UPDATE tried SET status = $1", to)
			return err == nil
		}
		lost, answer, down, digest := "agent_lost", answered, setDown, "digest"
		var drawing, table []string
		seen := map[string]bool{}
		for _, from := range statuses {
			for _, to := range statuses {
				change := from + " → " + to
				only := ""
				switch {
				case from == to:
					continue
				case may(from, to, nil, nil, nil):
				case may(from, to, nil, &digest, nil):
					only = "with `plan_digest`"
				case may(from, to, nil, &digest, &digest):
					only = "with `approved_plan` equal to `plan_digest`"
				case may(from, to, &answer, nil, nil):
					only = "with an answer in `provision_inputs`"
				case may(from, to, &down, nil, nil):
					only = "when its run is set down, or waits for room in a pool"
				case may(from, to, &lost, nil, nil):
					only = "only from `error_code` agent_lost"
				default:
					continue
				}
				how := howStatusChanges[change]
				if how == "" {
					c.t.Errorf("nothing says how a provision becomes %s", change)
				}
				seen[change] = true
				drawing = append(drawing, fmt.Sprintf("  %s --> %s", from, to))
				table = append(table, fmt.Sprintf("| %s | %s | %s | %s |", from, to, how, only))
			}
		}
		for change := range howStatusChanges {
			if !seen[change] {
				c.t.Errorf("the database does not let a provision become %s", change)
			}
		}
		c.say("```mermaid\nstateDiagram-v2\n  [*] --> QUEUED\n%s\n```\n", strings.Join(drawing, "\n"))
		c.say("| From | To | When | Condition |\n|---|---|---|---|\n| | QUEUED | a deploy is inserted | |\n%s", strings.Join(table, "\n"))
		return nil
	})
	if tried != nil {
		c.t.Fatal(tried)
	}
}

// writeDeploy says how a provision is made: by a row.
func (c *contract) writeDeploy() {
	c.t.Helper()
	h := c.headers[deploy]
	c.say("%s\n", strings.Join(h.description, "\n\n"))
	c.say("```sql\nINSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id, number;\n```\n")
	c.say("| Role | Columns that it may set |\n|---|---|")
	rows, _ := c.conn.Query(c.t.Context(), `SELECT r.role, string_agg('`+"`' || a.attname || '`"+`', ', ' ORDER BY a.attnum)
		FROM unnest(ARRAY['authenticated', 'service_role']) r (role), pg_attribute a
		WHERE a.attrelid = 'public.provisions'::regclass AND a.attnum > 0 AND has_column_privilege(r.role, a.attrelid, a.attnum, 'INSERT') GROUP BY r.role ORDER BY r.role`)
	var role, columns string
	if _, err := pgx.ForEachRow(rows, []any{&role, &columns}, func() error { c.say("| `%s` | %s |", role, columns); return nil }); err != nil {
		c.t.Fatal(err)
	}
	c.say("\nErrors: %s.\n\n### The snapshot\n", errorList(h))
	snapshot := c.headers["snapshot_problems"]
	var keys []string
	for _, k := range snapshot.parts["Arguments"].items[0].keys {
		keys = append(keys, k.name)
	}
	known := regexp.MustCompile(`(?s)c_known\s+CONSTANT text\[\] := ARRAY\[(.*?)\]`).FindStringSubmatch(snapshot.body)[1]
	if want := strings.FieldsFunc(known, func(r rune) bool { return strings.ContainsRune("', \n", r) }); !slices.Equal(keys, want) {
		c.t.Errorf("the header of snapshot_problems has the keys %q, want %q", keys, want)
	}
	c.say("`config_snapshot` is %s:\n", strings.TrimPrefix(snapshot.parts["Arguments"].items[0].text, "config_snapshot, "))
	c.writeItems(snapshot.parts["Arguments"].items[0].keys, nil, "")
}

func errorList(h *functionHeader) string {
	var all []string
	for _, e := range h.names("Errors") {
		all = append(all, "`"+e+"`")
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// writeFunctions writes those that some may call, grouped by their files' topics.
func (c *contract) writeFunctions(for_ func(who []string) bool) {
	c.t.Helper()
	texts := tendrilsql.FunctionTexts(c.t)
	for _, file := range slices.Sorted(maps.Keys(texts)) {
		titled := false
		for _, m := range headed.FindAllStringSubmatch(texts[file], -1) {
			name := m[3]
			who := c.callers[name]
			if slices.Contains([]string{"current_user_id", "orgs_with_role"}, name) {
				who = append(slices.Clone(who), "policies")
			}
			if len(who) == 0 || !for_(who) {
				continue
			}
			if !titled {
				title, _, _ := strings.Cut(strings.TrimPrefix(texts[file], "-- "), "\n\n")
				title, _, _ = strings.Cut(strings.ReplaceAll(title, "\n-- ", " "), ".")
				title, _, _ = strings.Cut(title, ": ")
				c.say("\n### %s", title)
				titled = true
			}
			c.writeFunction(c.headers[name])
		}
	}
}

func (c *contract) writeFunction(h *functionHeader) {
	c.written++
	s := c.takes[h.name]
	name := h.name
	if h.schema == "tendril" {
		name = "tendril." + name
	}
	c.say("\n#### `%s(%s)`\n", name, strings.Join(s.arguments, ", "))
	c.say("%s\n", strings.Join(h.description, "\n\n"))
	c.writeItems(h.parts["Arguments"].items, s.types, "")
	answers, items := h.parts["Answers"].text, h.parts["Answers"].items
	kind := s.answers
	switch {
	case strings.HasPrefix(kind, "TABLE") || kind == "record" || kind == "void":
		kind = ""
	default:
		kind = "`" + kind + "`, "
	}
	if len(s.arguments) > 0 {
		c.say("")
	}
	c.say("Answers %s%s", kind, answers)
	if len(items) > 0 {
		c.say("")
		types := s.types
		if s.columns == nil {
			types = nil
		}
		c.writeItems(items, types, "")
	}
	c.say("\nErrors: %s.", errorList(h))
	if who := c.callers[h.name]; slices.Equal(who, []string{"authenticated"}) && h.schema == "public" {
		c.say("\nOnly for users: `service_role` may not call it.")
	}
}

func (c *contract) writeItems(items []headerItem, types map[string]string, indent string) {
	for _, i := range items {
		kind := ""
		if k := types[i.name]; k != "" {
			kind = " `" + k + "`"
		}
		c.say("%s- `%s`%s: %s", indent, i.name, kind, i.text)
		c.writeItems(i.keys, nil, indent+"  ")
	}
}

// channels are those of NOTIFY, with what an id on them is and says.
var channels = map[string]string{
	"tendril_work":      "a cluster: a workspace of it may have become runnable; call `fetch_next_provision`",
	"tendril_agent":     "an agent's instance: a run of it is to stop, or only it may run something; call `agent_heartbeat`",
	"tendril_attention": "a cluster: the same, for agents of releases that do not listen to `tendril_agent`",
	"tendril_provision": "a provision: its status, stage or log has changed; read it again",
}

func (c *contract) writeChannels() {
	c.t.Helper()
	c.say("\n### Notifications\n\nSessions that LISTEN get an id. It is a hint, never the truth: any role can send one, and the database skips notifications when its queue is half full. Agents without a session of their own poll.\n\n| Channel | The id of |\n|---|---|")
	used := map[string]bool{}
	for _, h := range c.headers {
		for _, m := range regexp.MustCompile(`tendril\.notify\('(\w+)'`).FindAllStringSubmatch(h.body, -1) {
			used[m[1]] = true
		}
	}
	if got, want := slices.Sorted(maps.Keys(channels)), slices.Sorted(maps.Keys(used)); !slices.Equal(got, want) {
		c.t.Errorf("the channels that are described are %q, want those that functions notify, %q", got, want)
	}
	for _, name := range slices.Sorted(maps.Keys(channels)) {
		c.say("| `%s` | %s |", name, channels[name])
	}
}

// writeTables writes all tables and views, with their columns and who may read them.
func (c *contract) writeTables() {
	c.t.Helper()
	type column struct{ name, kind, about string }
	type table struct {
		schema, name, about, readers string
		policies                     string
		columns                      []column
	}
	rows, _ := c.conn.Query(c.t.Context(), `
		SELECT n.nspname, c.relname, coalesce(obj_description(c.oid, 'pg_class'), ''),
		  coalesce((SELECT string_agg(r.role, ',' ORDER BY r.n) FROM unnest(ARRAY['anon', 'authenticated', 'service_role', 'tendril_agent']) WITH ORDINALITY r (role, n)
		            WHERE has_table_privilege(r.role, c.oid, 'SELECT')), ''),
		  coalesce((SELECT string_agg(pg_get_expr(p.polqual, p.polrelid), ' ') FROM pg_policy p WHERE p.polrelid = c.oid AND p.polcmd = 'r'), '')
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname IN ('public', 'tendril') AND c.relkind IN ('r', 'p', 'v') ORDER BY n.nspname, c.relname`)
	var all []*table
	var one table
	if _, err := pgx.ForEachRow(rows, []any{&one.schema, &one.name, &one.about, &one.readers, &one.policies}, func() error {
		copied := one
		all = append(all, &copied)
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	for _, t := range all {
		rows, _ := c.conn.Query(c.t.Context(), `
			SELECT a.attname, format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull OR c.relkind = 'v' THEN '' ELSE ', null' END, coalesce(col_description(c.oid, a.attnum), '')
			FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
			WHERE c.oid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`, t.schema+"."+t.name)
		var col column
		if _, err := pgx.ForEachRow(rows, []any{&col.name, &col.kind, &col.about}, func() error { t.columns = append(t.columns, col); return nil }); err != nil {
			c.t.Fatal(err)
		}
	}
	schema := ""
	for _, t := range all {
		if t.schema != schema {
			schema = t.schema
			c.say("%s", map[string]string{
				"public":  "\n## Tables\n\n`service_role` reads all rows of these; users read rows of organisations where they have the role that is named. A type with \"null\" may be null.",
				"tendril": "\n## Internal tables\n\nOnly the control plane reads these.",
			}[schema])
		}
		c.say("\n### %s\n\n%s\n", t.name, t.about)
		if t.readers != "" {
			if want := "authenticated,service_role"; t.readers != want {
				c.t.Errorf("%s is read by %s, want %s", t.name, t.readers, want)
			}
			roles := regexp.MustCompile(`orgs_with_role\('(\w+)'`).FindStringSubmatch(t.policies)
			switch {
			case roles != nil:
				c.say("Readers: users with the role %s.\n", roles[1])
			default:
				c.say("Readers: as its tables.\n")
			}
		}
		switch how := retention[t.schema+"."+t.name]; how {
		case "", "does not grow":
		default:
			c.say("Kept: %s.\n", how)
		}
		head, usually := "| Column | Type | Meaning |\n|---|---|---|", func(string) string { return "" }
		if t.schema+"."+t.name == "tendril.settings" {
			head, usually = "| Column | Type | Default | Meaning |\n|---|---|---|---|", c.defaults()
		}
		c.say("%s", head)
		for _, col := range t.columns {
			c.say("| `%s` | %s | %s%s |", col.name, col.kind, usually(col.name), strings.ReplaceAll(col.about, "|", `\|`))
		}
	}
}

// defaults returns the cell with the default of each setting, bytes in GiB or MiB.
func (c *contract) defaults() func(name string) string {
	c.t.Helper()
	rows, _ := c.conn.Query(c.t.Context(), `SELECT s.key, coalesce(s.value, 'NULL') FROM tendril.settings t, jsonb_each_text(to_jsonb(t)) s`)
	all := map[string]string{"lock_salt": "random"}
	var name, value string
	if _, err := pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && n%(1<<20) == 0 {
			value = fmt.Sprintf("%d MiB", n>>20)
			if n%(1<<30) == 0 {
				value = fmt.Sprintf("%d GiB", n>>30)
			}
		}
		all[name] = cmp.Or(all[name], value)
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	return func(name string) string { return all[name] + " | " }
}

// writeErrors writes every reason, with the functions that answer it.
func (c *contract) writeErrors() {
	c.say("\n## Errors\n\n| SQLSTATE | Reason | Meaning |\n|---|---|---|")
	for _, i := range c.headers["refuse"].parts["Reasons"].items {
		code, reason, _ := strings.Cut(i.name, " ")
		c.say("| %s | `%s` | %s |", code, reason, i.text)
	}
}
