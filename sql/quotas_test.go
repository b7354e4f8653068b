package sql_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// setQuota sets a quota as the admin.
func (w *world) setQuota(t *testing.T, quota string) uuid.UUID {
	t.Helper()
	return mustAs[uuid.UUID](t, w, w.adminID, "SELECT public.set_pool_quota($1, $2)", w.org, quota)
}

func TestQuotas(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	w := a.w
	pool := one[uuid.UUID](t, w.conn, "SELECT id FROM public.pools")
	sized := func(name string, cores, memory int) string {
		return fmt.Sprintf(`{"name": %q, "pool": "lab", "cores": %d, "memory_mib": %d}`, name, cores, memory)
	}
	reserve := func(wants ...string) error {
		_, err := a.reserve(t, claim, wants...)
		return err
	}
	refused := func(says string, wants ...string) {
		t.Helper()
		err := reserve(wants...)
		wantRefusal(t, err, "PT409", "quota")
		if err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want something of %q", err, says)
		}
	}
	allowed := func(wants ...string) {
		t.Helper()
		if err := reserve(wants...); err != nil {
			t.Error(err)
		}
	}
	workspace := one[string](t, w.conn, "SELECT name FROM public.workspaces")
	w.setQuota(t, `{"workspaces": "another*", "machines": 0}`) // which this one is not
	quota := w.setQuota(t, `{"machines": 3}`)
	allowed(sized("a", 1, 1024), sized("b", 1, 1024))
	refused("2 of 3 machines are used, and this needs 2 more; most are used by "+workspace+" (2)", sized("a", 1, 1024), sized("c", 1, 1024), sized("d", 1, 1024))
	allowed(sized("a", 1, 1024), sized("b", 1, 1024), sized("c", 1, 1024))
	// Again, the same; and as much, though the quota was lowered.
	if again := w.setQuota(t, `{"machines": 1}`); again != quota {
		t.Errorf("the quota of all workspaces is set again as %s, want %s", again, quota)
	}
	allowed(sized("a", 1, 1024), sized("b", 1, 1024), sized("c", 1, 1024))
	refused("3 of 1 machines are used, and this needs 1 more", sized("d", 1, 1024))
	mustAs[any](t, w, w.adminID, "SELECT public.delete_pool_quota($1, $2)::text", w.org, quota)
	// Cores and memory, of a pool and a pattern of workspaces.
	w.setQuota(t, fmt.Sprintf(`{"workspaces": %q, "pool_id": %q, "cores": 5, "memory_mib": 4096}`, workspace[:1]+"*", pool))
	refused(`quota of workspaces "`+workspace[:1]+`*" in pool "lab": 3 of 5 cores are used, and this needs 3 more`, sized("d", 3, 1024))
	refused("MiB of memory", sized("d", 1, 1025))
	allowed(sized("d", 2, 1024))
	refused("5 of 5 cores are used, and this needs 1 more", sized("a", 2, 1024)) // a larger one where it is
	allowed(sized("a", 1, 512))
	allowed(sized("e", 1, 512), sized("d", 1, 1024)) // as one shrinks, another has room

	uses := mustAs[string](t, w, w.viewer, "SELECT string_agg(concat_ws(' ', workspaces, pool, cluster, cores, cores_used, memory_used, machines_used, top -> 0 ->> 'cores'), '; ') FROM public.pool_quota_uses($1) WHERE pool IS NOT NULL", w.org)
	if want := workspace[:1] + "* lab " + one[string](t, w.conn, "SELECT c.name FROM public.clusters c JOIN public.pools p ON p.cluster_id = c.id") + " 5 5 4096 5 5"; uses != want {
		t.Errorf("uses = %q, want %q", uses, want)
	}
	for _, bad := range []string{`[]`, `{}`, `{"machines": null}`, `{"machines": -1}`, `{"machines": 1.5}`, `{"machines": "1"}`, `{"machines": 1, "workspaces": ""}`, `{"machines": 1, "color": "red"}`, `{"machines": 1e10}`} {
		wantRefusal(t, w.does(t, w.adminID, "SELECT public.set_pool_quota($1, $2)", w.org, bad), "PT422", "bad_quota")
	}
	wantRefusal(t, w.does(t, w.adminID, "SELECT public.set_pool_quota($1, $2)", w.org, fmt.Sprintf(`{"machines": 1, "pool_id": %q}`, uuid.New())), "PT404", "pool_not_found")
	wantRefusal(t, w.does(t, w.adminID, "SELECT public.delete_pool_quota($1, $2)", w.org, quota), "PT404", "quota_not_found")
	if got := one[string](t, w.conn, "SELECT string_agg(action, ' ' ORDER BY id) FROM public.audit_events WHERE action LIKE '%quota' AND actor = $1", w.adminID); got != "set_pool_quota set_pool_quota set_pool_quota delete_pool_quota set_pool_quota" {
		t.Errorf("the audit has %q", got)
	}
	mustExec(t, w.conn, "INSERT INTO public.pool_quotas (org_id, workspaces, machines) SELECT $1, 'w' || n, 1 FROM generate_series(1, 198) n", w.org)
	wantRefusal(t, w.does(t, w.adminID, "SELECT public.set_pool_quota($1, $2)", w.org, `{"machines": 1}`), "PT413", "too_many_quotas")
}

