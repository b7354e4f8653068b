package sql_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/queue"
	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// tell calls a function as agents do whose answer does not matter.
func tell(t testing.TB, conn *pgx.Conn, query string, args ...any) error {
	t.Helper()
	_, err := conn.Exec(t.Context(), query, args...)
	return err
}

// reportPools has the agent report pools.
func (a *agent) reportPools(t *testing.T, pools string) error {
	t.Helper()
	return tell(t, a.w.conn, "SELECT public.report_pools($1, $2, $3, $4)", a.w.tokenHash, a.instance, a.boot, pools)
}

// lab is a pool of nodes of 16 cores and 32 GiB, of which node 1 is busier than node 2, and so on.
func lab(nodes int) string {
	var list []string
	for i := range nodes {
		list = append(list, fmt.Sprintf(`{"name": "pve%d", "online": true, "cores": 16, "memory_mib": 32768, "cores_used": %.2f, "memory_used": 0.1, "images": ["debian"], "labels": {"rack": "r%d"}}`, i+1, 0.5/float64(i+1), i%2))
	}
	return `[{"name": "lab", "kind": "proxmox", "limits": {"overcommit_cores": 4, "overcommit_memory": 1, "ids": [100, 999], "addresses": [{"from": "10.0.0.10", "to": "10.0.0.20"}, {"from": "10.0.1.0", "to": "10.0.3.255"}]},
		"taken": {"ids": [101, 7], "addresses": ["10.0.0.11"]}, "nodes": [` + strings.Join(list, ",") + `]}]`
}

func wanted(name string, more ...string) string {
	return fmt.Sprintf(`{"name": %q, "pool": "lab", "cores": 2, "memory_mib": 2048%s}`, name, strings.Join(append([]string{""}, more...), ", "))
}

type placed struct {
	Name, Pool, Node, Address, Why string
	VMID                           int `json:"vm_id"`
}

func (a *agent) reserve(t *testing.T, claim uuid.UUID, wants ...string) ([]placed, error) {
	t.Helper()
	var answer []byte
	err := a.w.conn.QueryRow(t.Context(), "SELECT public.reserve_machines($1, $2, $3)", a.w.tokenHash, claim, "["+strings.Join(wants, ",")+"]").Scan(&answer)
	var all []placed
	if err == nil {
		err = json.Unmarshal(answer, &all)
	}
	return all, err
}

// newLab is an agent with a pool of three nodes, and a claim.
func newLab(t *testing.T) (*agent, uuid.UUID) {
	t.Helper()
	w := newContract(t)
	a := w.newAgent(t, "one")
	if err := a.reportPools(t, lab(3)); err != nil {
		t.Fatal(err)
	}
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := a.mustClaim(t)
	return a, claim
}

