package sql_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func (w *world) machines(t *testing.T) string {
	t.Helper()
	return one[string](t, w.conn, `SELECT coalesce(string_agg(concat_ws(' ', m.name, m.status, m.address, m.pool, m.node, m.external_id, nullif(m.ip_addresses::text, '{}'), m.ssh_port, m.ssh_user,
		m.image, m.cores, m.memory_mib, m.disk_gib, nullif(m.labels::text, '{}'), nullif(m.actions::text, '{}'), p.number), '; ' ORDER BY m.name), '')
		FROM public.machines m JOIN public.provisions p ON p.id = m.provision_id WHERE m.org_id = $1`, w.org)
}

func (w *world) machineHistory(t *testing.T, name string) string {
	t.Helper()
	return one[string](t, w.conn, "SELECT coalesce(string_agg(e.status, ' ' ORDER BY e.id), '') FROM public.machine_events e JOIN public.machines m ON m.id = e.machine_id WHERE m.name = $1", name)
}

const (
	ada   = `{"name": "ada", "status": "running", "address": "machine.ada", "pool": "lab", "node": "pve1", "external_id": "101", "ip_addresses": ["10.0.0.1"], "ssh_port": 2222, "ssh_user": "root", "image": "debian", "cores": 2, "memory_mib": 2048, "disk_gib": 20, "labels": {"class": "a"}, "actions": ["destroy", "power"]}`
	grace = `{"name": "grace", "status": "running"}`
)

// Machines follow the reports of their workspace's runs: one that is listed no more is gone,
// and its history says what it has been.
func TestMachinesFollowTheReports(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	const adaIs = "ada running machine.ada lab pve1 101 {10.0.0.1} 2222 root debian 2 2048 20 {\"class\": \"a\"} {destroy,power} "
	for _, c := range []struct{ does, status, detail, want string }{
		{"a first apply", "SUCCESS", `{"machines": [` + ada + `, ` + grace + `]}`, adaIs + "1; grace running 1"},
		{"a run that says nothing of them", "SUCCESS", `{}`, adaIs + "1; grace running 1"},
		{"an intent", "FAILED", `{"events": [{"kind": "machine_intent", "address": "machine.new", "action": "create", "at": "2026-01-01T00:00:00Z"},
			{"kind": "machine_intent", "address": "machine.grace", "action": "destroy", "at": "2026-01-01T00:00:00Z"}, {"kind": "machine_intent", "address": "elsewhere", "action": "create", "at": "2026-01-01T00:00:00Z"}]}`,
			adaIs + "1; grace running 1; new unknown machine.new 3"}, // for the run has ended
		{"a failed apply", "FAILED", `{"machines": [` + ada + `, {"name": "grace", "status": "unknown"}, {"name": "new", "status": "failed", "address": "machine.new"}]}`,
			adaIs + "1; grace unknown 4; new failed machine.new 4"},
		{"a name given twice", "SUCCESS", `{"machines": [` + ada + `, {"name": "grace", "status": "failed"}, ` + grace + `]}`, adaIs + "1; grace running 5; new gone machine.new 5"},
		{"a report without room for all", "SUCCESS", `{"machines": [` + ada + `], "machines_omitted": 1}`, adaIs + "1; grace unknown 6; new gone machine.new 5"},
		{"a destroy", "SUCCESS", `{"machines": []}`, strings.Replace(adaIs, "running", "gone", 1) + "7; grace gone 7; new gone machine.new 5"},
		{"another apply", "SUCCESS", `{"machines": [` + grace + `]}`, strings.Replace(adaIs, "running", "gone", 1) + "7; grace running 8; new gone machine.new 5"},
	} {
		w.deploy(t, w.operator, snapshot("a"))
		agent.run(t, c.status, c.detail)
		if got := w.machines(t); got != c.want {
			t.Errorf("machines after %s = %q, want %q", c.does, got, c.want)
		}
	}
	for name, want := range map[string]string{"ada": "running gone", "grace": "running unknown running unknown gone running", "new": "creating unknown failed gone"} {
		if got := w.machineHistory(t, name); got != want {
			t.Errorf("history of %s = %q, want %q", name, got, want)
		}
	}
	// What cannot be stored is the report's fault, however it is wrong.
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	for _, bad := range []string{
		`{"machines": [{"name": "a", "status": "running", "labels": {"x": 1}}]}`, `{"machines": [{"name": "a", "status": "running", "labels": {"x": {"y": "z"}}}]}`,
		`{"machines": [{"name": "a", "status": "running", "ip_addresses": [null]}]}`, `{"machines": [{"name": "a", "status": "running", "ip_addresses": [["a"]]}]}`,
		`{"machines": [{"name": "a", "status": "running", "image": "` + strings.Repeat("a", 601) + `"}]}`, `{"machines": [{"name": "a", "status": "running", "labels": {"x": "` + strings.Repeat("a", 17_000) + `"}}]}`,
		`{"machines": {}}`, `{"machines": [1]}`, `{"machines": [{"name": "a"}]}`, `{"machines": [{"status": "running"}]}`, `{"machines": [{"name": "a", "status": "planned"}]}`,
		`{"machines": [{"name": "a", "status": "running", "ssh_port": 65536}]}`, `{"machines": [{"name": "a", "status": "running", "actions": ["melt"]}]}`, `{"machines": [{"name": "a", "status": "running", "labels": []}]}`,
		`{"machines": [{"name": "` + strings.Repeat("a", 201) + `", "status": "running"}]}`,
	} {
		wantRefusal(t, agent.report(t, claim, "PROCESSING", bad), "PT422", "bad_detail")
	}
}

