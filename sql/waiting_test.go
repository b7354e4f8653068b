package sql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// why asks as a viewer and returns "reason: message" of each row.
func (w *world) why(t *testing.T, provision uuid.UUID) []string {
	t.Helper()
	var reasons []string
	w.as(t, "authenticated", w.viewer, func(tx pgx.Tx) error {
		rows, err := tx.Query(t.Context(), "SELECT reason || ': ' || message FROM public.why_waiting($1) WHERE jsonb_typeof(detail) = 'object'", provision)
		if err != nil {
			return err
		}
		reasons, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return reasons
}

// wantWhy wants just these reasons, each with its words in the message.
func (w *world) wantWhy(t *testing.T, when string, provision uuid.UUID, want ...string) {
	t.Helper()
	got := w.why(t, provision)
	if len(got) != len(want) {
		t.Errorf("why it waits %s = %q, want %q", when, got, want)
		return
	}
	for i, words := range want {
		reason, message, _ := strings.Cut(words, ": ")
		if !strings.HasPrefix(got[i], reason+": ") || !strings.Contains(got[i], message) || strings.HasSuffix(got[i], ".") {
			t.Errorf("why it waits %s = %q, want %q in place %d", when, got, words, i)
		}
	}
}

// detail is one value of the first reason.
func (w *world) detail(t *testing.T, provision uuid.UUID, key string) string {
	t.Helper()
	return one[string](t, w.conn, "SELECT coalesce(detail ->> $2, 'null') FROM public.why_waiting($1) LIMIT 1", provision, key)
}

func (w *world) asAdmin(t *testing.T, query string, args ...any) {
	t.Helper()
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), query, args...)
		return err
	})
}

func TestWhyItWaitsForAgents(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	id := w.deploy(t, w.operator, snapshot("a"))
	w.wantWhy(t, "without agents", id, "no_agent: cluster prod has never had an agent")
	agent := w.newAgent(t, "one")
	w.wantWhy(t, "when its turn is now", id)
	mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = '2026-01-02 03:04:05Z'; UPDATE public.clusters SET last_seen_at = '2026-01-02 03:04:05Z'")
	w.wantWhy(t, "without an agent that is online", id, "no_agent: no agent of cluster prod is online; the last one was seen at 2026-01-02 03:04:05 UTC")
	if _, err := agent.heartbeat(t); err != nil {
		t.Fatal(err)
	}
	w.wantWhy(t, "when it is back", id)

	w.asAdmin(t, "SELECT public.pause_cluster($1, true, 'the cloud is down')", w.cluster)
	w.wantWhy(t, "in a paused cluster", id, "cluster_paused: the cloud is down")
	if got := w.detail(t, id, "by"); got != w.adminID.String() {
		t.Errorf("paused by = %s, want %s", got, w.adminID)
	}
	w.asAdmin(t, "SELECT public.pause_cluster($1, false)", w.cluster)

	// Two slots, both taken; then another agent comes.
	for _, name := range []string{"x", "y"} {
		mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, 5)", w.cluster, snapshot(name))
		agent.mustClaim(t)
	}
	w.wantWhy(t, "with all slots taken", id, "slots_busy: all 2 slots are busy: run 2 in x, run 3 in y")
	other := w.newAgent(t, "two")
	w.wantWhy(t, "with slots on another agent", id)

	mustExec(t, w.conn, "UPDATE public.workspaces SET home_instance = $1 WHERE name = 'a'", agent.instance)
	w.wantWhy(t, "with slots on an agent that may not", id, "slots_busy: all 2 slots are busy")
	mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = '2026-01-02 03:04:05Z' WHERE name = 'one'")
	w.wantWhy(t, "with its home away", id, "home_away: the workspace's state is a file on an agent that is offline, one on one.example, last seen at 2026-01-02 03:04:05 UTC")
	mustExec(t, w.conn, "UPDATE public.workspaces SET unsaved_state_on = $1, home_instance = NULL WHERE name = 'a'", agent.instance)
	w.wantWhy(t, "with its state kept elsewhere", id, "state_kept: a state that could not be stored is kept by an agent that is offline, one on one.example")
	mustExec(t, w.conn, "UPDATE public.workspaces SET unsaved_state_on = $1, home_instance = $2 WHERE name = 'a'", other.instance, agent.instance)
	w.wantWhy(t, "with two states", id, "state_kept: a state that could not be stored is kept by two on two.example, and the workspace's state is a file on another agent")
	mustExec(t, w.conn, "UPDATE public.workspaces SET unsaved_state_on = gen_random_uuid(), home_instance = NULL WHERE name = 'a'")
	w.wantWhy(t, "with its state kept by one that is not known", id, "state_kept: a state that could not be stored is kept by an agent that is offline")
}