func TestReserveMachines(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	says := func(all []placed, err error) string {
		t.Helper()
		if err != nil {
			return err.Error()
		}
		var parts []string
		for _, p := range all {
			parts = append(parts, fmt.Sprintf("%s %s %d %s", p.Name, p.Node, p.VMID, p.Address))
		}
		return strings.Join(parts, "; ")
	}
	for _, c := range []struct {
		does  string
		wants []string
		want  string
	}{
		{"the node with the most points, and the lowest id and address that nobody has", []string{wanted("ada")}, "ada pve3 100 10.0.0.10"},
		{"where it is, again, and the others as the score moves", []string{wanted("bob"), wanted("ada"), wanted("carl")}, "bob pve2 102 10.0.0.12; ada pve3 100 10.0.0.10; carl pve3 103 10.0.0.13"},
		{"another size in its place", []string{`{"name": "ada", "pool": "lab", "cores": 3, "memory_mib": 4096}`}, "ada pve3 100 10.0.0.10"},
		{"the node that is asked for", []string{wanted("dora", `"node": "pve1"`)}, "dora pve1 104 10.0.0.14"},
		{"not the ones to be avoided", []string{wanted("eve", `"avoid": ["pve3", "pve2"]`)}, "eve pve1 105 10.0.0.15"},
		{"a node with the labels", []string{wanted("fay", `"labels": {"rack": "r1"}`)}, "fay pve2 106 10.0.0.16"},
		{"one on each", []string{wanted("s1", `"spread": "s"`), wanted("s2", `"spread": "s"`), wanted("s3", `"spread": "s"`)}, "s1 pve2 107 10.0.0.17; s2 pve3 108 10.0.0.18; s3 pve1 109 10.0.0.19"},
		{"all on one", []string{wanted("t1", `"together": "t"`, `"node": "pve1"`), wanted("t2", `"together": "t"`)}, "t1 pve1 110 10.0.0.20; t2 pve1 111 10.0.1.0"},
		{"an address that is asked for goes first", []string{wanted("u1"), wanted("u2", `"address": "10.0.1.1"`)}, "u1 pve3 113 10.0.1.2; u2 pve2 112 10.0.1.1"},
	} {
		if got := says(a.reserve(t, claim, c.wants...)); got != c.want {
			t.Errorf("%s: %s, want %s", c.does, got, c.want)
		}
	}
	all, err := a.reserve(t, claim, wanted("gus", `"image": "debian"`, `"avoid": ["pve1"]`))
	if err != nil || !strings.Contains(all[0].Why, "points") || !strings.Contains(all[0].Why, "pve1 is to be avoided") {
		t.Errorf("why = %+v, %v", all, err)
	}
	if got := mustAs[int](t, a.w, a.w.viewer, "SELECT count(*) FROM public.reservations"); got != 14 {
		t.Errorf("a viewer sees %d reservations, want 14", got)
	}
	if got := mustAs[int](t, a.w, a.w.stranger, "SELECT (SELECT count(*) FROM public.reservations) + (SELECT count(*) FROM public.pools) + (SELECT count(*) FROM public.pool_nodes)"); got != 0 {
		t.Errorf("a stranger sees %d rows of pools", got)
	}
	// A machine that exists takes its place where it is, however little room there is and though the
	// hypervisor shows its id, without an address; and keeps it.
	there := `{"name": "imp", "pool": "lab", "cores": 1, "memory_mib": 32768, "node": "pve2", "vm_id": 101}`
	for range 2 {
		if got := says(a.reserve(t, claim, there, wanted("ivy", `"node": "pve1"`))); got != "imp pve2 101 ; ivy pve1 115 10.0.1.4" {
			t.Errorf("a machine that exists: %s", got)
		}
	}
	if got := says(a.reserve(t, claim, `{"name": "imp", "pool": "lab", "cores": 1, "memory_mib": 32768}`)); got != "imp pve2 101 " {
		t.Errorf("a machine that was imported: %s, want its place", got)
	}
	// What is freed is another's.
	if err := tell(t, a.w.conn, "SELECT public.release_machines($1, $2, $3)", a.w.tokenHash, claim, []string{"ada", "nobody"}); err != nil {
		t.Fatal(err)
	}
	if got := says(a.reserve(t, claim, wanted("hal", `"node": "pve1"`))); got != "hal pve1 100 10.0.0.10" {
		t.Errorf("after ada: %s", got)
	}
}

