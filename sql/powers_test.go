package sql_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// bearer is somebody with an API token, or a tool that they use.
type bearer struct {
	w      *world
	user   uuid.UUID
	claims string
}

// token makes an API token of a person's, with powers; "": all that the person may.
func (w *world) bearer(t *testing.T, user uuid.UUID, powers string) bearer {
	t.Helper()
	mustExec(t, w.conn, "INSERT INTO public.templates (org_id, name, repo, version) VALUES ($1, 'envtempl', 'https://git.example/acme/envtempl', 'v1.2.0') ON CONFLICT DO NOTHING", w.org)
	id := one[uuid.UUID](t, w.conn, "SELECT token_id FROM tendril.issue_api_token($1, 'a test', '1 day', CASE WHEN $2 <> '' THEN jsonb_build_object('powers', $2::jsonb) END)", user, powers)
	return bearer{w, user, fmt.Sprintf(`{"sub": %q, "role": "authenticated", "credential": "api_token", "token": %q}`, user, id)}
}

// tool is the same, used by a tool for language models.
func (b bearer) tool() bearer {
	b.claims = strings.TrimSuffix(b.claims, "}") + `, "tool": "a client/1"}`
	return b
}

// do runs a statement that answers one value, and commits.
func (b bearer) do(t *testing.T, into any, query string, args ...any) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), b.w.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', $1, true), set_config('role', 'authenticated', true)", b.claims); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), query, args...).Scan(into)
	})
}

func (b bearer) ask(t *testing.T, operation, workspace string) (id uuid.UUID, err error) {
	t.Helper()
	s := snapshot(workspace)
	if more := map[string]string{"power": `, "targets": ["machine.ada"], "power": "stop"}`, "unlock": `, "lock_id": "abc"}`}[operation]; more != "" {
		s = strings.TrimSuffix(s, "}") + more
	}
	err = b.do(t, &id, "INSERT INTO public.provisions (cluster_id, config_snapshot, operation) VALUES ($1, $2, $3) RETURNING id", b.w.cluster, s, operation)
	return id, err
}

