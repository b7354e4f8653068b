package sql_test

import (
	"fmt"
	"strings"
	"testing"
)

// metal is a pool of bare-metal servers: one is free, one is broken, and one is in use.
func metal() string {
	node := func(name string, online bool, state, more string) string {
		return fmt.Sprintf(`{"name": %q, "online": %t, "cores": 8, "memory_mib": 16384, "labels": {"resource_class": "bm"}, "server": {"id": "id-of-%s", "name": %q, "provision_state": %q, "power_state": "power off", "maintenance": false, "reason": "so", "available": %t%s}}`,
			name, online, name, name, state, state == "available", more)
	}
	return `[{"name": "metal", "kind": "ironic", "limits": {}, "taken": {}, "nodes": [` + strings.Join([]string{
		node("n1", true, "available", ""), node("n2", false, "clean failed", `, "last_error": "a fan"`), node("n3", true, "available", ""),
	}, ",") + `]}]`
}

func onMetal(name string, more ...string) string {
	return fmt.Sprintf(`{"name": %q, "pool": "metal", "cores": 2, "memory_mib": 2048%s}`, name, strings.Join(append([]string{""}, more...), ", "))
}

// A server is one machine's, what Ironic says of it is kept, and a place follows its machine to the
// server that Ironic has chosen.
func TestBareMetal(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	if err := a.reportPools(t, metal()); err != nil {
		t.Fatal(err)
	}
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := a.mustClaim(t)
	if got := mustAs[string](t, w, w.viewer, "SELECT server ->> 'provision_state' || ', ' || (server ->> 'last_error') FROM public.pool_nodes WHERE name = 'n2'"); got != "clean failed, a fan" {
		t.Errorf("what is kept of n2 is %q", got)
	}
	all, err := a.reserve(t, claim, onMetal("web", `"labels": {"resource_class": "bm"}`), onMetal("db"))
	if err != nil || all[0].Node != "n1" || all[1].Node != "n3" {
		t.Fatalf("reserve = %+v, %v, want n1 and n3", all, err)
	}
	_, err = a.reserve(t, claim, onMetal("more"))
	if got := wantRefusal(t, err, "PT409", "no_room"); !strings.Contains(got, "n1 is taken") || !strings.Contains(got, "n2 is not available") {
		t.Errorf("a third one: %q", got)
	}
	_, err = a.reserve(t, claim, `{"name": "large", "pool": "metal", "cores": 9, "memory_mib": 1}`)
	if got := wantRefusal(t, err, "PT409", "never_fits"); !strings.Contains(got, "n1 is too small") {
		t.Errorf("one of more cores than there are: %q", got)
	}
	if err := a.reportPools(t, `[{"name": "metal", "kind": "ironic", "limits": {}, "taken": {}, "nodes": [{"name": "n1", "online": true, "cores": 8, "memory_mib": 16384, "server": ["n1"]}]}]`); err == nil {
		t.Error("a server that is no object was taken")
	}

	// Ironic has given web the server n2, which is fine by now.
	a.mustReport(t, claim, "PROCESSING", applying)
	machine := func(node string) string {
		return `{"stage": "apply", "machines": [{"name": "web", "status": "creating", "address": "machine.web", "pool": "metal", "node": "` + node + `", "external_id": "id"}]}`
	}
	for _, c := range []struct{ node, want string }{{"n2", "n2"}, {"nowhere", "n2"}, {"n1", "n1"}} {
		a.mustReport(t, claim, "PROCESSING", machine(c.node))
		if got := one[string](t, w.conn, "SELECT node FROM public.reservations WHERE name = 'web'"); got != c.want {
			t.Errorf("the machine is on %s and its place on %s, want %s", c.node, got, c.want)
		}
	}
	if all, err = a.reserve(t, claim, onMetal("web")); err != nil || all[0].Node != "n1" {
		t.Errorf("again = %+v, %v, want its place", all, err)
	}
}