// Eight connections reserve and release at random, and in two pools: no quota is ever exceeded,
// and what they allow is used up.
func TestQuotasByMany(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	w := newWorld(t, db.Conn(t))
	a := w.newAgent(t, "one")
	const connections, each = 8, 60
	pools := lab(6)
	if err := a.reportPools(t, strings.TrimSuffix(pools, "]")+","+strings.NewReplacer(`"lab"`, `"den"`, "10.0.", "10.9.").Replace(strings.TrimPrefix(pools, "["))); err != nil {
		t.Fatal(err)
	}
	w.setQuota(t, `{"machines": 40}`)
	w.setQuota(t, `{"workspaces": "*1", "machines": 4, "memory_mib": 4000}`)
	w.setQuota(t, fmt.Sprintf(`{"pool_id": %q, "cores": 50}`, one[uuid.UUID](t, w.conn, "SELECT id FROM public.pools WHERE name = 'den'")))
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
	over := map[string]string{
		"machines of all workspaces": "SELECT count(*) FROM public.reservations HAVING count(*) > 40",
		"cores of a pool":            "SELECT sum(r.cores) FROM public.reservations r JOIN public.pools p ON p.id = r.pool_id WHERE p.name = 'den' HAVING sum(r.cores) > 50",
		"machines of a workspace":    "SELECT count(*) FROM public.reservations r JOIN public.workspaces w ON w.id = r.workspace_id WHERE w.name LIKE '%1' HAVING count(*) > 4",
		"memory of a workspace":      "SELECT sum(r.memory_mib) FROM public.reservations r JOIN public.workspaces w ON w.id = r.workspace_id WHERE w.name LIKE '%1' HAVING sum(r.memory_mib) > 4000",
	}
	var refusals sync.Map
	var working sync.WaitGroup
	for i, conn := range conns {
		working.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 11)) // repeatable on purpose
			for n := range each {
				var err error
				if random.IntN(5) == 0 {
					_, err = conn.Exec(t.Context(), "SELECT public.release_machines($1, $2, $3)", w.tokenHash, claims[i], []string{fmt.Sprintf("m%d-0", random.IntN(n+1))})
				} else {
					var wants []string
					for range 1 + random.IntN(3) {
						wants = append(wants, fmt.Sprintf(`{"name": "m%d-%d", "pool": %q, "cores": %d, "memory_mib": %d}`, random.IntN(n+1), len(wants), []string{"lab", "den"}[random.IntN(2)], 1+random.IntN(4), 256*(1+random.IntN(4))))
					}
					_, err = conn.Exec(t.Context(), "SELECT public.reserve_machines($1, $2, $3)", w.tokenHash, claims[i], "["+strings.Join(wants, ",")+"]")
				}
				if refused, is := errors.AsType[*pgconn.PgError](err); is {
					refusals.Store(refused.Detail, true)
				}
				if refused, is := errors.AsType[*pgconn.PgError](err); err != nil && (!is || refused.Code != "PT409" && refused.Code != "PT503") {
					t.Errorf("request %d of connection %d: %v", n, i, err)
				}
				for what, query := range over {
					var used int
					if err := conn.QueryRow(t.Context(), query).Scan(&used); !errors.Is(err, pgx.ErrNoRows) {
						t.Errorf("%s: %d, %v", what, used, err)
					}
				}
			}
		})
	}
	working.Wait()
	if _, met := refusals.Load("quota"); !met {
		t.Error("no request met a quota: the test shows nothing")
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.reservations"); got < 30 {
		t.Errorf("%d machines have a place at the end, want nearly 40", got)
	}
}