// What a token may ask for, and whether that waits for a person.
func TestTokenAsks(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for _, test := range []struct {
		powers, operation, workspace string
		want                         string // of least_approval, or a refusal
	}{
		{``, "apply", "prod/a", ""},
		{``, "destroy", "prod/a", ""},
		{`{}`, "plan", "prod/a", "always"},
		{`{}`, "apply", "prod/a", "always"},
		{`{}`, "refresh", "prod/a", "always"},
		{`{}`, "destroy", "prod/a", "always"},
		{`{}`, "power", "prod/a", "PT403 token_may_not"},
		{`{}`, "unlock", "prod/a", "PT403 token_may_not"},
		{`{"change": "propose"}`, "apply", "prod/a", "always"},
		{`{"change": "nothing"}`, "plan", "prod/a", "PT403 token_may_not"},
		{`{"change": "nothing", "may_apply": ["*"]}`, "apply", "prod/a", "PT403 token_may_not"},
		{`{"may_apply": ["lab/*"]}`, "apply", "lab/a", ""},
		{`{"may_apply": ["lab/*"]}`, "power", "lab/a", ""},
		{`{"may_apply": ["lab/*"]}`, "destroy", "lab/a", "always"},
		{`{"may_apply": ["lab/*"]}`, "apply", "prod/a", "always"},
		{`{"may_apply": ["lab/*"]}`, "apply", "lab", "always"},
		{`{"may_apply": ["lab/*"]}`, "apply", "my-lab/a", "always"},
		{`{"may_apply": ["l_b/%"]}`, "apply", "lab/a", "always"},
		{`{"may_apply": ["lab/*"], "destroy": false}`, "apply", "lab/a", "destructive"},
		{`{"may_apply": ["lab/*"], "destroy": false}`, "destroy", "lab/a", "PT403 token_may_not"},
		{`{"workspaces": ["lab/*"]}`, "apply", "lab/a", "always"},
		{`{"workspaces": ["lab/*"]}`, "apply", "prod/a", "PT403 token_may_not"},
		{`{"workspaces": ["lab/*"]}`, "plan", "prod/a", "PT403 token_may_not"},
		{`{"workspaces": ["lab/*"], "may_apply": ["*"]}`, "apply", "prod/a", "PT403 token_may_not"},
		{`{"workspaces": []}`, "plan", "prod/a", "PT403 token_may_not"},
	} {
		b := w.bearer(t, w.adminID, test.powers)
		id, err := b.ask(t, test.operation, test.workspace)
		got := answerOf(err)
		if err == nil {
			got = one[string](t, w.conn, "SELECT coalesce(least_approval, '') FROM public.provisions WHERE id = $1", id)
			if with := one[bool](t, w.conn, "SELECT asked_with IS NOT NULL FROM public.provisions WHERE id = $1", id); with != (test.powers != "") {
				t.Errorf("with %s: that it was asked with a token of less power = %v", test.powers, with)
			}
		}
		if got != test.want {
			t.Errorf("%s in %s with %s = %q, want %q", test.operation, test.workspace, test.powers, got, test.want)
		}
	}
	// A tool proposes where its token has no powers of its own.
	id, err := w.bearer(t, w.adminID, "").tool().ask(t, "apply", "prod/b")
	if got := one[*string](t, w.conn, "SELECT least_approval FROM public.provisions WHERE id = $1", id); err != nil || got == nil || *got != "always" {
		t.Errorf("a tool's apply = %v, %v, want one that waits", got, err)
	}
	// So does one whose person has signed in without a token.
	if _, err := (bearer{w, w.adminID, fmt.Sprintf(`{"sub": %q, "tool": "x"}`, w.adminID)}).ask(t, "power", "prod/b"); answerOf(err) != "PT403 token_may_not" {
		t.Errorf("a tool without a token: %v", err)
	}
	// What is no token of the person's has no power at all.
	for _, token := range []string{uuid.NewString(), "x", ""} {
		if _, err := (bearer{w, w.adminID, fmt.Sprintf(`{"sub": %q, "token": %q}`, w.adminID, token)}).ask(t, "plan", "prod/b"); answerOf(err) != "PT403 token_may_not" {
			t.Errorf("with token %q: %v", token, err)
		}
	}
}

// A run that was proposed is applied with a person's approval alone, and so are its attempts.
func TestProposedRunWaits(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	b := w.bearer(t, w.operator, `{}`)
	id, err := b.ask(t, "apply", "prod/a")
	if err != nil {
		t.Fatal(err)
	}
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", planned(false))
	wantRefusal(t, agent.report(t, claim, "PROCESSING", applying), "PT409", "approval_needed")
	if _, err := w.conn.Exec(t.Context(), "UPDATE public.provisions SET least_approval = NULL WHERE id = $1", id); answerOf(err) != "PT409 immutable" {
		t.Errorf("taking the approval off = %v, want it refused", err)
	}
	agent.mustReport(t, claim, "FAILED", `{"error_code": "init_failed"}`)
	// One more attempt, as the snapshot may ask for.
	err = b.do(t, &id, "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2) RETURNING id", w.cluster, strings.TrimSuffix(snapshot("prod/b"), "}")+`, "max_attempts": 2}`)
	if err != nil {
		t.Fatal(err)
	}
	claim, _ = agent.mustClaim(t)
	agent.mustReport(t, claim, "FAILED", `{"error_code": "init_failed"}`)
	if got := one[string](t, w.conn, "SELECT least_approval || ' ' || (asked_with IS NOT NULL) FROM public.provisions WHERE retry_of = $1", id); got != "always true" {
		t.Errorf("the second attempt = %q, want one that waits too", got)
	}
}

