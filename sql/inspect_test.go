package sql_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const inspected = `{"commit": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "variables": [{"name": "region", "required": true}]}`

// save puts a template into the catalogue, as an admin does.
func (w *world) save(t *testing.T, repo, version string) {
	t.Helper()
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.save_template($1, $2, $2, $3)", w.org, repo, version)
		return err
	})
}

// inspection is status, who looked, problem and variables of the only one there is.
func (w *world) inspection(t *testing.T) string {
	t.Helper()
	return one[string](t, w.conn, `SELECT concat_ws(' ', status, inspected_by, problem_code, variables #>> '{0,name}', cardinality(tried)) FROM public.template_inspections`)
}

func (w *world) hand(t *testing.T) int {
	t.Helper()
	return one[int](t, w.conn, "SELECT tendril.hand_inspections()")
}

// settle is what a trellis says of what it has claimed.
func (w *world) settle(t *testing.T, commit, variables any, code string, hand bool) *string {
	t.Helper()
	lease := uuid.New()
	if n := one[int](t, w.conn, "SELECT count(*) FROM tendril.claim_inspection($1, '1 minute')", lease); n != 1 {
		t.Fatalf("claim_inspection() = %d rows, want one", n)
	}
	return one[*string](t, w.conn, `SELECT tendril.settle_inspection(org_id, repo, version, path, $1, $2, $3, $4, 'a problem', $5, '{"title": "Net", "file": "title = 1"}') FROM public.template_inspections`,
		lease, commit, variables, code, hand)
}

// What trellis finds out is stored with the commit that it is of; a tag that has
// moved is not, and what another trellis was given in between neither.
func TestTrellisInspects(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	w.save(t, "https://git.example/a/b.git", "v1")
	first := uuid.New()
	mustExec(t, w.conn, "SELECT tendril.claim_inspection($1, '1 minute')", first)
	if n := one[int](t, w.conn, "SELECT count(*) FROM tendril.claim_inspection($1, '1 minute')", uuid.New()); n != 0 {
		t.Fatalf("a second trellis gets %d inspections while the first has it, want none", n)
	}
	mustExec(t, w.conn, "UPDATE public.template_inspections SET lease_until = clock_timestamp() - interval '1 second'") // it was killed
	commit := strings.Repeat("a", 40)
	if got := w.settle(t, commit, `[{"name": "region"}]`, "", false); got == nil || *got != "done" {
		t.Errorf("settle_inspection() = %v, want done", got)
	}
	if got := one[string](t, w.conn, "SELECT about ->> 'title' FROM public.template_inspections"); got != "Net" {
		t.Errorf("title = %s, want what trellis has read", got)
	}
	if got := one[string](t, w.conn, "SELECT concat_ws(' ', file, about ->> 'file') FROM public.template_inspections"); got != "title = 1" {
		t.Errorf("file = %s, want what trellis has read, and not in about", got)
	}
	if !one[bool](t, w.conn, `SELECT tendril.template_file(jsonb_build_object('file', repeat('x', 65537))) IS NULL AND tendril.template_file('{"file": [1]}') IS NULL AND tendril.template_file(NULL) IS NULL`) {
		t.Error("a file is stored that is too large, or none")
	}
	const late = "SELECT tendril.settle_inspection(org_id, repo, version, path, $1, NULL, NULL, 'late', 'late', true) FROM public.template_inspections"
	if got := one[*string](t, w.conn, late, first); got != nil {
		t.Errorf("settle_inspection(by who had its time) = %s, want nothing", *got)
	}
	if got, want := w.inspection(t), "done trellis region 0"; got != want {
		t.Errorf("inspection = %q, want %q", got, want)
	}
	if got := one[string](t, w.conn, "SELECT repo || ' ' || commit FROM public.template_pins"); got != "https://git.example/a/b "+commit {
		t.Errorf("pin = %q, want the commit that was looked at", got)
	}
	// The same again by somebody who saves it again: it is known.
	w.save(t, "https://git.example/a/b.git", "v1")
	if got, want := w.inspection(t), "done trellis region 0"; got != want {
		t.Errorf("inspection after another save = %q, want %q", got, want)
	}
	// Asked for again, and the tag is another commit: what was known stays.
	w.as(t, "authenticated", w.operator, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.inspect_template($1, 'https://git.example/a/b', 'v1')", w.org)
		return err
	})
	w.settle(t, strings.Repeat("b", 40), `[{"name": "other"}]`, "", false)
	if got, want := w.inspection(t), "failed trellis tag_moved region 0"; got != want {
		t.Errorf("inspection of a tag that moved = %q, want %q", got, want)
	}
	if got := one[string](t, w.conn, "SELECT commit FROM public.template_inspections"); got != commit {
		t.Errorf("commit = %s, want that of the variables", got)
	}
}