// Starting and stopping machines applies nothing, is for operators, and for agents that know of it.
func TestPower(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	old := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "old", host: "old", contract: 4}
	if err := old.register(t); err != nil {
		t.Fatal(err)
	}
	stop := strings.TrimSuffix(snapshot("a"), "}") + `, "targets": ["machine.ada"], "power": "stop"}`
	ask := func(user uuid.UUID, operation, snapshot string) error {
		_, err := person[uuid.UUID](t, w, user, "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, $2, $3) RETURNING id", w.cluster, operation, snapshot)
		return err
	}
	wantRefusal(t, ask(w.operator, "apply", stop), "PT422", "bad_snapshot")
	wantRefusal(t, ask(w.operator, "power", snapshot("a")), "PT422", "bad_snapshot")
	wantRefusal(t, ask(w.operator, "power", strings.Replace(stop, `"stop"`, `"melt"`, 1)), "PT422", "bad_snapshot")
	wantRefusal(t, ask(w.viewer, "power", stop), "PT404", "cluster_not_found")
	if err := ask(w.operator, "power", stop); err != nil {
		t.Fatal(err)
	}
	if got, err := old.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("an agent of contract 4 gets %s, %v, want nothing", got, err)
	}
	if _, err := person[uuid.UUID](t, w, w.adminID, "INSERT INTO public.provisions (cluster_id, operation, config_snapshot) VALUES ($1, 'state', $2) RETURNING id",
		w.cluster, snapshotWith("b", `"state": {"command": "reveal", "args": ["machine.ada"]}`)); err != nil {
		t.Fatal(err)
	}
	if got, err := old.claim(t, uuid.New()); err != nil || got != uuid.Nil {
		t.Errorf("an agent of contract 4 gets %s to reveal, %v, want nothing", got, err)
	}
	// A reveal of all machines is for newer agents than that of one.
	for args, want := range map[string]int{`, "args": ["machine.ada"]`: 5, `, "args": []`: 8, `, "args": null`: 8, "": 8} {
		if got := one[int](t, w.conn, "SELECT tendril.contract_needed(jsonb_populate_record(p, jsonb_build_object('config_snapshot', $1::jsonb))) FROM public.provisions p WHERE operation = 'state'",
			`{"state": {"command": "reveal"`+args+`}}`); got != want {
			t.Errorf("a reveal with %q needs contract %d, want %d", args, got, want)
		}
	}
	mustExec(t, w.conn, "UPDATE public.clusters SET approval = 'always'")
	for command, want := range map[string]bool{"reveal": false, "pull": false, "rm": true} {
		if got := one[bool](t, w.conn, "SELECT tendril.is_approvable('state', jsonb_build_object('state', jsonb_build_object('command', $1::text)))", command); got != want {
			t.Errorf("is_approvable(state %s) = %t, want %t", command, got, want)
		}
	}
	agent := w.newAgent(t, "one")
	claim, _ := agent.mustClaim(t)
	// As an apply it asks before it begins, and what is lost from then on holds the workspace.
	agent.mustReport(t, claim, "PROCESSING", `{"stage": "apply", "commit": "`+strings.Repeat("a", 40)+`"}`)
	if !one[bool](t, w.conn, "SELECT apply_begun_at IS NOT NULL FROM tendril.claims WHERE id = $1", claim) {
		t.Error("the claim does not say that it has begun")
	}
	if err := agent.report(t, claim, "SUCCESS", `{"machines": [`+strings.Replace(ada, "running", "stopped", 1)+`]}`); err != nil {
		t.Fatal(err)
	}
	if got := w.machines(t); !strings.HasPrefix(got, "ada stopped") {
		t.Errorf("machines = %q, want ada stopped", got)
	}
}

// A machine belongs to the workspace whose run reports it, whatever the report says.
func TestMachineOfAnotherWorkspace(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	agent.run(t, "SUCCESS", `{"machines": [`+ada+`]}`)
	was := one[string](t, w.conn, "SELECT row_to_json(m)::text FROM public.machines m")
	id := one[string](t, w.conn, "SELECT id::text FROM public.machines")
	w.deploy(t, w.operator, snapshot("b"))
	agent.run(t, "SUCCESS", `{"machines": [{"id": "`+id+`", "workspace_id": "`+id+`", "name": "ada", "status": "stopped", "address": "machine.ada"}]}`)
	if got := one[string](t, w.conn, "SELECT row_to_json(m)::text FROM public.machines m JOIN public.workspaces k ON k.id = m.workspace_id WHERE k.name = 'a'"); got != was {
		t.Errorf("the machine of workspace a is %s after a run in b, want %s", got, was)
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.machines"); got != 2 {
		t.Errorf("%d machines, want one of each workspace", got)
	}
}

// A machine that is gone stays listed for a while; one that is there stays for ever.
func TestMachinesThatAreGoneExpire(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	for _, detail := range []string{`{"machines": [` + ada + `, ` + grace + `]}`, `{"machines": [` + grace + `]}`} {
		w.deploy(t, w.operator, snapshot("a"))
		agent.run(t, "SUCCESS", detail)
	}
	if got := w.expireRows(t, 100)["public.machines"]; got != 0 {
		t.Errorf("%d machines were deleted at once, want none", got)
	}
	mustExec(t, w.conn, "UPDATE public.machines SET updated_at = now() - $1::interval", 91*24*time.Hour)
	if got := w.expireRows(t, 100)["public.machines"]; got != 1 {
		t.Errorf("%d machines were deleted, want the one that is gone", got)
	}
	if got := w.machines(t); got != "grace running 1" {
		t.Errorf("machines = %q, want grace", got)
	}
}