// Who may decide about a run that was proposed.
func TestTokenDecides(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	proposer := w.bearer(t, w.operator, `{"may_apply": ["lab/*"]}`)
	for _, test := range []struct {
		who       string
		b         bearer
		workspace string
		want      string
	}{
		{"the token itself", proposer, "prod/a", "PT403 token_may_not"},
		{"the token itself, where it may apply", proposer, "lab/a", "ok"},
		{"another of the same person, where it may apply", w.bearer(t, w.operator, `{"may_apply": ["*"]}`), "lab/a", "PT403 token_may_not"},
		{"one of the same person that may approve", w.bearer(t, w.operator, `{"approve": true}`), "prod/a", "PT403 token_may_not"},
		{"one of another person that may approve", w.bearer(t, w.adminID, `{"approve": true}`), "prod/a", "ok"},
		{"one of another person that may approve elsewhere", w.bearer(t, w.adminID, `{"approve": true, "workspaces": ["lab/*"]}`), "prod/a", "PT403 token_may_not"},
		{"one of another person that may not", w.bearer(t, w.adminID, `{}`), "prod/a", "PT403 token_may_not"},
		{"a tool of the person", w.bearer(t, w.operator, "").tool(), "prod/a", "PT403 token_may_not"},
		{"a tool of another person", w.bearer(t, w.adminID, "").tool(), "prod/a", "PT403 token_may_not"},
		{"the person", w.bearer(t, w.operator, ""), "prod/a", "ok"},
	} {
		if _, err := proposer.ask(t, "destroy", test.workspace); err != nil {
			t.Fatal(err)
		}
		id := agent.awaits(t)
		var status string
		if got := answerOf(test.b.do(t, &status, "SELECT public.approve_provision($1, $2)", id, aPlan)); got != test.want {
			t.Errorf("%s approves in %s = %s, want %s", test.who, test.workspace, got, test.want)
		}
		// Its own it may take back.
		if err := proposer.do(t, &status, "SELECT public.cancel_provision($1)", id); err != nil || status != "CANCELLED" {
			t.Errorf("taking back its own = %q, %v", status, err)
		}
	}
	// Others' runs are not its to end.
	id := w.deploy(t, w.operator, snapshot("prod/a"))
	var status string
	if got := answerOf(proposer.do(t, &status, "SELECT public.cancel_provision($1)", id)); got != "PT403 token_may_not" {
		t.Errorf("cancelling another's run = %s", got)
	}
	// With four eyes a token's approval is its person's.
	w.policy(t, `{"four_eyes": true}`)
	mustAs[string](t, w, w.operator, "SELECT public.cancel_provision($1)", id)
	if _, err := proposer.ask(t, "destroy", "lab/a"); err != nil {
		t.Fatal(err)
	}
	if got := answerOf(proposer.do(t, &status, "SELECT public.approve_provision($1, $2)", agent.awaits(t), aPlan)); got != "PT403 four_eyes" {
		t.Errorf("approving one's own with four eyes = %s", got)
	}
}

// mayWithPowers are the functions that a token with powers may call: they read, propose, or keep the
// books of its own requests. All others are refused, those too that nobody has thought of here.
var (
	mayReadAlone = []string{"begin_request", "create_api_token", "finish_request", "own_credentials", "own_invitations", "pool_loads", "pool_quota_uses", "provision_agents", "provision_log",
		"state_versions", "why_waiting"}
	mayPropose = []string{"inspect_template", "plan_machines", "preview_machines", "retry_provision"}
)

func TestPowersAreAskedEverywhere(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	s := newScene(t, db.Conn(t))
	for powers, may := range map[string][]string{`{"change": "nothing"}`: mayReadAlone, `{}`: slices.Concat(mayReadAlone, mayPropose)} {
		a := actor{name: powers, role: "authenticated", dbRole: "authenticated", claims: s.bearer(t, s.adminID, powers).claims}
		for name, f := range functions {
			var args []any
			switch f := f.(type) {
			case forPeople:
				args = []any{f.of(s)}
				if f.rest != nil {
					args = append(args, f.rest(s)...)
				}
			case forOneself:
				args = f.args(s)
			case forAdmins:
				args = f.args
			default:
				continue
			}
			list := make([]string, len(args))
			for i := range args {
				list[i] = fmt.Sprintf("$%d", i+1)
			}
			query := fmt.Sprintf("SELECT public.%s(%s)", name, strings.Join(list, ", "))
			if p, ok := f.(forPeople); ok && p.query != "" {
				query = p.query
			}
			got := answerOf(s.attempt(t, a, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), query, args...)
				return err
			}))
			switch refused := got == "PT403 token_may_not"; {
			case slices.Contains(may, name) && name == "create_api_token":
				if got != "PT403 token_makes_token" {
					t.Errorf("%s with powers %s = %s", name, powers, got)
				}
			case slices.Contains(may, name) && refused, !slices.Contains(may, name) && !refused:
				t.Errorf("%s with powers %s = %s", name, powers, got)
			}
		}
	}
}