func TestImagesOfPools(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	w := a.w
	pool := one[uuid.UUID](t, w.conn, "SELECT id FROM public.pools")
	set := func(image string, name any) error {
		return w.does(t, w.adminID, "SELECT public.set_pool_image($1, $2, $3)", pool, image, name)
	}
	image := func(want string) string {
		t.Helper()
		var found string
		err := w.conn.QueryRow(t.Context(), "SELECT coalesce(public.reserve_machines($1, $2, $3) -> 0 ->> 'image', 'none')", w.tokenHash, claim, "["+want+"]").Scan(&found)
		if err != nil {
			return err.Error()
		}
		return found
	}
	if got := image(wanted("a", `"image": "linux"`)); !strings.Contains(got, "lacks the image") {
		t.Errorf("an image that nobody has: %s", got)
	}
	if err := set("linux", "debian"); err != nil {
		t.Fatal(err)
	}
	for want, is := range map[string]string{wanted("a", `"image": "linux"`): "debian", wanted("b", `"image": "debian"`): "debian", wanted("c"): "none", wanted("d", `"image": ""`): "none"} {
		if got := image(want); got != is {
			t.Errorf("the image of %s is %s, want %s", want, got, is)
		}
	}
	if err := set("linux", "debian-13"); err != nil {
		t.Fatal(err)
	}
	if got := image(wanted("e", `"image": "linux"`)); !strings.Contains(got, "lacks the image debian-13") {
		t.Errorf("an image whose name in the pool nobody has: %s", got)
	}
	if err := set("linux", nil); err != nil {
		t.Fatal(err)
	}
	if got := image(wanted("e", `"image": "linux"`)); !strings.Contains(got, "lacks the image") {
		t.Errorf("an image without a name in the pool: %s", got)
	}
	wantRefusal(t, set("", "x"), "PT422", "bad_image")
	wantRefusal(t, set("x", ""), "PT422", "bad_image")
	wantRefusal(t, set("x", strings.Repeat("x", 201)), "PT422", "bad_image")
	mustExec(t, w.conn, "INSERT INTO public.pool_images (org_id, pool_id, image, name) SELECT $1, $2, 'i' || n, 'n' FROM generate_series(1, 200) n", w.org, pool)
	wantRefusal(t, set("one more", "x"), "PT413", "too_many_images")
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.audit_events WHERE action = 'set_pool_image' AND actor = $1 AND object_id = $2", w.adminID, pool); got != 3 {
		t.Errorf("the audit has %d names of images, want 3", got)
	}
}

// What was reserved since a node was measured is told apart from what is used there.
func TestPoolLoads(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	w := a.w
	if _, err := a.reserve(t, claim, wanted("ada", `"node": "pve1"`), wanted("bob", `"node": "pve1"`)); err != nil {
		t.Fatal(err)
	}
	load := func() string {
		t.Helper()
		return mustAs[string](t, w, w.viewer, "SELECT string_agg(concat_ws(' ', node, most_cores, most_memory, round(cores_new), round(memory_new), cores_reserved, memory_reserved, machines), '; ' ORDER BY node) FROM public.pool_loads($1)", w.org)
	}
	if got, want := load(), "pve1 64 32768 4 4096 4 4096 2; pve2 64 32768 0 0 0 0 0; pve3 64 32768 0 0 0 0 0"; got != want {
		t.Errorf("loads = %q, want %q", got, want)
	}
	// Once they have started and the node was measured, they are in what is used.
	mustExec(t, w.conn, "UPDATE public.reservations SET created_at = created_at - interval '2 minutes'")
	if err := a.reportPools(t, lab(3)); err != nil {
		t.Fatal(err)
	}
	if got, want := load(), "pve1 64 32768 0 0 4 4096 2; pve2 64 32768 0 0 0 0 0; pve3 64 32768 0 0 0 0 0"; got != want {
		t.Errorf("loads = %q, want %q", got, want)
	}
	if got := mustAs[int](t, w, w.viewer, "SELECT count(*) FROM public.pool_loads($1, $2)", w.org, uuid.New()); got != 0 {
		t.Errorf("another pool has %d nodes of this one", got)
	}
}