func TestReservationsThatAreRefused(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	if _, err := a.reserve(t, claim, wanted("ada", `"address": "10.0.0.10"`)); err != nil {
		t.Fatal(err)
	}
	was := one[string](t, a.w.conn, "SELECT string_agg(r::text, ';' ORDER BY r.name) FROM public.reservations r")
	for _, c := range []struct{ does, wants, code, reason, says string }{
		{"no list", `{}`, "PT422", "bad_wants", "list"},
		{"no name", `[{"pool": "lab", "cores": 1, "memory_mib": 1}]`, "PT422", "bad_wants", "name"},
		{"no cores", `[{"name": "b", "pool": "lab", "memory_mib": 1}]`, "PT422", "bad_wants", "cores"},
		{"an unknown key", "[" + wanted("b", `"vmid": 7`) + "]", "PT422", "bad_wants", "vmid"},
		{"a machine that exists nowhere", "[" + wanted("b", `"vm_id": 101`) + "]", "PT422", "bad_wants", "goes with node"},
		{"one that is no number", "[" + wanted("b", `"vm_id": "101"`, `"node": "pve1"`) + "]", "PT422", "bad_wants", "vm_id: must be a whole number"},
		{"another's machine", "[" + wanted("b", `"vm_id": 100`, `"node": "pve1"`) + "]", "PT422", "bad_wants", "id 100 of pool lab belongs to another machine"},
		{"a machine on a node that is none", "[" + wanted("b", `"vm_id": 101`, `"node": "pve9"`) + "]", "PT409", "never_fits", "asked for"},
		{"twice", "[" + wanted("b") + "," + wanted("b") + "]", "PT422", "bad_wants", "twice"},
		{"another pool", `[{"name": "b", "pool": "other", "cores": 1, "memory_mib": 1}]`, "PT404", "pool_not_found", "other"},
		{"a taken address", "[" + wanted("b", `"address": "10.0.0.10"`) + "]", "PT409", "address_taken", "10.0.0.10"},
		{"one that the hypervisor shows", "[" + wanted("b", `"address": "10.0.0.11"`) + "]", "PT409", "address_taken", "10.0.0.11"},
		{"one outside of the ranges", "[" + wanted("b", `"address": "10.0.9.1"`) + "]", "PT422", "bad_wants", "no range"},
		{"no address", "[" + wanted("b", `"address": "ten"`) + "]", "PT422", "bad_wants", "malformed"},
		{"no such image", "[" + wanted("b", `"image": "windows"`) + "]", "PT409", "never_fits", "lacks the image"},
		{"no such node", "[" + wanted("b", `"node": "pve9"`) + "]", "PT409", "never_fits", "asked for"},
		{"too large", `[{"name": "b", "pool": "lab", "cores": 1, "memory_mib": 40000}]`, "PT409", "never_fits", "too small"},
		{"no memory left", `[{"name": "b", "pool": "lab", "cores": 1, "memory_mib": 32000}]`, "PT409", "no_room", "memory"},
		{"all or none", "[" + wanted("c") + `, {"name": "b", "pool": "lab", "cores": 1, "memory_mib": 32000}]`, "PT409", "no_room", ""},
		{"a larger one that stays", `[{"name": "z", "pool": "lab", "cores": 1, "memory_mib": 20000, "node": "pve3"}, {"name": "ada", "pool": "lab", "cores": 2, "memory_mib": 20000}]`, "PT409", "no_room", "stays on"},
		{"one that its node never has", `[{"name": "ada", "pool": "lab", "cores": 2, "memory_mib": 33000}]`, "PT409", "never_fits", "too small"},
	} {
		_, err := a.reserve(t, claim, strings.TrimSuffix(strings.TrimPrefix(c.wants, "["), "]"))
		if c.wants == "{}" {
			err = tell(t, a.w.conn, "SELECT public.reserve_machines($1, $2, $3)", a.w.tokenHash, claim, "{}")
		}
		wantRefusal(t, err, c.code, c.reason)
		if err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want something of %q", c.does, err, c.says)
		}
	}
	_, err := a.reserve(t, uuid.New(), wanted("b"))
	wantRefusal(t, err, "PT409", "claim_lost")
	if got := one[string](t, a.w.conn, "SELECT string_agg(r::text, ';' ORDER BY r.name) FROM public.reservations r"); got != was {
		t.Errorf("reservations = %s after refusals, want %s", got, was)
	}
	// A pool that can't be listed keeps its nodes, and nothing is placed there.
	if err := a.reportPools(t, `[{"name": "lab", "kind": "proxmox", "problem": "connection refused"}]`); err != nil {
		t.Fatal(err)
	}
	_, err = a.reserve(t, claim, wanted("b"))
	wantRefusal(t, err, "PT409", "no_room")
	for _, bad := range []string{`{}`, `[{"name": "x"}]`, `[{"name": "x", "kind": "cloud", "nodes": []}]`, `[{"name": "x", "kind": "static", "nodes": [{"name": "n", "online": true, "cores": 0, "memory_mib": 1}]}]`, `[{"name": "x", "kind": "static", "nodes": {}}]`} {
		wantRefusal(t, a.reportPools(t, bad), "PT422", "bad_pools")
	}
	wantRefusal(t, a.reportPools(t, "["+strings.TrimSuffix(strings.Repeat("{},", 51), ",")+"]"), "PT413", "too_many_pools")
}

