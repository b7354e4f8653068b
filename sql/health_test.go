package sql_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/queue"
)

// listsChecked is a report that lists machines with a check of 30 seconds.
func listsChecked(names ...string) string {
	machines := make([]string, len(names))
	for i, name := range names {
		machines[i] = fmt.Sprintf(`{"name": %q, "status": "running", "ip_addresses": ["192.0.2.7"], "check": {"kind": "tcp", "target": "192.0.2.7", "port": 22,
			"interval": 30, "timeout": 5, "healthy_after": 1, "unhealthy_after": 3, "mac": "c2VhbGVk"}}`, name)
	}
	return `{"machines": [` + strings.Join(machines, ", ") + `]}`
}

// lease takes what is due and returns the machines' names, sorted.
func (a *agent) lease(t *testing.T) (names []string, ids map[string]uuid.UUID) {
	t.Helper()
	var found json.RawMessage
	if err := a.call(t, &found, "SELECT public.lease_checks($1, $2, $3, 500)", a.w.tokenHash, a.instance, a.boot); err != nil {
		t.Fatal(err)
	}
	var checks []queue.MachineCheck
	if err := json.Unmarshal(found, &checks); err != nil {
		t.Fatal(err)
	}
	ids = map[string]uuid.UUID{}
	for _, c := range checks {
		if c.Check.Kind != "tcp" || c.Check.Target != "192.0.2.7" || len(c.Check.MAC) == 0 || c.Workspace == uuid.Nil {
			t.Errorf("a check is %+v", c)
		}
		names, ids[c.Name] = append(names, c.Name), c.Machine
	}
	slices.Sort(names)
	return names, ids
}

func (a *agent) finds(t *testing.T, machine uuid.UUID, result string) error {
	t.Helper()
	var void any
	return a.call(t, &void, "SELECT public.report_checks($1, $2, $3, $4)::text", a.w.tokenHash, a.instance, a.boot,
		fmt.Sprintf(`[{"machine": %q, "result": %q, "why": "connection refused"}]`, machine, result))
}

func (w *world) healthOf(t *testing.T, name string) string {
	t.Helper()
	return one[string](t, w.conn, "SELECT coalesce(health, '-') || coalesce(' ' || health_why, '') FROM public.machines WHERE name = $1", name)
}

// checksPass is as if so much time had passed for the checks.
func (w *world) checksPass(t *testing.T, interval string) {
	t.Helper()
	mustExec(t, w.conn, "UPDATE tendril.machine_checks SET due_at = due_at - $1::interval, doubt_at = doubt_at - $1::interval", interval)
}

