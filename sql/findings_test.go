package sql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// request queues an operation in workspace a, as the control plane does.
func (w *world) request(t *testing.T, operation, snapshot string) uuid.UUID {
	t.Helper()
	return one[uuid.UUID](t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot, operation) VALUES ($1, $2, $3) RETURNING id", w.cluster, snapshot, operation)
}

// run has an agent claim what is next and end it.
func (a *agent) run(t *testing.T, status, detail string) {
	t.Helper()
	claim, _ := a.mustClaim(t)
	a.mustReport(t, claim, status, detail)
}

func (w *world) resources(t *testing.T) string {
	t.Helper()
	return one[string](t, w.conn, `SELECT coalesce(string_agg(concat_ws(' ', r.address, r.type, r.provider, r.external_id, r.ip_addresses::text, r.status, p.number), '; ' ORDER BY r.address), '')
		FROM public.resources r JOIN public.provisions p ON p.id = r.provision_id WHERE r.org_id = $1`, w.org)
}

func TestResourcesFollowTheState(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	for _, c := range []struct{ does, status, detail, want string }{
		{"a first apply", "SUCCESS", `{"resources": [{"address": "a.one", "type": "a", "provider": "p", "external_id": "i-1", "ip_addresses": ["10.0.0.1", "fe80::1"], "status": "created"},
			{"address": "a.two", "type": "a"}]}`, "a.one a p i-1 {10.0.0.1,fe80::1} created 1; a.two a {} 1"},
		{"a run that says nothing of it", "SUCCESS", `{}`, "a.one a p i-1 {10.0.0.1,fe80::1} created 1; a.two a {} 1"},
		{"a failed apply", "FAILED", `{"error_code": "apply_failed", "resources": [{"address": "a.one", "type": "a", "provider": "p", "external_id": "i-1", "ip_addresses": ["10.0.0.1", "fe80::1"], "status": "created"},
			{"address": "a.two", "type": "a", "status": "tainted"}, {"address": "b.new", "type": "b"}]}`,
			"a.one a p i-1 {10.0.0.1,fe80::1} created 1; a.two a {} tainted 3; b.new b {} 3"},
		{"a destroy", "SUCCESS", `{"resources": []}`, ""},
	} {
		w.deploy(t, w.operator, snapshot("a"))
		agent.run(t, c.status, c.detail)
		if got := w.resources(t); got != c.want {
			t.Errorf("resources after %s = %q, want %q", c.does, got, c.want)
		}
	}
	// What cannot be stored is the report's fault, however it is wrong.
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	long := strings.Repeat("ü", 5000)
	agent.mustReport(t, claim, "PROCESSING", fmt.Sprintf(`{"resources": [{"address": "a.%s", "type": "a"}, {"address": "a.%[1]s2", "type": "a"}]}`, long))
	if n := one[int](t, w.conn, "SELECT count(*) FROM public.resources"); n != 2 {
		t.Errorf("resources of two long addresses that begin alike = %d, want 2", n)
	}
	for _, bad := range []string{`{"resources": {}}`, `{"resources": [1]}`, `{"resources": [{"address": "a.b"}]}`, `{"resources": [{"type": "a"}]}`, `{"resources": [{"address": "a", "type": "a", "ip_addresses": "x"}]}`} {
		wantRefusal(t, agent.report(t, claim, "PROCESSING", bad), "PT422", "bad_detail")
	}
}

func (w *world) drift(t *testing.T) string {
	t.Helper()
	return one[string](t, w.conn, "SELECT coalesce(drift_count || ' ' || jsonb_array_length(drift) || ' ' || (drift -> 0 ->> 'address') , drift_count::text, 'not known') || CASE WHEN drift_at IS NULL THEN '' ELSE ' at' END FROM public.workspaces")
}

