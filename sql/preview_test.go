package sql_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

type previewed struct {
	Name, Pool, Node, Why string
	Exists                bool
}

// preview asks as a person where machines would go.
func (w *world) preview(t *testing.T, user uuid.UUID, workspace string, wants ...string) (all []previewed, err error) {
	t.Helper()
	text, err := person[string](t, w, user, "SELECT public.preview_machines($1, $2, $3)::text", w.cluster, workspace, "["+strings.Join(wants, ",")+"]")
	if err == nil {
		err = json.Unmarshal([]byte(text), &all)
	}
	return all, err
}

func TestPreviewMachines(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	w := a.w
	rows := func() string { // of each table
		t.Helper()
		return one[string](t, w.conn, `SELECT string_agg(concat_ws(' ', n.nspname, c.relname, (xpath('/row/many/text()', query_to_xml(format('SELECT count(*) AS many FROM %I.%I', n.nspname, c.relname), false, true, '')))[1]), '; ' ORDER BY 1, c.relname)
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname IN ('public', 'tendril') AND c.relkind = 'r'`)
	}
	if _, err := a.reserve(t, claim, wanted("ada", `"node": "pve1"`)); err != nil {
		t.Fatal(err)
	}
	mustExec(t, w.conn, "INSERT INTO public.machines (workspace_id, name, org_id, status) SELECT workspace_id, name, org_id, 'running' FROM public.reservations")

	mustAs[uuid.UUID](t, w, w.adminID, "SELECT public.set_pool_quota($1, $2)", w.org, `{"workspaces": "few/*", "machines": 1}`)
	was := rows()
	got, err := w.preview(t, w.operator, "a", wanted("bob"), wanted("ada"))
	if err != nil || len(got) != 2 || got[0].Node != "pve3" || got[0].Exists || !strings.Contains(got[0].Why, "points") || got[1].Node != "pve1" || !got[1].Exists {
		t.Errorf("in a workspace that has machines: %+v, %v", got, err)
	}
	if got, err = w.preview(t, w.operator, "new/one", wanted("ada")); err != nil || len(got) != 1 || got[0].Node != "pve3" || got[0].Exists {
		t.Errorf("in a workspace that does not exist: %+v, %v", got, err)
	}
	if got, err = w.preview(t, w.operator, "new/one"); err != nil || len(got) != 0 {
		t.Errorf("of no machine: %+v, %v", got, err)
	}
	for _, c := range []struct {
		workspace, want, code, reason string
	}{
		{"a", `{"name": "b", "pool": "lab", "cores": 1, "memory_mib": 32000}`, "PT409", "no_room"},
		{"a", `{"name": "b", "pool": "lab", "cores": 1, "memory_mib": 40000}`, "PT409", "never_fits"},
		{"a", `{"name": "b", "pool": "lab", "cores": 1}`, "PT422", "bad_wants"},
		{"a", `{"name": "b", "pool": "other", "cores": 1, "memory_mib": 1}`, "PT404", "pool_not_found"},
		{"a b", wanted("b"), "PT422", "bad_workspace"},
	} {
		_, err := w.preview(t, w.operator, c.workspace, c.want)
		wantRefusal(t, err, c.code, c.reason)
	}
	_, err = w.preview(t, w.operator, "few/one", wanted("b"), wanted("c"))
	wantRefusal(t, err, "PT409", "quota")
	for _, user := range []uuid.UUID{w.viewer, w.stranger} {
		_, err := w.preview(t, user, "a", wanted("b"))
		wantRefusal(t, err, "PT404", "cluster_not_found")
	}
	if now := rows(); now != was {
		t.Errorf("rows after previews: %s, before: %s", now, was)
	}
}

// A preview keeps no lock: while its transaction goes on, others place machines.
func TestPreviewKeepsNoLock(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	w := newWorld(t, db.Conn(t))
	a := w.newAgent(t, "one")
	if err := a.reportPools(t, lab(3)); err != nil {
		t.Fatal(err)
	}
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := a.mustClaim(t)
	begun, err := db.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = begun.Rollback(t.Context()) }()
	mustExec(t, begun.Conn(), "SELECT set_config('request.jwt.claims', json_build_object('sub', $1::text)::text, true), set_config('role', 'authenticated', true)", w.operator)
	var places string
	if err := begun.QueryRow(t.Context(), "SELECT public.preview_machines($1, 'new', $2)::text", w.cluster, "["+wanted("ada")+"]").Scan(&places); err != nil {
		t.Fatal(err)
	}
	if got := one[string](t, w.conn, `SELECT coalesce(string_agg(l.mode || ' ' || coalesce(l.relation::regclass::text, l.locktype), ', '), '') FROM pg_locks l JOIN pg_stat_activity s USING (pid)
		WHERE s.pid <> pg_backend_pid() AND s.datname = current_database() AND l.mode LIKE 'Row%ExclusiveLock'`); got != "" {
		t.Errorf("locks outlive a preview: %s", got)
	}
	if _, err := a.reserve(t, claim, wanted("ada")); err != nil {
		t.Errorf("reserve_machines() after a preview whose transaction goes on: %v", err)
	}
}