// A thousand random requests by eight connections: no id and no address is used twice, no node has
// more than it may, and groups are spread as evenly as they can be.
func TestPlacementByMany(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	w := newWorld(t, db.Conn(t))
	a := w.newAgent(t, "one")
	const connections, each, nodes = 8, 125, 6
	if err := a.reportPools(t, strings.NewReplacer(`"cores_used": 0.50`, `"cores_used": 0.1`, `0.25,`, `0.1,`, `0.17,`, `0.1,`, `0.12,`, `0.1,`, `0.10,`, `0.1,`, `0.08,`, `0.1,`).Replace(lab(nodes))); err != nil {
		t.Fatal(err)
	}
	var claims []uuid.UUID
	for i := range connections {
		w.deploy(t, w.operator, snapshot(fmt.Sprint("w", i)))
		claim, _ := a.mustClaim(t)
		claims = append(claims, claim)
	}
	conns := make([]*pgx.Conn, connections)
	for i := range conns {
		conns[i] = db.Conn(t)
	}
	var working sync.WaitGroup
	for i, conn := range conns {
		working.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7)) // repeatable on purpose
			for n := range each {
				var err error
				if random.IntN(4) == 0 {
					_, err = conn.Exec(t.Context(), "SELECT public.release_machines($1, $2, $3)", w.tokenHash, claims[i], []string{fmt.Sprint("m", random.IntN(n+1)), fmt.Sprint("m", random.IntN(n+1))})
				} else {
					var wants []string
					for range 1 + random.IntN(3) {
						wants = append(wants, fmt.Sprintf(`{"name": "m%d-%d", "pool": "lab", "cores": %d, "memory_mib": %d, "spread": "g"}`, n, len(wants), 1+random.IntN(4), 256*(1+random.IntN(4))))
					}
					_, err = conn.Exec(t.Context(), "SELECT public.reserve_machines($1, $2, $3)", w.tokenHash, claims[i], "["+strings.Join(wants, ",")+"]")
				}
				if refused, is := errors.AsType[*pgconn.PgError](err); err != nil && (!is || refused.Code != "PT409" && refused.Code != "PT503") {
					t.Errorf("request %d of connection %d: %v", n, i, err)
				}
			}
		})
	}
	working.Wait()
	for what, query := range map[string]string{
		"more memory than there is":      "SELECT count(*) FROM (SELECT n.name FROM public.pool_nodes n JOIN public.reservations r ON r.node = n.name GROUP BY n.name, n.memory_mib HAVING sum(r.memory_mib) > n.memory_mib) x",
		"more cores than may be":         "SELECT count(*) FROM (SELECT n.name FROM public.pool_nodes n JOIN public.reservations r ON r.node = n.name GROUP BY n.name, n.cores HAVING sum(r.cores) > 4 * n.cores) x",
		"ids that are taken or outside":  "SELECT count(*) FROM public.reservations WHERE vm_id IN (101) OR vm_id NOT BETWEEN 100 AND 999 OR vm_id IS NULL",
		"addresses that are not allowed": "SELECT count(*) FROM public.reservations WHERE address = '10.0.0.11' OR address IS NULL OR NOT (address BETWEEN '10.0.0.10' AND '10.0.0.20' OR address BETWEEN '10.0.1.0' AND '10.0.3.255')",
		"ids or addresses twice":         "SELECT count(*) - count(DISTINCT vm_id) + count(*) - count(DISTINCT address) FROM public.reservations",
	} {
		if got := one[int](t, w.conn, query); got != 0 {
			t.Errorf("%s: %d", what, got)
		}
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.reservations"); got < 100 {
		t.Errorf("%d machines have a place, want many", got)
	}
	// Where nothing was freed and nothing is full, no node has two more of a group than another.
	w.deploy(t, w.operator, snapshot("even"))
	mustExec(t, w.conn, "DELETE FROM public.reservations")
	claim, _ := a.mustClaim(t)
	var wants []string
	for i := range 20 {
		wants = append(wants, wanted(fmt.Sprint("e", i), `"spread": "even"`))
	}
	if _, err := a.reserve(t, claim, wants...); err != nil {
		t.Fatal(err)
	}
	if got := one[int](t, w.conn, "SELECT max(c) - min(c) FROM (SELECT count(r.id) AS c FROM public.pool_nodes n LEFT JOIN public.reservations r ON r.node = n.name GROUP BY n.name) x"); got > 1 {
		t.Errorf("the fullest node has %d more of a group than the emptiest", got)
	}
}

// BenchmarkPlacement places 1,000 machines on 50 nodes.
func BenchmarkPlacement(b *testing.B) {
	conn := pgtest.New(b, migrated).Conn(b)
	const token = "tnd_bench"
	instance, boot, claim := uuid.New(), uuid.New(), uuid.New()
	do := func(statement string, args ...any) {
		b.Helper()
		if err := tell(b, conn, statement, args...); err != nil {
			b.Fatal(err)
		}
	}
	do("INSERT INTO public.orgs (name) VALUES ('bench')")
	do("INSERT INTO public.clusters (org_id, name) SELECT id, 'bench' FROM public.orgs")
	do("INSERT INTO tendril.cluster_tokens (cluster_id, digest) SELECT id, sha256(sha256(convert_to($1, 'UTF8'))) FROM public.clusters", token)
	do("SELECT public.register_agent($1, $2)", hashOf(token), fmt.Sprintf(`{"instance_id": %q, "boot_id": %q, "name": "a", "host": "h", "version": "1", "contract": %d, "slots": 1}`, instance, boot, queue.Contract))
	do("SELECT public.report_pools($1, $2, $3, $4)", hashOf(token), instance, boot, strings.NewReplacer("[100, 999]", "[100, 9999]", "10.0.3.255", "10.0.9.255").Replace(lab(50)))
	do("INSERT INTO public.provisions (cluster_id, config_snapshot) SELECT id, $1 FROM public.clusters", snapshot("a"))
	do("SELECT public.fetch_next_provision($1, $2, $3, $4)", hashOf(token), instance, boot, claim)
	var wants []string
	for i := range 1000 {
		wants = append(wants, fmt.Sprintf(`{"name": "m%d", "pool": "lab", "cores": 1, "memory_mib": 1024}`, i))
	}
	for b.Loop() {
		b.StopTimer()
		do("DELETE FROM public.reservations")
		b.StartTimer()
		do("SELECT public.reserve_machines($1, $2, $3)", hashOf(token), claim, "["+strings.Join(wants, ",")+"]")
	}
}