func TestTokenPowersAreChecked(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	for powers, want := range map[string]string{
		`{"change": "propose", "may_apply": ["lab/*"], "workspaces": ["*"], "destroy": false, "approve": true, "calls_per_minute": 6000, "runs_per_hour": 1000}`: "",
		`[]`: "must be an object", `{"chnage": "x"}`: "chnage: unknown", `{"change": "all"}`: "change: must be", `{"destroy": "no"}`: "destroy: must be", `{"may_apply": "x"}`: "may_apply: must be a list",
		`{"may_apply": [""]}`: "may_apply: must be a list", `{"may_apply": [7]}`: "may_apply: must be a list", `{"workspaces": [` + strings.Repeat(`"a",`, 50) + `"a"]}`: "workspaces: must be a list",
		`{"runs_per_hour": 0}`: "from 1 to 1000", `{"runs_per_hour": 1.5}`: "from 1 to 1000", `{"runs_per_hour": 1001}`: "from 1 to 1000", `{"calls_per_minute": 6001}`: "from 1 to 6000", `{"approve": null}`: "approve: must be",
	} {
		_, err := person[uuid.UUID](t, w, w.adminID, "SELECT token_id FROM public.create_api_token('a', '1 day', $1::jsonb)", powers)
		if want == "" && err != nil || want != "" && !strings.Contains(wantRefusal(t, err, "PT422", "bad_token_powers"), want) {
			t.Errorf("powers %.80s: %v, want %q", powers, err, want)
		}
	}
}

func TestTokenRunsPerHour(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	b, other := w.bearer(t, w.operator, `{"runs_per_hour": 2}`), w.bearer(t, w.operator, `{"runs_per_hour": 2}`)
	for i, test := range []struct {
		b    bearer
		want string
	}{{b, "ok"}, {b, "ok"}, {b, "PT429 too_many_runs"}, {other, "ok"}} {
		if _, err := test.b.ask(t, "plan", "lab/a"); answerOf(err) != test.want {
			t.Errorf("run %d = %v, want %s", i, err, test.want)
		}
	}
	mustExec(t, w.conn, "UPDATE public.provisions SET created_at = created_at - interval '61 minutes'")
	if _, err := b.ask(t, "plan", "lab/a"); err != nil {
		t.Errorf("an hour later = %v", err)
	}
}

// Records of calls are the control plane's own: no role of outsiders writes one, in whatever name.
func TestCallsAreRecorded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "WITH o AS (INSERT INTO public.orgs (name) VALUES ('second') RETURNING id) INSERT INTO public.org_members SELECT id, $1, 'viewer' FROM o", w.viewer)
	token := uuid.New()
	const record = "SELECT tendril.record_calls($1, $2, $3, $4, $5)"
	elsewhere := one[string](t, w.conn, "SELECT o.name FROM public.orgs o JOIN public.org_members m ON m.org_id = o.id WHERE m.user_id = $1", w.stranger)
	for named, want := range map[string]int{w.org.String(): 1, strings.ToUpper(w.org.String()): 1, "second": 1, "": 2, elsewhere: 2, "none": 2} {
		before := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE actor = $1", w.viewer)
		mustExec(t, w.conn, record, w.viewer, token, named, "tool_call", `{"tool": "runs"}`)
		if got := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE actor = $1 AND object_id = $2 AND action = 'tool_call' AND detail ->> 'tool' = 'runs'", w.viewer, token) - before; got != want {
			t.Errorf("a call in organisation %q made %d records, want %d", named, got, want)
		}
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE actor = $1 AND org_id NOT IN (SELECT org_id FROM public.org_members WHERE user_id = $1)", w.viewer); got != 0 {
		t.Errorf("%d records are in organisations of others", got)
	}
	for _, role := range []string{"anon", "authenticated", "service_role", "tendril_agent"} {
		err := w.try(t, role, w.adminID, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), record, w.adminID, token, "", "tool_call", `{}`)
			return err
		})
		if got := answerOf(err); got != "42501" {
			t.Errorf("%s records a call: %s, want it refused", role, got)
		}
		err = w.try(t, role, w.adminID, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "INSERT INTO public.audit_events (org_id, actor, action, object) VALUES ($1, $2, 'tool_call', 'credential')", w.org, w.adminID)
			return err
		})
		if got := answerOf(err); got != "42501" {
			t.Errorf("%s inserts a record: %s, want it refused", role, got)
		}
	}
}