// Agents share the checks that are due, none is done twice, and what they find counts after
// as many results in a row as the template says.
func TestHealthOfMachines(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	one1, two := w.newAgent(t, "one"), w.newAgent(t, "two")
	mustAs[any](t, w, w.adminID, `SELECT public.create_webhook($1, $2, '{"name": "chat", "kind": "slack", "host": "https://hooks.example", "url": "c2VhbGVk", "events": ["health"]}')::text`, w.org, uuid.New())
	due := func() bool {
		var answer struct {
			Due bool `json:"checks_due"`
		}
		if err := one1.call(t, &answer, "SELECT public.agent_heartbeat($1, $2, $3, '{}')", w.tokenHash, one1.instance, one1.boot); err != nil {
			t.Fatal(err)
		}
		return answer.Due
	}
	if due() {
		t.Error("checks are due where there are none")
	}
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := one1.mustClaim(t)
	one1.mustReport(t, claim, "PROCESSING", applying)
	one1.mustReport(t, claim, "PROCESSING", listsChecked("a", "b"))
	one1.mustReport(t, claim, "SUCCESS", `{}`)
	if !due() {
		t.Error("no checks are due")
	}
	names, ids := one1.lease(t)
	if want := []string{"a", "b"}; !slices.Equal(names, want) {
		t.Errorf("leased %v, want %v", names, want)
	}
	if again, _ := two.lease(t); again != nil || due() {
		t.Errorf("another agent gets %v meanwhile", again)
	}
	for _, step := range []struct{ result, want string }{
		{"healthy", "healthy"}, {"unhealthy", "healthy"}, {"unhealthy", "healthy"}, {"unhealthy", "unhealthy connection refused"}, {"healthy", "healthy"},
		{"unknown", "unknown connection refused"}, {"unhealthy", "unknown connection refused"}, {"healthy", "healthy"}, {"melted", "healthy"},
	} {
		if err := one1.finds(t, ids["a"], step.result); err != nil {
			t.Fatal(err)
		}
		if got := w.healthOf(t, "a"); got != step.want {
			t.Errorf("after %s it is %s, want %s", step.result, got, step.want)
		}
	}
	if got := w.healthOf(t, "b"); got != "-" {
		t.Errorf("the other machine is %s", got)
	}
	if history := one[string](t, w.conn, "SELECT string_agg(e.health, ' ' ORDER BY e.id) FROM public.machine_events e JOIN public.machines m ON m.id = e.machine_id WHERE m.name = 'a'"); history != "healthy unhealthy healthy unknown healthy" {
		t.Errorf("history = %s", history)
	}
	if told := one[int](t, w.conn, "SELECT count(*) FROM public.webhook_deliveries WHERE event = 'health'"); told != 4 {
		t.Errorf("%d messages, want one for each change after the first good news", told)
	}

	// Only who has taken a check says what it found, and nobody of another cluster.
	if err := two.finds(t, ids["a"], "unknown"); err != nil || w.healthOf(t, "a") != "healthy" {
		t.Errorf("another agent's result: %v, %s", err, w.healthOf(t, "a"))
	}
	foreign := w.foreignAgent(t)
	if names, _ := foreign.lease(t); names != nil {
		t.Errorf("an agent of another cluster gets %v", names)
	}
	if err := foreign.finds(t, ids["a"], "unknown"); err != nil || w.healthOf(t, "a") != "healthy" {
		t.Errorf("a foreign agent's result: %v, %s", err, w.healthOf(t, "a"))
	}
	wantRefusal(t, func() error {
		var void any
		return one1.call(t, &void, "SELECT public.report_checks($1, $2, $3, '{}')::text", w.tokenHash, one1.instance, one1.boot)
	}(), "PT422", "bad_results")

	// An agent that died with a check: the next one does it.
	w.checksPass(t, "31 seconds")
	if names, _ := two.lease(t); len(names) != 2 {
		t.Errorf("leased %v after the interval, want both", names)
	}
	// Nobody checks any more.
	w.checksPass(t, "3 minutes")
	one[int](t, w.conn, "SELECT tendril.reap()")
	if got := w.healthOf(t, "a"); got != "unknown no agent has said in time what its check found" {
		t.Errorf("it is %s where nobody checks", got)
	}
	// A machine that does not run, or is gone, or has no check any more is not checked.
	mustExec(t, w.conn, "UPDATE public.machines SET status = 'stopped' WHERE name = 'b'")
	if names, _ := one1.lease(t); !slices.Equal(names, []string{"a"}) {
		t.Errorf("leased %v, want what runs", names)
	}
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ = one1.mustClaim(t)
	one1.mustReport(t, claim, "PROCESSING", applying)
	one1.mustReport(t, claim, "PROCESSING", `{"machines": [{"name": "a", "status": "running"}]}`)
	if n := one[int](t, w.conn, "SELECT count(*) FROM tendril.machine_checks"); n != 0 || w.healthOf(t, "a") != "-" {
		t.Errorf("%d checks are left, and a machine without one is %s", n, w.healthOf(t, "a"))
	}
	wantRefusal(t, one1.report(t, claim, "PROCESSING", strings.Replace(listsChecked("a"), `"interval": 30`, `"interval": 1`, 1)), "PT422", "bad_detail")
}

