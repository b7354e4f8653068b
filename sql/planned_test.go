package sql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func (w *world) plan(t *testing.T, user uuid.UUID, snapshot, machines string) ([]uuid.UUID, error) {
	t.Helper()
	return person[[]uuid.UUID](t, w, user, "SELECT public.plan_machines($1, $2, $3)", w.cluster, snapshot, machines)
}

func (w *world) planned(t *testing.T) string {
	t.Helper()
	return one[string](t, w.conn, `SELECT coalesce(string_agg(concat_ws(' ', m.name, m.status, m.pool, m.image, m.cores, m.memory_mib, m.disk_gib, nullif(m.labels::text, '{}'), m.plan ->> 'workspace'), '; ' ORDER BY m.name, m.plan ->> 'workspace'), '')
		FROM public.machines m WHERE m.org_id = $1`, w.org)
}

// A planned machine is drawn up, changed, renamed, deleted, and becomes the one that a run makes.
func TestPlannedMachines(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	draw := func(machines, want string) []uuid.UUID {
		t.Helper()
		ids, err := w.plan(t, w.operator, snapshot("a"), machines)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.planned(t); got != want {
			t.Errorf("machines = %q, want %q", got, want)
		}
		return ids
	}
	ids := draw(`[{"name": "ada", "pool": "lab", "image": "debian", "cores": 2, "memory_mib": 2048, "disk_gib": 20, "labels": {"class": "a"}}, {"name": "bob"}]`,
		`ada planned lab debian 2 2048 20 {"class": "a"} a; bob planned a`)
	if len(ids) != 2 || ids[0] != one[uuid.UUID](t, w.conn, "SELECT id FROM public.machines WHERE name = 'ada'") {
		t.Errorf("plan_machines() = %v, want the ids in order", ids)
	}
	draw(`[{"name": "ada", "cores": 4}]`, "ada planned 4 a; bob planned a")
	draw(fmt.Sprintf(`[{"id": %q, "name": "ada", "cores": 8}]`, ids[0]), "ada planned 8 a; bob planned a")
	draw(fmt.Sprintf(`[{"id": %q, "name": "carl"}]`, ids[1]), "ada planned 8 a; carl planned a")
	if got := mustAs[int](t, w, w.viewer, "SELECT count(*) FROM public.machines WHERE status = 'planned'"); got != 2 {
		t.Errorf("a viewer sees %d planned machines, want 2", got)
	}
	if got := mustAs[int](t, w, w.stranger, "SELECT count(*) FROM public.machines"); got != 0 {
		t.Errorf("a stranger sees %d machines", got)
	}

	// A run that lists others leaves what is planned alone, and makes what has its name.
	w.deploy(t, w.operator, snapshot("a"))
	agent.run(t, "SUCCESS", `{"machines": [{"name": "ada", "status": "running", "cores": 8}]}`)
	if got, want := w.planned(t), "ada running 8; carl planned a"; got != want {
		t.Errorf("machines = %q, want %q", got, want)
	}
	if got, want := w.machineHistory(t, "ada"), "planned running"; got != want {
		t.Errorf("history of ada = %q, want %q", got, want)
	}
	w.deploy(t, w.operator, snapshot("a"))
	agent.run(t, "FAILED", `{"events": [{"kind": "machine_intent", "address": "machine.carl", "action": "create", "at": "2026-01-01T00:00:00Z"}]}`)
	if got, want := w.planned(t), "ada running 8; carl unknown a"; got != want {
		t.Errorf("machines = %q, want %q", got, want)
	}
	// One that a run could not make is planned again.
	w.deploy(t, w.operator, snapshot("a"))
	agent.run(t, "FAILED", `{"machines": [{"name": "ada", "status": "running", "cores": 8}]}`)
	if got, want := w.planned(t), "ada running 8; carl planned a"; got != want {
		t.Errorf("machines = %q, want %q", got, want)
	}
	w.deploy(t, w.operator, snapshot("a"))
	agent.run(t, "SUCCESS", `{"machines": []}`)
	ids = draw(`[{"name": "carl", "cores": 1}]`, "ada gone 8; carl planned 1 a")

	if _, err := person[any](t, w, w.operator, "SELECT public.delete_planned_machine($1)", ids[0]); err != nil {
		t.Fatal(err)
	}
	if got, want := w.planned(t), "ada gone 8"; got != want {
		t.Errorf("machines = %q, want %q", got, want)
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE action IN ('plan_machines', 'delete_planned_machine') AND actor = $1", w.operator); got != 6 {
		t.Errorf("%d audit events, want 5 plans and a deletion", got)
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	agent.run(t, "SUCCESS", `{"machines": [`+ada+`]}`)
	mustExec(t, w.conn, "UPDATE tendril.settings SET resource_limit = 3")
	mustExec(t, w.conn, "UPDATE public.workspaces SET repo = tendril.plain_repo('https://git.example/acme/envtempl'), path = ''")
	const bob = `[{"name": "bob"}]`
	if _, err := w.plan(t, w.operator, snapshot("b"), bob); err != nil {
		t.Fatal(err)
	}
	if _, err := w.plan(t, w.operator, snapshot("b"), `[{"name": "dan"}]`); err != nil {
		t.Fatal(err)
	}
	other := one[string](t, w.conn, "SELECT id::text FROM public.machines WHERE name = 'dan'")
	elsewhere := one[string](t, w.conn, "SELECT id::text FROM public.machines WHERE name = 'bob'")
	was := w.planned(t)
	for _, c := range []struct {
		why                        string
		user                       uuid.UUID
		snapshot, machines         string
		code, reason, inTheMessage string
	}{
		{"a viewer", w.viewer, snapshot("a"), bob, "PT404", "cluster_not_found", ""},
		{"a stranger", w.stranger, snapshot("a"), bob, "PT404", "cluster_not_found", ""},
		{"one that is there", w.operator, snapshot("a"), `[{"name": "bob"}, {"name": "ada"}]`, "PT409", "machine_exists", "running"},
		{"another workspace's id", w.operator, snapshot("a"), `[{"name": "bob", "id": "` + elsewhere + `"}]`, "PT404", "machine_not_found", ""},
		{"another template", w.operator, strings.Replace(snapshot("a"), "envtempl", "other", 1), bob, "PT409", "workspace_bound", ""},
		{"the name of another planned one", w.operator, snapshot("b"), `[{"name": "dan", "id": "` + elsewhere + `"}]`, "PT409", "machine_exists", "planned"},
		{"a swap", w.operator, snapshot("b"), `[{"name": "dan", "id": "` + elsewhere + `"}, {"name": "bob", "id": "` + other + `"}]`, "PT409", "machine_exists", "planned"},
		{"too many", w.operator, snapshot("a"), `[{"name": "b"}, {"name": "c"}, {"name": "d"}]`, "PT413", "too_many_machines", "resource_limit"},
		{"far too many", w.operator, snapshot("a"), "[" + strings.TrimSuffix(strings.Repeat(`{"name": "b"},`, 501), ",") + "]", "PT413", "too_many_machines", "501"},
		{"a secret", w.operator, snapshotWith("a", `"sealed_vars": {"p": "`+sealedText+`"}`), bob, "PT422", "bad_snapshot", "sealed_vars"},
		{"a target", w.operator, snapshotWith("a", `"targets": ["machine.ada"]`), bob, "PT422", "bad_snapshot", "targets"},
		{"no template", w.operator, `{"workspace": "a"}`, bob, "PT422", "bad_snapshot", "template_source"},
		{"a large plan", w.operator, snapshotWith("a", `"terraform_vars": {"x": "`+strings.Repeat("x", 20_000)+`"}`), bob, "PT422", "bad_snapshot", "16384"},
		{"a vast number", w.operator, snapshotWith("a", `"terraform_vars": {"x": 1e500}`), bob, "PT422", "bad_snapshot", "1e400"},
		{"nothing", w.operator, snapshot("a"), `[]`, "PT422", "bad_machines", "list"},
		{"no list", w.operator, snapshot("a"), `{}`, "PT422", "bad_machines", "list"},
		{"no object", w.operator, snapshot("a"), `[1]`, "PT422", "bad_machines", "1. of the list"},
		{"twice", w.operator, snapshot("a"), `[{"name": "bob"}, {"name": "bob"}]`, "PT422", "bad_machines", "twice"},
		{"no name", w.operator, snapshot("a"), `[{"cores": 1}]`, "PT422", "bad_machines", "name"},
		{"an empty name", w.operator, snapshot("a"), `[{"name": ""}]`, "PT422", "bad_machines", "name"},
		{"two lines", w.operator, snapshot("a"), `[{"name": "a\nb"}]`, "PT422", "bad_machines", "name"},
		{"a long name", w.operator, snapshot("a"), `[{"name": "` + strings.Repeat("a", 201) + `"}]`, "PT422", "bad_machines", "name"},
		{"an unknown key", w.operator, snapshot("a"), `[{"name": "bob", "status": "running"}]`, "PT422", "bad_machines", "status"},
		{"a bad id", w.operator, snapshot("a"), `[{"name": "bob", "id": "7"}]`, "PT422", "bad_machines", "id"},
		{"no cores", w.operator, snapshot("a"), `[{"name": "bob", "cores": 0}]`, "PT422", "bad_machines", "cores"},
		{"cores in text", w.operator, snapshot("a"), `[{"name": "bob", "cores": "2"}]`, "PT422", "bad_machines", "cores"},
		{"half a disk", w.operator, snapshot("a"), `[{"name": "bob", "disk_gib": 0.5}]`, "PT422", "bad_machines", "disk_gib"},
		{"much memory", w.operator, snapshot("a"), `[{"name": "bob", "memory_mib": 9999999999}]`, "PT422", "bad_machines", "memory_mib"},
		{"labels in numbers", w.operator, snapshot("a"), `[{"name": "bob", "labels": {"a": 1}}]`, "PT422", "bad_machines", "labels"},
		{"a list of labels", w.operator, snapshot("a"), `[{"name": "bob", "labels": ["a"]}]`, "PT422", "bad_machines", "labels"},
		{"a long image", w.operator, snapshot("a"), `[{"name": "bob", "image": "` + strings.Repeat("a", 601) + `"}]`, "PT422", "bad_machines", "image"},
	} {
		_, err := w.plan(t, c.user, c.snapshot, c.machines)
		wantRefusal(t, err, c.code, c.reason)
		if err != nil && !strings.Contains(err.Error(), c.inTheMessage) {
			t.Errorf("%s: %v, want something of %q", c.why, err, c.inTheMessage)
		}
	}
	there := one[uuid.UUID](t, w.conn, "SELECT id FROM public.machines WHERE name = 'ada'")
	planned := one[uuid.UUID](t, w.conn, "SELECT id FROM public.machines WHERE name = 'bob'")
	for _, c := range []struct {
		user, machine uuid.UUID
		code, reason  string
	}{
		{w.operator, there, "PT409", "machine_exists"}, {w.viewer, planned, "PT404", "machine_not_found"}, {w.stranger, planned, "PT404", "machine_not_found"}, {w.operator, uuid.New(), "PT404", "machine_not_found"},
	} {
		_, err := person[any](t, w, c.user, "SELECT public.delete_planned_machine($1)", c.machine)
		wantRefusal(t, err, c.code, c.reason)
	}
	if got := w.planned(t); got != was {
		t.Errorf("machines = %q after refusals, want %q", got, was)
	}
}

// An organisation plans no more machines than its limit, wherever they are; what it makes of
// them does not count, nor what another organisation plans.
func TestPlannedLimit(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	mustExec(t, w.conn, "UPDATE tendril.settings SET planned_limit = 3")
	names := func(names ...string) string {
		return `[{"name": "` + strings.Join(names, `"}, {"name": "`) + `"}]`
	}
	plan := func(workspace string, machines ...string) error {
		_, err := w.plan(t, w.operator, snapshot(workspace), names(machines...))
		return err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(plan("a", "m1", "m2"))
	must(plan("b", "m1"))
	err := plan("b", "m2")
	wantRefusal(t, err, "PT429", "too_many_planned")
	if want := "the organisation has 3 planned machines, and would have 4; at most 3 are allowed (tendril.settings.planned_limit)"; !strings.Contains(err.Error(), want) {
		t.Errorf("it is refused with %v, want %q", err, want)
	}
	if got, want := w.planned(t), "m1 planned a; m1 planned b; m2 planned a"; got != want {
		t.Errorf("machines = %q, want %q", got, want)
	}
	must(plan("a", "m2")) // replaced
	w.deploy(t, w.operator, snapshot("a"))
	agent.run(t, "SUCCESS", `{"machines": [{"name": "m1", "status": "running"}]}`)
	must(plan("b", "m2"))
	mustExec(t, w.conn, "UPDATE tendril.settings SET planned_limit = 1")
	must(plan("b", "m2"))
	wantRefusal(t, plan("b", "m3"), "PT429", "too_many_planned")
}