func TestWhyItWaitsForItsWorkspace(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	first := w.deploy(t, w.operator, snapshot("a"))
	second := w.deploy(t, w.operator, snapshot("a"))
	third := w.deploy(t, w.operator, snapshot("a"))
	w.wantWhy(t, "behind another", second, "queued_behind: another provision in this workspace comes first: 1")
	w.wantWhy(t, "behind two", third, "queued_behind: 2 other provisions in this workspace come first: 1, 2")
	mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, 7)", w.cluster, snapshot("a"))
	w.wantWhy(t, "behind a more urgent one", first, "higher_priority: another provision in this workspace comes first: 4, of priority 7")
	claim, urgent := agent.mustClaim(t)
	agent.stage(t, claim, "plan")
	w.wantWhy(t, "while another runs", first, "workspace_busy: run 4 has been running in this workspace since 2")
	if stage, number := w.detail(t, first, "stage"), w.detail(t, first, "number"); stage != "plan" || number != "4" {
		t.Errorf("detail of the run = %s in %s, want 4 in plan", number, stage)
	}
	w.wantWhy(t, "when it runs", urgent)
	digest := agent.awaitApproval(t, claim)
	w.wantWhy(t, "for another's approval", first, "workspace_reserved: the plan of run 4 needs approval")
	w.wantWhy(t, "for its own approval", urgent, "awaits_approval: its plan needs approval before 2")
	mustExec(t, w.conn, "UPDATE public.clusters SET approvers = 'admin', four_eyes = true")
	w.wantWhy(t, "for its own approval, by few", urgent, "awaits_approval: its plan needs approval from an admin other than the requester before 2")
	mustExec(t, w.conn, "UPDATE public.clusters SET approvers = 'operator', four_eyes = false")
	w.asAdmin(t, "SELECT public.approve_provision($1, $2)", urgent, digest)
	w.wantWhy(t, "for an approved one", first, "workspace_reserved: the plan of run 4 is approved and is applied first")
	w.wantWhy(t, "when it is approved", urgent)
	claim, _ = agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", `{"stage": "apply", "plan_digest": "`+digest+`"}`)
	w.wantWhy(t, "while the approved one runs", first, "workspace_busy: run 4 has been running in this workspace")
	w.asAdmin(t, "SELECT public.cancel_provision($1)", urgent)
	w.wantWhy(t, "while that is cancelled", first, "workspace_busy: in stage apply, and is being stopped")
	w.expire(t, claim)
	w.reap(t)
	w.wantWhy(t, "when that one holds it", first, "workspace_held: the workspace is held by run 4: the agent on one.example was lost at")
	w.wantWhy(t, "at its end", urgent)
	w.asAdmin(t, "SELECT public.release_workspace(id), public.lock_workspace(id, 'do not touch') FROM public.workspaces")
	w.wantWhy(t, "when it is locked", first, "workspace_locked: do not touch")
	if got := w.detail(t, first, "by"); got != w.adminID.String() {
		t.Errorf("locked by = %s, want %s", got, w.adminID)
	}
	w.wantWhy(t, "when it is locked, behind another", second, "workspace_locked: do not touch", "queued_behind: 1")
	for i := range 12 {
		w.deploy(t, w.operator, strings.Replace(snapshot("a"), "v1.2.0", fmt.Sprintf("v%d", i), 1))
	}
	last := w.deploy(t, w.operator, snapshot("a"))
	w.wantWhy(t, "behind many", last, "workspace_locked: ", "queued_behind: 15 other provisions in this workspace come first: 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, …")
}

// What failed is tried again by itself, and others wait for that.
func TestWhyAnotherAttemptWaits(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.request(t, "apply", strings.Replace(snapshot("a"), `"workspace"`, `"max_attempts": 2, "workspace"`, 1))
	agent.run(t, "FAILED", `{"error_code": "checkout_failed"}`)
	again := one[uuid.UUID](t, w.conn, "SELECT id FROM public.provisions WHERE attempt = 2")
	w.wantWhy(t, "after a failure", again, "not_due: attempt 2 starts at 2")
	if got := w.detail(t, again, "number") + " " + w.detail(t, again, "code"); got != "1 checkout_failed" {
		t.Errorf("it is another attempt at %s, want 1 checkout_failed", got)
	}
	other := w.deploy(t, w.operator, snapshot("a"))
	w.wantWhy(t, "for another's attempt", other, "workspace_reserved: run 2, an automatic retry, comes first")
	mustExec(t, w.conn, "UPDATE public.workspaces SET due_at = now(); UPDATE public.provisions SET not_before = now() WHERE attempt = 2")
	w.reap(t)
	w.wantWhy(t, "when it is due", again)
}