// What trellis cannot reach, an agent reads: one that is online, knows how and
// may; each cluster's once. Its workspace is none for people, and binds nothing.
func TestAgentInspects(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	w.save(t, "ssh://git@git.example/a/b", "v1")
	w.settle(t, nil, nil, "repo_refused", true)
	if got, want := w.inspection(t), "handed repo_refused 0"; got != want {
		t.Fatalf("inspection = %q, want %q", got, want)
	}
	old := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "old", host: "old", contract: 3}
	if err := old.register(t); err != nil {
		t.Fatal(err)
	}
	if got := w.hand(t); got != 0 {
		t.Errorf("hand_inspections(agents of contract 3) = %d, want 0", got)
	}
	mustExec(t, w.conn, "UPDATE public.agents SET contract = 4, operations = '{apply}'")
	if got := w.hand(t); got != 0 {
		t.Errorf("hand_inspections(agents that do not grant it) = %d, want 0", got)
	}
	mustExec(t, w.conn, "UPDATE public.agents SET contract = 3, operations = NULL")
	young := w.newAgent(t, "young")
	if got := w.hand(t); got != 1 {
		t.Fatalf("hand_inspections() = %d, want 1", got)
	}
	if got := w.hand(t); got != 0 {
		t.Errorf("hand_inspections() again = %d, want 0", got)
	}
	if got, err := old.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("an agent of contract 3 gets %s, %v, want nothing", got, err)
	}
	id := one[uuid.UUID](t, w.conn, "SELECT id FROM public.provisions")
	mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = '-infinity' WHERE name = 'young'")
	if got := one[string](t, w.conn, "SELECT reason FROM public.why_waiting($1)", id); got != "agent_too_old" {
		t.Errorf("why_waiting(only agents of contract 3) = %s, want agent_too_old", got)
	}
	mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = clock_timestamp()")

	// Beside whatever runs: it has a place of its own.
	w.deploy(t, w.operator, snapshot("a"))
	claim, got := young.mustClaim(t)
	if got != id {
		t.Fatalf("claimed %s, want the inspection first", got)
	}
	if _, other := young.mustClaim(t); other == id {
		t.Error("the inspection was claimed twice")
	}
	workspace := one[uuid.UUID](t, w.conn, "SELECT workspace_id FROM public.provisions WHERE id = $1", id)
	err := w.try(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.lock_workspace($1, 'mine')", workspace)
		return err
	})
	wantRefusal(t, err, "PT404", "workspace_not_found")
	wantRefusal(t, young.report(t, claim, "PROCESSING", applying), "PT409", "operation_refused")
	young.mustReport(t, claim, "PROCESSING", inspected)
	young.mustReport(t, claim, "SUCCESS", `{}`)
	if got, want := w.inspection(t), "done agent region 0"; got != want {
		t.Errorf("inspection = %q, want %q", got, want)
	}
	if got := one[bool](t, w.conn, "SELECT hidden AND repo IS NULL AND home_instance IS NULL AND head_id IS NULL AND running_claim IS NULL FROM public.workspaces WHERE id = $1", workspace); !got {
		t.Error("the inspection's workspace is not hidden, bound, or not free")
	}
	_, err = w.tryDeploy(t, w.operator, snapshot("b"))
	if err != nil {
		t.Error(err)
	}
	err = w.try(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, 'inspect', $2)", w.cluster, snapshot("c"))
		return err
	})
	wantRefusal(t, err, "PT422", "bad_operation")
}

// How an agent's run may end without variables. What another cluster's agent may
// be allowed to fetch goes to it; of the rest the reason is kept.
func TestAgentCannotInspect(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	first := w.newAgent(t, "one")
	other := *w
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT cluster_id, token FROM public.create_cluster('second')").Scan(&other.cluster, &other.token)
	})
	other.tokenHash = hashOf(other.token)
	second := other.newAgent(t, "two")
	for _, test := range []struct {
		detail string
		twice  bool
		want   string
	}{
		{`{"error_code": "repo_refused", "error_message": "no"}`, true, "failed repo_refused 2"},
		{`{"error_code": "template_invalid", "error_message": "main.tf:1: no"}`, false, "failed template_invalid 1"},
	} {
		mustExec(t, w.conn, "DELETE FROM public.template_inspections; DELETE FROM public.templates")
		w.save(t, "ssh://git@git.example/a/b", "v1")
		w.settle(t, nil, nil, "repo_refused", true)
		runs := 0
		for w.hand(t) == 1 {
			runs++
			for _, a := range []*agent{first, second} {
				claim := uuid.New()
				if id, err := a.claim(t, claim); err != nil {
					t.Fatal(err)
				} else if id != uuid.Nil {
					a.mustReport(t, claim, "FAILED", test.detail)
				}
			}
		}
		if want := map[bool]int{true: 2, false: 1}[test.twice]; runs != want {
			t.Errorf("%s: %d runs, want %d", test.detail, runs, want)
		}
		if got := w.inspection(t); got != test.want {
			t.Errorf("%s: inspection = %q, want %q", test.detail, got, test.want)
		}
	}
	// A person has enough of it.
	mustExec(t, w.conn, "DELETE FROM public.template_inspections; DELETE FROM public.templates")
	w.save(t, "ssh://git@git.example/a/b", "v1")
	mustExec(t, w.conn, "UPDATE public.template_inspections SET requested_at = requested_at - interval '2 minutes'") // there is no trellis
	if got := w.hand(t); got != 1 {
		t.Fatalf("hand_inspections(what no trellis took) = %d, want 1", got)
	}
	w.as(t, "authenticated", w.operator, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.cancel_provision(id) FROM public.provisions WHERE status = 'QUEUED'")
		return err
	})
	if got, want := w.inspection(t), "failed cancelled 1"; got != want {
		t.Errorf("inspection whose run was cancelled = %q, want %q", got, want)
	}
}