// leaseOf takes what is due where there is room for so much.
func (a *agent) leaseOf(t *testing.T, limit, commands int, without ...uuid.UUID) (names []string) {
	t.Helper()
	var found []queue.MachineCheck
	if err := a.call(t, &found, "SELECT public.lease_checks($1, $2, $3, $4, $5, $6)", a.w.tokenHash, a.instance, a.boot, limit, commands, without); err != nil {
		t.Fatal(err)
	}
	for _, c := range found {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names
}

// An agent gets no more than it has room for, nothing of workspaces that have their share, and
// checks by a command only if it knows them.
func TestChecksThatAnAgentHasRoomFor(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	workspaces := map[string]uuid.UUID{}
	for name, machines := range map[string]string{
		"slow": listsChecked("s1", "s2", "s3"), "other": listsChecked("o1"), "commands": strings.ReplaceAll(listsChecked("c1", "c2"), `"tcp"`, `"command"`),
	} {
		w.deploy(t, w.operator, snapshot(name))
		claim, _ := a.mustClaim(t)
		a.mustReport(t, claim, "PROCESSING", applying)
		a.mustReport(t, claim, "PROCESSING", machines)
		a.mustReport(t, claim, "SUCCESS", `{}`)
		workspaces[name] = one[uuid.UUID](t, w.conn, "SELECT id FROM public.workspaces WHERE name = $1", name)
	}
	// Those of the slow workspace have waited longest.
	due := func() {
		mustExec(t, w.conn, "UPDATE tendril.machine_checks SET due_at = now() - CASE workspace_id WHEN $1 THEN interval '2 minutes' ELSE interval '1 minute' END", workspaces["slow"])
	}
	for name, tt := range map[string]struct {
		lease func() []string
		want  []string
	}{
		"an agent of the release before": {func() (names []string) { names, _ = a.lease(t); return names }, []string{"o1", "s1", "s2", "s3"}},
		"all":                            {func() []string { return a.leaseOf(t, 500, 500) }, []string{"c1", "c2", "o1", "s1", "s2", "s3"}},
		"no room for others":             {func() []string { return a.leaseOf(t, 0, 1) }, []string{"c1"}},
		"no room at all":                 {func() []string { return a.leaseOf(t, 0, 0) }, nil},
		"nonsense":                       {func() []string { return a.leaseOf(t, -1, -1) }, nil},
		"little room":                    {func() []string { return a.leaseOf(t, 1, 0, workspaces["slow"]) }, []string{"o1"}},
		"some have their share":          {func() []string { return a.leaseOf(t, 500, 500, workspaces["slow"], workspaces["commands"]) }, []string{"o1"}},
	} {
		due()
		mustExec(t, w.conn, "UPDATE tendril.machine_checks SET due_at = due_at - interval '1 second' WHERE machine_id = (SELECT id FROM public.machines WHERE name = 'c1')")
		if got := tt.lease(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: leased %v, want %v", name, got, tt.want)
		}
	}
}

// A machine on a bare-metal server is as that is, until nobody reports it; one with a check is as its
// check finds it.
func TestHealthOfServers(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	mustAs[any](t, w, w.adminID, `SELECT public.create_webhook($1, $2, '{"name": "chat", "kind": "slack", "host": "https://hooks.example", "url": "c2VhbGVk", "events": ["health"]}')::text`, w.org, uuid.New())
	reports := func(health string) error {
		var void any
		return agent.call(t, &void, "SELECT public.report_pools($1, $2, $3, $4)::text", w.tokenHash, agent.instance, agent.boot, fmt.Sprintf(`[{"name": "metal", "kind": "ironic", "nodes": [
			{"name": "n1", "online": true, "cores": 8, "memory_mib": 8192, "server": {"id": "s1", "provision_state": "active", "health": %[1]q, "health_why": "It is %[1]s."}},
			{"name": "n2", "online": true, "cores": 8, "memory_mib": 8192, "server": {"id": "s2", "provision_state": "active", "health": %[1]q, "health_why": "It is %[1]s."}}]}]`, health))
	}
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "PROCESSING", applying)
	list := `{"machines": [{"name": "a", "status": "running", "pool": "metal", "external_id": "s1"}, {"name": "other", "status": "running", "pool": "lab", "external_id": "s1"},
		{"name": "off", "status": "stopped", "pool": "metal", "external_id": "s2"},
		{"name": "checked", "status": "running", "pool": "metal", "external_id": "s2", ` + listsChecked("checked")[strings.Index(listsChecked("checked"), `"check"`):]
	agent.mustReport(t, claim, "PROCESSING", list)
	for _, step := range []struct{ health, want string }{
		{"ok", "healthy"}, {"warning", "healthy"}, {"critical", "unhealthy It is critical."}, {"unknown", "unknown It is unknown."}, {"critical", "unhealthy It is critical."},
	} {
		if err := reports(step.health); err != nil {
			t.Fatal(err)
		}
		if got := w.healthOf(t, "a"); got != step.want {
			t.Errorf("on a server that is %s the machine is %s, want %s", step.health, got, step.want)
		}
		for _, name := range []string{"other", "off", "checked"} {
			if got := w.healthOf(t, name); got != "-" {
				t.Errorf("on a server that is %s the machine %s is %s", step.health, name, got)
			}
		}
	}
	wantRefusal(t, reports("fine"), "PT422", "bad_pools")
	if told := one[int](t, w.conn, "SELECT count(*) FROM public.webhook_deliveries WHERE event = 'health'"); told != 3 {
		t.Errorf("%d messages, want one for each change after the first good news", told)
	}
	agent.mustReport(t, claim, "PROCESSING", list)
	if got := w.healthOf(t, "a"); got != "unhealthy It is critical." {
		t.Errorf("after a run's next report it is %s", got)
	}
	mustExec(t, w.conn, "UPDATE public.pool_nodes SET measured_at = measured_at - interval '1 minute'")
	if one[int](t, w.conn, "SELECT tendril.reap()"); w.healthOf(t, "a") != "unhealthy It is critical." {
		t.Errorf("a minute later it is %s", w.healthOf(t, "a"))
	}
	mustExec(t, w.conn, "UPDATE public.pool_nodes SET measured_at = measured_at - interval '2 minutes'")
	if one[int](t, w.conn, "SELECT tendril.reap()"); w.healthOf(t, "a") != "unknown no agent has reported its server for a while" || w.healthOf(t, "off") != "-" {
		t.Errorf("where nobody reports its server it is %s", w.healthOf(t, "a"))
	}
	agent.mustReport(t, claim, "SUCCESS", strings.ReplaceAll(list, `"running"`, `"stopped"`))
	if got := w.healthOf(t, "a"); got != "-" {
		t.Errorf("a machine that is stopped is %s", got)
	}
}