// What will fail when its turn comes can be told before.
func TestWhyItWillFail(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	id := w.request(t, "destroy", snapshot("a"))
	w.wantWhy(t, "with an agent that does not say", id)
	mustExec(t, w.conn, "UPDATE public.agents SET operations = '{plan,apply}'")
	w.wantWhy(t, "with an agent that grants less", id, "operation_refused: no online agent allows the operation destroy")
	two := w.newAgent(t, "two")
	w.wantWhy(t, "with one that may grant it", id)
	mustExec(t, w.conn, "UPDATE public.agents SET contract = 2")
	w.wantWhy(t, "with old agents", id, "agent_too_old: the online agents are too old: they speak contract 2, and this run needs 3")
	mustExec(t, w.conn, "UPDATE public.agents SET contract = 3 WHERE instance_id = $1", two.instance)
	w.wantWhy(t, "with a new one", id)
	w.asAdmin(t, "SELECT public.cancel_provision($1)", id)

	version := func(workspace, version string) string {
		return strings.Replace(snapshot(workspace), `"workspace"`, fmt.Sprintf(`"terraform": {"engine": "tofu", "version": %q}, "workspace"`, version), 1)
	}
	w.request(t, "apply", version("a", "1.9.0"))
	agent.run(t, "FAILED", `{"error_code": "engine_missing"}`)
	again, another := w.request(t, "apply", version("b", "1.9.0")), w.request(t, "apply", version("c", "1.9.1"))
	w.wantWhy(t, "for an engine that could not be had", again, "engine_missing: tofu 1.9.0 could not be installed here for run 2")
	w.wantWhy(t, "for another version", another)
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "SUCCESS", `{"engine": "tofu", "engine_version": "1.9.0"}`)
	w.wantWhy(t, "for an engine that could be had since", w.request(t, "apply", version("d", "1.9.0")))
}

// An agent says what its policy grants; one that says nothing grants it or not.
func TestAgentSaysWhatItGrants(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "one", host: "h"}
	register := func(operations string) error {
		var reply any
		return a.call(t, &reply, "SELECT public.register_agent($1, jsonb_build_object('instance_id', $2::uuid, 'boot_id', $3::uuid, 'name', 'one', 'host', 'h', 'version', '1', 'contract', 3, 'slots', 1) || $4::jsonb)",
			w.tokenHash, a.instance, a.boot, operations)
	}
	for operations, want := range map[string]string{`{}`: "null", `{"operations": null}`: "null", `{"operations": []}`: "{}", `{"operations": ["plan", "apply"]}`: "{plan,apply}"} {
		if err := register(operations); err != nil {
			t.Errorf("register_agent(%s) = %v, want nil", operations, err)
		}
		if got := one[string](t, w.conn, "SELECT coalesce(operations::text, 'null') FROM public.agents"); got != want {
			t.Errorf("operations after register_agent(%s) = %s, want %s", operations, got, want)
		}
	}
	wantRefusal(t, register(`{"operations": "all"}`), "PT422", "bad_agent")
}

// However long the queue of a busy workspace is, the answer costs little.
func TestWhyItWaitsReadsLittle(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot) SELECT $1, jsonb_set($2, '{workspace}', to_jsonb('w' || n % 200)) FROM generate_series(1, 1000) n", w.cluster, snapshot("a"))
	agent.mustClaim(t)
	mustExec(t, w.conn, "ANALYZE")
	last := one[uuid.UUID](t, w.conn, "SELECT id FROM public.provisions ORDER BY number DESC LIMIT 1")
	var reasons int
	read, _ := w.reading(t, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT count(*) FROM public.why_waiting($1)", last).Scan(&reasons)
	})
	if reasons != 1 || read > 40 {
		t.Errorf("%d reasons, of %d rows read, want one of a few dozens of 1,000", reasons, read)
	}
}

// Nor does what is queued behind it.
func TestWhyItWaitsReadsNothingBehind(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	w.deploy(t, w.operator, snapshot("a"))
	mustExec(t, w.conn, "SET session_replication_role = replica") // in less time
	mustExec(t, w.conn, `INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot, status)
		SELECT org_id, cluster_id, workspace_id, config_snapshot, status FROM public.provisions, generate_series(1, 2000)`)
	mustExec(t, w.conn, "SET session_replication_role = origin")
	mustExec(t, w.conn, "ANALYZE")
	for which, want := range map[string]string{"ORDER BY number": "", "ORDER BY number DESC": "1000 other provisions or more in this workspace come first: 1, 2"} {
		id := one[uuid.UUID](t, w.conn, "SELECT id FROM public.provisions "+which+" LIMIT 1")
		var got string
		read, _ := w.reading(t, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), "SELECT coalesce(string_agg(message, ''), '') FROM public.why_waiting($1) WHERE reason <> 'no_agent'", id).Scan(&got)
		})
		if !strings.HasPrefix(got, want) || want == "" && got != "" || read > 1010 {
			t.Errorf("why_waiting(the first %s) = %q and read %d rows, want %q and no more than the first 1000 of 2000", which, got, read, want)
		}
	}
}