// The first run of a version tells what it declares; what trellis has found out
// stands.
func TestRunTellsVariables(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	for _, test := range []struct{ variables, want string }{
		{`[{"name": "first"}]`, "done run first 0"},
		{`[{"name": "second"}]`, "done run first 0"},
		{`{"name": "no list"}`, "done run first 0"},
	} {
		w.deploy(t, w.operator, snapshot("a"))
		claim, _ := a.mustClaim(t)
		a.mustReport(t, claim, "PROCESSING", `{"commit": "`+strings.Repeat("a", 40)+`"}`)
		a.mustReport(t, claim, "PROCESSING", `{"stage": "validate", "variables": `+test.variables+`, "about": {"title": "A", "description": {"b": 1}, "icon": "<b>", "more": [1], "provisioner": "script", "file": "title = 1"}}`)
		a.mustReport(t, claim, "SUCCESS", `{}`)
		if got := w.inspection(t); got != test.want {
			t.Errorf("inspection after a run with %s = %q, want %q", test.variables, got, test.want)
		}
		if got := one[string](t, w.conn, "SELECT about::text FROM public.template_inspections"); got != `{"title": "A", "description": "{\"b\": 1}", "provisioner": "script"}` {
			t.Errorf("about = %s, want what the first run told", got)
		}
		if got := one[string](t, w.conn, "SELECT file FROM public.template_inspections"); got != "title = 1" {
			t.Errorf("file = %s, want what the first run told", got)
		}
	}
}

// However many inspections there are, one at a time goes before what people
// deploy, and what nobody comes for can be asked for again, of whoever is there.
func TestInspectionsLeaveRoom(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	for _, version := range []string{"v1", "v2", "v3"} {
		w.save(t, "ssh://git@git.example/a/b", version)
	}
	mustExec(t, w.conn, "UPDATE public.template_inspections SET requested_at = requested_at - interval '2 minutes'") // there is no trellis
	deployed := w.deploy(t, w.operator, snapshot("a"))
	for range 2 {
		if got := w.hand(t); got > 1 {
			t.Fatalf("hand_inspections() = %d, want one at a time", got)
		}
	}
	claim, first := a.mustClaim(t)
	if w.hand(t) != 0 {
		t.Error("another inspection is queued while one runs")
	}
	if _, got := a.mustClaim(t); got != deployed {
		t.Errorf("claimed %s beside an inspection, want what was deployed", got)
	}
	a.mustReport(t, claim, "FAILED", `{"error_code": "template_invalid"}`)
	if got := w.hand(t); got != 1 {
		t.Fatalf("hand_inspections() once it is over = %d, want the next", got)
	}

	mustExec(t, w.conn, "UPDATE public.provisions SET created_at = created_at - interval '2 minutes' WHERE operation = 'inspect'")
	stuck := one[uuid.UUID](t, w.conn, "SELECT id FROM public.provisions WHERE operation = 'inspect' AND id <> $1", first)
	version := one[string](t, w.conn, "SELECT config_snapshot -> 'template_source' ->> 'version' FROM public.provisions WHERE id = $1", stuck)
	w.as(t, "authenticated", w.operator, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT public.inspect_template($1, 'ssh://git@git.example/a/b', $2)", w.org, version)
		return err
	})
	if got := one[string](t, w.conn, "SELECT status FROM public.template_inspections WHERE version = $1", version); got != "wanted" || w.status(t, stuck) != "CANCELLED" {
		t.Errorf("an inspection that nobody came for, asked for again = %s, its run %s, want wanted and CANCELLED", got, w.status(t, stuck))
	}
}

// What was inspected long ago is forgotten, unless it is in the catalogue.
func TestOldInspectionsAreForgotten(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	w.save(t, "https://git.example/a/b.git", "v1")
	for _, version := range []string{"v2", "v3"} {
		mustExec(t, w.conn, "SELECT tendril.want_inspection($1, 'https://git.example/a/b', $2, '')", w.org, version)
	}
	mustExec(t, w.conn, "UPDATE public.template_inspections SET status = 'failed', requested_at = now() - interval '91 days'")
	mustExec(t, w.conn, "UPDATE public.template_inspections SET status = 'done', variables = '[]', inspected_at = now() - interval '89 days' WHERE version = 'v3'")
	mustExec(t, w.conn, "SELECT tendril.want_inspection($1, 'https://git.example/a/b', 'v4', '')", w.org)
	mustExec(t, w.conn, "SELECT tendril.expire()")
	if got := one[string](t, w.conn, "SELECT string_agg(version, ' ' ORDER BY version) FROM public.template_inspections"); got != "v1 v3 v4" {
		t.Errorf("inspections = %s, want that of the catalogue, the one of 89 days, and the new one", got)
	}
}