// What somebody does by a token or a tool is in the audit with that.
func TestAuditHasTheTool(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	id := w.deploy(t, w.operator, snapshot("prod/a"))
	b := w.bearer(t, w.operator, `{"may_apply": ["*"]}`).tool()
	var status string
	if err := b.do(t, &status, "SELECT public.cancel_provision($1)", id); err != nil {
		t.Fatal(err)
	}
	if got := one[string](t, w.conn, "SELECT detail ->> 'was' || ' ' || (detail ->> 'token' IS NOT NULL) || ' ' || (detail ->> 'tool' <> '') FROM public.audit_events WHERE action = 'cancel_provision'"); got != "QUEUED true true" {
		t.Errorf("the audit of a cancel by a tool has %q, want its token and its client", got)
	}
	id = w.deploy(t, w.operator, snapshot("prod/b"))
	mustAs[string](t, w, w.operator, "SELECT public.cancel_provision($1)", id)
	if got := one[string](t, w.conn, "SELECT detail::text FROM public.audit_events WHERE action = 'cancel_provision' AND object_id = $1", id); got != `{"was": "QUEUED"}` {
		t.Errorf("the audit of a person's cancel has %s", got)
	}
}

// A token says yes to none of its own runs but destroys, and to those only where nothing else wants
// somebody's yes; nor does another token of the same person.
func TestTokensDoNotApproveTheirOwn(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	for _, test := range []struct {
		powers, operation, policy string
		by                        func(own bearer) bearer
		want                      string
	}{
		{`{"may_apply": ["lab/*"]}`, "destroy", `{"approval": "never"}`, nil, "ok"},
		{`{"may_apply": ["lab/*"]}`, "destroy", `{"approval": "destructive"}`, nil, "PT403 token_may_not"},
		{`{"may_apply": ["lab/*"]}`, "destroy", `{"approval": "always"}`, nil, "PT403 token_may_not"},
		{`{"may_apply": ["lab/*"]}`, "apply", `{"approval": "always"}`, nil, "PT403 token_may_not"},
		{`{"may_apply": ["lab/*"], "destroy": false}`, "apply", `{"approval": "never"}`, nil, "PT403 token_may_not"},
		{`{"may_apply": ["lab/*"], "approve": true}`, "apply", `{"approval": "always"}`, nil, "PT403 token_may_not"},
		{`{"may_apply": ["lab/*"]}`, "apply", `{"approval": "always"}`, func(bearer) bearer { return w.bearer(t, w.operator, `{"approve": true}`) }, "PT403 token_may_not"},
		{`{"may_apply": ["lab/*"]}`, "apply", `{"approval": "always"}`, func(bearer) bearer { return w.bearer(t, w.adminID, `{"approve": true}`) }, "ok"},
		{`{"may_apply": ["lab/*"]}`, "apply", `{"approval": "always"}`, func(bearer) bearer { return w.bearer(t, w.operator, "") }, "ok"},
	} {
		w.policy(t, test.policy)
		own := w.bearer(t, w.operator, test.powers)
		if _, err := own.ask(t, test.operation, "lab/a"); err != nil {
			t.Fatal(err)
		}
		id, by := agent.awaits(t), own
		if test.by != nil {
			by = test.by(own)
		}
		var status string
		if got := answerOf(by.do(t, &status, "SELECT public.approve_provision($1, $2)", id, aPlan)); got != test.want {
			t.Errorf("%s with %s under %s = %s, want %s", test.operation, test.powers, test.policy, got, test.want)
		}
		mustAs[string](t, w, w.operator, "SELECT public.cancel_provision($1)", id)
	}
}