// What a preview answers is what a reservation right after it gives, and where it is refused, so
// is that.
func TestPreviewIsWhatIsReserved(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	random := rand.New(rand.NewPCG(1, 7)) // repeatable on purpose
	refusals, moved := map[string]int{}, map[string]bool{}
	for i := range 60 {
		var wants []string
		for j := range 1 + random.IntN(5) {
			more := [][]string{nil, {`"spread": "g"`}, {fmt.Sprintf(`"together": "t%d"`, i)}, {`"avoid": ["pve3"]`}, {`"image": "debian"`}, {`"image": "windows"`}}[random.IntN(6)*min(1, random.IntN(4))]
			wants = append(wants, fmt.Sprintf(`{"name": "m%d", "pool": "lab", "cores": %d, "memory_mib": %d%s}`, 10*random.IntN(40)+j, 1+random.IntN(6), 512*(1+random.IntN(12)), strings.Join(append([]string{""}, more...), ", ")))
		}
		before, no := a.w.preview(t, a.w.operator, "a", wants...)
		after, err := a.reserve(t, claim, wants...)
		if (no == nil) != (err == nil) {
			t.Fatalf("%s: preview error = %v, reserve error = %v", wants, no, err)
		}
		if err != nil {
			was, _ := errors.AsType[*pgconn.PgError](no)
			is, _ := errors.AsType[*pgconn.PgError](err)
			if was.Detail != is.Detail || was.Message != is.Message {
				t.Errorf("%s: preview says %v, reserve %v", wants, no, err)
			}
			refusals[is.Detail]++
			continue
		}
		for n, p := range after {
			moved[p.Node] = true
			if b := before[n]; b.Name != p.Name || b.Node != p.Node || b.Pool != p.Pool || b.Why != p.Why {
				t.Errorf("preview %+v, reserved %+v", b, p)
			}
		}
	}
	if len(moved) != 3 || refusals["no_room"] == 0 || refusals["never_fits"] == 0 {
		t.Errorf("the requests use nodes %v and are refused as %v: too few cases", moved, refusals)
	}
}

func TestFreePlace(t *testing.T) {
	t.Parallel()
	a, claim := newLab(t)
	w := a.w
	if _, err := a.reserve(t, claim, wanted("ada"), wanted("bob"), wanted("eve")); err != nil {
		t.Fatal(err)
	}
	workspace := one[uuid.UUID](t, w.conn, "SELECT id FROM public.workspaces WHERE name = 'a'")
	free := func(user uuid.UUID, name string) error {
		return w.does(t, user, "SELECT public.free_place($1, $2)", workspace, name)
	}
	wantRefusal(t, free(w.adminID, "ada"), "PT409", "place_in_use") // its run goes on
	mustExec(t, w.conn, "UPDATE public.reservations SET wanted_by = NULL, provision_id = NULL")
	wantRefusal(t, free(w.adminID, "ada"), "PT409", "place_in_use") // and may want it yet
	// The apply fails, and nobody knows whether it has made them.
	a.mustReport(t, claim, "PROCESSING", applying)
	a.mustReport(t, claim, "FAILED", `{"error_code": "internal", "error_message": "died"}`)
	mustExec(t, w.conn, `INSERT INTO public.machines (workspace_id, name, org_id, status, plan) VALUES ($1, 'bob', $2, 'unknown', NULL), ($1, 'eve', $2, 'planned', '{}')`, workspace, w.org)
	if got := one[string](t, w.conn, "SELECT string_agg(name, ' ' ORDER BY name) FROM public.reservations"); got != "ada bob eve" {
		t.Fatalf("places after a failed apply: %s", got)
	}
	for _, user := range []uuid.UUID{w.operator, w.viewer, w.stranger} {
		wantRefusal(t, free(user, "ada"), "PT404", "workspace_not_found")
	}
	wantRefusal(t, free(w.adminID, "nobody"), "PT404", "place_not_found")
	wantRefusal(t, free(w.adminID, "bob"), "PT409", "place_in_use") // it may be there
	mustExec(t, w.conn, "UPDATE public.reservations SET kept = true WHERE name = 'ada'")
	wantRefusal(t, free(w.adminID, "ada"), "PT409", "place_in_use") // Terraform's may be there, unrecorded
	mustExec(t, w.conn, "UPDATE public.reservations SET kept = false WHERE name = 'ada'")

	// A run of another workspace that waits for room is due at once.
	w.deploy(t, w.operator, snapshot("waits"))
	waiting, _ := a.mustClaim(t)
	if !one[bool](t, w.conn, "SELECT tendril.await_room($1, 'no room')", waiting) {
		t.Fatal("the run does not wait")
	}
	due := "SELECT due_at > clock_timestamp() FROM public.workspaces WHERE name = 'waits'"
	if !one[bool](t, w.conn, due) {
		t.Fatal("the run is due before a place is free")
	}
	for _, name := range []string{"ada", "eve"} {
		if err := free(w.adminID, name); err != nil {
			t.Fatalf("free_place(%s) = %v", name, err)
		}
	}
	if one[bool](t, w.conn, due) {
		t.Error("the run that waits for room is not due")
	}
	if got := one[string](t, w.conn, "SELECT string_agg(name, ' ') FROM public.reservations"); got != "bob" {
		t.Errorf("places = %s, want bob", got)
	}
	// A run that is queued, or awaits approval, wants the place of a machine that is gone.
	mustExec(t, w.conn, "UPDATE public.machines SET status = 'gone' WHERE name = 'bob'")
	mustExec(t, w.conn, "UPDATE public.reservations SET wanted_by = (SELECT id FROM public.provisions WHERE status = 'QUEUED')")
	wantRefusal(t, free(w.adminID, "bob"), "PT409", "place_in_use")
	if got := one[string](t, w.conn, "SELECT string_agg(concat_ws(' ', detail ->> 'machine', detail ->> 'pool', detail ->> 'node', detail ->> 'address'), '; ' ORDER BY id) FROM public.audit_events WHERE action = 'free_place' AND actor = $1 AND object_id = $2", w.adminID, workspace); !strings.HasPrefix(got, "ada lab pve3 10.0.0.10; eve lab ") {
		t.Errorf("audited = %s", got)
	}
}