func TestDriftIsRecorded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	of := strings.Replace(snapshot("a"), `"workspace"`, `"targets": ["a.c"], "workspace"`, 1)
	many := strings.TrimSuffix(strings.Repeat(`{"address": "a.b", "action": "update"},`, 300), ",")
	for _, c := range []struct{ operation, snapshot, status, detail, want string }{
		{"apply", snapshot("a"), "SUCCESS", `{}`, "not known"},
		{"refresh", snapshot("a"), "SUCCESS", `{"drift": [{"address": "a.b", "action": "update"}]}`, "1 1 a.b at"},
		{"refresh", snapshot("a"), "FAILED", `{}`, "1 1 a.b at"},
		{"refresh", of, "SUCCESS", `{"drift": []}`, "1 1 a.b at"}, // looked at another one only
		{"plan", snapshot("a"), "SUCCESS", `{"drift": []}`, "1 1 a.b at"},
		{"apply", of, "SUCCESS", `{}`, "1 1 a.b at"},
		{"apply", snapshot("a"), "FAILED", `{}`, "1 1 a.b at"},
		{"refresh", snapshot("a"), "SUCCESS", `{"drift": [` + many + `]}`, "300 200 a.b at"},
		{"apply", snapshot("a"), "SUCCESS", `{}`, "not known"},
		{"refresh", snapshot("a"), "SUCCESS", `{"drift": []}`, "0 at"},
	} {
		w.request(t, c.operation, c.snapshot)
		agent.run(t, c.status, c.detail)
		if got := w.drift(t); got != c.want {
			t.Errorf("drift after %s %s %.60s = %s, want %s", c.operation, c.status, c.detail, got, c.want)
		}
	}
}

func TestStateLockIsShownUntilARunGetsIt(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	const locked = `{"error_code": "state_locked", "state_lock": {"id": "abc", "who": "ada@host", "operation": "OperationTypeApply", "created": "2026-01-02 03:04:05 UTC"}}`
	for _, c := range []struct{ does, status, detail, want string }{
		{"a success", "SUCCESS", `{}`, ""},
		{"a lock that is held", "FAILED", locked, "abc ada@host OperationTypeApply 2026-01-02 03:04:05 UTC 2"},
		{"a failure without a plan", "FAILED", `{"error_code": "init_failed"}`, "abc ada@host OperationTypeApply 2026-01-02 03:04:05 UTC 2"},
		{"a failure after the plan", "FAILED", `{"error_code": "apply_failed", "plan": {"add": 1}}`, ""},
		{"a lock that is held again", "FAILED", locked, "abc ada@host OperationTypeApply 2026-01-02 03:04:05 UTC 5"},
		{"a success again", "SUCCESS", `{}`, ""},
	} {
		w.deploy(t, w.operator, snapshot("a"))
		agent.run(t, c.status, c.detail)
		if got := one[string](t, w.conn, "SELECT coalesce(concat_ws(' ', state_lock ->> 'id', state_lock ->> 'who', state_lock ->> 'operation', state_lock ->> 'created', state_lock ->> 'number'), '') FROM public.workspaces"); got != c.want {
			t.Errorf("state_lock after %s = %q, want %q", c.does, got, c.want)
		}
	}
	// Who only reads a state wants no lock; an unlock ends it.
	for _, c := range []struct {
		operation, with string
		locked          bool
	}{{"state", `"state": {"command": "list"}`, true}, {"state", `"state": {"command": "rm", "args": ["a.b"]}`, false}, {"unlock", `"lock_id": "abc"`, false}} {
		mustExec(t, w.conn, `UPDATE public.workspaces SET state_lock = '{"id": "abc"}'`)
		w.request(t, c.operation, strings.Replace(snapshot("a"), `"workspace"`, c.with+`, "workspace"`, 1))
		agent.run(t, "SUCCESS", "{}")
		if got := one[bool](t, w.conn, "SELECT state_lock IS NOT NULL FROM public.workspaces"); got != c.locked {
			t.Errorf("state_lock is there after %s %s = %t, want %t", c.operation, c.with, got, c.locked)
		}
	}
}