// What somebody has drawn up is not a token's to change, though it may draw up more.
func TestTokensDrawUp(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	b := w.bearer(t, w.operator, `{}`)
	plan := "SELECT (public.plan_machines($1, $2, $3))[1]"
	theirs := mustAs[uuid.UUID](t, w, w.operator, plan, w.cluster, snapshot("lab/a"), `[{"name": "theirs"}]`)
	var id uuid.UUID
	if err := b.do(t, &id, plan, w.cluster, snapshot("lab/a"), `[{"name": "own"}]`); err != nil {
		t.Errorf("drawing up = %v", err)
	}
	if err := b.do(t, &id, plan, w.cluster, snapshot("lab/a"), fmt.Sprintf(`[{"id": %q, "name": "theirs", "cores": 2}]`, theirs)); answerOf(err) != "PT403 token_may_not" {
		t.Errorf("changing what is drawn up = %v", err)
	}
	var none *string
	if err := b.do(t, &none, "SELECT public.delete_planned_machine($1)::text", theirs); answerOf(err) != "PT403 token_may_not" {
		t.Errorf("deleting what is drawn up = %v", err)
	}
	if err := w.bearer(t, w.adminID, `{}`).do(t, &none, "SELECT c::text FROM public.create_cluster('another') c"); answerOf(err) != "PT403 token_may_not" {
		t.Errorf("a cluster = %v", err)
	}
}

// A plan runs the code of its template, so what waits for a person is of templates that one stands
// behind.
func TestTokensUseTheCatalogue(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	b := w.bearer(t, w.operator, `{"may_apply": ["lab/*"]}`)
	mustExec(t, w.conn, `SELECT tendril.record_tags($1, 'https://git.example/acme/envtempl', '[{"tag": "v1.1.0", "commit": "x"}]')`, w.org)
	source := func(repo, version, path string) string {
		return fmt.Sprintf(`{"repo": %q, "version": %q, "path": %q}`, repo, version, path)
	}
	const known, commit = "https://git.example/acme/envtempl", "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
	ask := func(workspace, source string) string {
		var id uuid.UUID
		return answerOf(b.do(t, &id, "INSERT INTO public.provisions (cluster_id, config_snapshot, operation) VALUES ($1, $2, 'plan') RETURNING id", w.cluster,
			fmt.Sprintf(`{"template_source": %s, "terraform_vars": {}, "workspace": %q}`, source, workspace)))
	}
	const refused = "PT403 token_may_not"
	for i, test := range []struct{ source, want string }{
		{source(known, "v1.2.0", ""), "ok"}, {source(known+".git", "v1.1.0", ""), "ok"}, {source(known, "v9", ""), refused}, {source(known, commit, ""), refused},
		{source(known, "v1.2.0", "other"), refused}, {source("https://git.example/acme/evil", "v1.2.0", ""), refused},
	} {
		if got := ask(fmt.Sprintf("prod/%d", i), test.source); got != test.want {
			t.Errorf("a plan of %s = %s, want %s", test.source, got, test.want)
		}
	}
	if got := ask("lab/a", source("https://git.example/acme/evil", "v1", "")); got != "ok" {
		t.Errorf("where it may apply = %s", got)
	}
	// What a person has run there it may plan again.
	if _, err := w.tryDeploy(t, w.operator, fmt.Sprintf(`{"template_source": %s, "terraform_vars": {}, "workspace": "prod/own"}`, source("https://git.example/acme/own", commit, ""))); err != nil {
		t.Fatal(err)
	}
	if got := ask("prod/own", source("https://git.example/acme/own", commit, "")); got != "ok" {
		t.Errorf("what a person has run = %s", got)
	}
}
