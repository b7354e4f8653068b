package sql_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/testkit/pgtest"
)

// lockOrder is the one order in which functions lock rows. A function may skip a
// table, and lock rows that are in none of these after the ones that it needs.
var lockOrder = []string{"orgs", "clusters", "workspaces", "provisions", "claims", "agents"}

// Each function, alone, locks tables in the one order: then no two of them can wait
// for each other, whatever the moment. One table at a time is locked by somebody
// else; what the function holds when it waits there comes earlier in the order.
func TestLockOrder(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrated)
	s := newScene(t, db.Conn(t))
	lockTimeout(t, s.conn, "1min")
	o := &lockWatch{scene: s, looking: db.Conn(t), blocking: db.Conn(t), lookAtAll: lookAtAll(t, s.conn), edges: map[[2]string][]string{}}
	calls := s.calls()
	maps.Copy(calls, s.moreCalls(t))
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		o.watch(t, name, calls[name])
	}
	for edge, by := range o.edges {
		held, wanted := slices.Index(lockOrder, edge[0]), slices.Index(lockOrder, edge[1])
		if held >= 0 && wanted >= 0 && held > wanted {
			t.Errorf("%s: waits for %s and holds %s, want them locked in the order %s", strings.Join(by, ", "), edge[1], edge[0], strings.Join(lockOrder, ", "))
		}
	}
	if circle := o.circle(); circle != nil {
		t.Errorf("a circle of locks: %s", strings.Join(circle, "; "))
	}
	// What the test sees: nearly all of the order is met.
	if len(o.edges) < 20 {
		t.Errorf("met %d pairs of tables, want most: %v", len(o.edges), o.edges)
	}
}

// moreCalls are what the calls of every function leave out: the ends of a run, the
// sweeps, and the timers of trellis and pg_cron.
func (s *scene) moreCalls(t *testing.T) map[string]func(pgx.Tx) error {
	t.Helper()
	all := map[string]func(pgx.Tx) error{}
	add := func(name, query string, args ...any) {
		all[name] = func(tx pgx.Tx) error {
			_, err := tx.Exec(context.Background(), query, args...)
			return err
		}
	}
	report := func(name, status, detail string) {
		add("a report: "+name, "SELECT public.update_provision_status($1, $2, $3, $4)", s.tokenHash, s.running, status, detail)
	}
	report("of a plan", "PROCESSING", `{"plan": {"add": 1, "resources": []}, "percent": 5, "running": [], "drift": {"count": 1}, "resources": [{"address": "a.b", "type": "a"}], "machines": [{"name": "m", "status": "stopped"}], "events": [{"kind": "x", "at": "2026-01-01T00:00:00Z"}]}`)
	report("of an intent", "PROCESSING", `{"events": [{"kind": "machine_intent", "address": "machine.m", "action": "create", "at": "2026-01-01T00:00:00Z"}]}`)
	report("that apply begins", "PROCESSING", `{"stage": "apply", "commit": "`+strings.Repeat("a", 40)+`"}`)
	report("of a state that is locked", "FAILED", `{"error_code": "state_locked", "state_lock": {"id": "x"}}`)
	report("of success", "SUCCESS", `{"outputs": {}, "resources": []}`)
	report("of a failure that may pass", "FAILED", `{"error_code": "exec_died"}`)
	report("of an unsaved state", "FAILED", `{"error_code": "state_unsaved", "state_unsaved": true}`)
	report("of a local state", "PROCESSING", `{"local_state": true}`)
	report("of what was set aside", "PROCESSING", `{"set_aside": "something"}`)
	add("a late settlement", "SELECT public.update_provision_status($1, $2, 'SUCCESS', '{}')", s.tokenHash, s.held)
	add("lines", `SELECT public.insert_provision_log($1, $2, 2, '[{"stream": "STDOUT", "text": "x", "at": "2026-01-01T00:00:00Z"}]')`, s.tokenHash, s.running)
	add("a cancel of what runs", "SELECT public.cancel_provision($1)", s.taking)
	add("a cancel of what awaits approval", "SELECT public.cancel_provision($1)", s.awaiting)
	// An earlier boot has left a run whose lease is over, and a plan waited too long.
	const urgent = "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, 100)"
	mustExec(t, s.conn, urgent, s.cluster, snapshot("left"))
	left, _ := s.agent.mustClaim(t)
	mustExec(t, s.conn, "UPDATE tendril.claims SET boot_id = gen_random_uuid(), lease_until = clock_timestamp() WHERE id = $1", left)
	mustExec(t, s.conn, urgent, s.cluster, snapshot("due"))
	due, _ := s.agent.mustClaim(t)
	mustExec(t, s.conn, "SELECT tendril.await_approval($1, $2)", due, aPlan)
	mustExec(t, s.conn, "UPDATE public.workspaces SET due_at = clock_timestamp() WHERE name = 'due'")
	mustExec(t, s.conn, "UPDATE tendril.settings SET lease = '1 hour'") // no stamp of the pulse in between
	mustExec(t, s.conn, "UPDATE tendril.pulse SET stamped_at = clock_timestamp(), reap_not_before = '-infinity'")
	// Something of everything is old: a run as well, and one has followed it.
	mustExec(t, s.conn, keepADay)
	mustExec(t, s.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", s.cluster, snapshot("ended"))
	s.fillOld(t, 0, 2)
	mustExec(t, s.conn, "UPDATE public.provisions SET created_at = created_at - interval '9 days', finished_at = finished_at - interval '9 days' WHERE id = $1", s.ended)
	add("a sweep", "SELECT public.fail_orphaned_provisions($1, $2, $3)", s.tokenHash, s.agent.instance, s.agent.boot)
	add("a timer: reap", "SELECT tendril.reap()")
	add("a timer: hand_inspections", "SELECT tendril.hand_inspections()")
	add("a timer: archive_logs", "SELECT tendril.archive_logs()")
	add("a timer: delete_logs", "SELECT tendril.delete_logs()")
	add("a timer: expire", "SELECT tendril.expire()")
	add("a timer: measure_usage", "SELECT tendril.measure_usage()")
	return all
}

// lockWatch looks at the rows that a call has locked.
type lockWatch struct {
	*scene
	looking, blocking *pgx.Conn
	lookAtAll         string
	edges             map[[2]string][]string // held and waited for, by which calls
}

// watch calls a function once with nobody near, and then with each of the tables
// locked of which it has locked a row.
func (o *lockWatch) watch(t *testing.T, name string, call func(pgx.Tx) error) {
	t.Helper()
	var locks []string
	err := o.during(t, name, func(tx pgx.Tx) error {
		if err := call(tx); err != nil {
			return err
		}
		locks = o.locked(t)
		return nil
	})
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	for _, table := range locks {
		mustExec(t, o.blocking, "BEGIN; SELECT FROM "+table+" FOR NO KEY UPDATE")
		ended := make(chan error, 1)
		go func() { ended <- o.during(t, name, call) }()
		waits := func() bool {
			// A pause between two looks leaves the processor to the call.
			var waits bool
			err := o.looking.QueryRow(t.Context(), `SELECT coalesce(wait_event_type = 'Lock', false), pg_sleep(CASE wait_event_type WHEN 'Lock' THEN 0 ELSE 0.001 END)
				FROM pg_stat_activity WHERE pid = $1`, o.conn.PgConn().PID()).Scan(&waits, nil)
			if err != nil {
				t.Fatal(err)
			}
			return waits
		}
		over := false
		for !over && !waits() {
			select {
			case err := <-ended: // it did without the rows
				over = true
				if err != nil {
					t.Errorf("%s, with %s locked: %v", name, table, err)
				}
			default:
			}
		}
		if over {
			mustExec(t, o.blocking, "ROLLBACK")
			continue
		}
		holds := o.locked(t)
		meets := slices.Contains(holds, "provisions") || slices.Contains(holds, "tendril.claims") || plainTable(table) == "machines" && slices.Contains(holds, "workspaces")
		if slices.Contains(ofOneRun, plainTable(table)) && !meets {
			t.Errorf("%s: waits for %s with neither the provision nor the claim locked; it has %v", name, table, holds)
		}
		for _, held := range holds {
			if held != table {
				edge := [2]string{plainTable(held), plainTable(table)}
				o.edges[edge] = append(o.edges[edge], name)
			}
		}
		mustExec(t, o.blocking, "ROLLBACK")
		if err := <-ended; err != nil {
			t.Errorf("%s, with %s locked for a moment: %v", name, table, err)
		}
	}
}

func plainTable(name string) string { return name[strings.LastIndex(name, ".")+1:] }

// during makes a call as its caller, and takes it back.
func (o *lockWatch) during(t *testing.T, name string, do func(pgx.Tx) error) error {
	a := o.caller(name)
	if _, ok := functions[name]; !ok {
		a = actor{name: "owner", role: "none"}
	}
	if name == "a deploy" || strings.HasPrefix(name, "a cancel") {
		a = actor{name: "admin", role: "authenticated", claims: fmt.Sprintf(`{"sub": %q}`, o.adminID)}
	}
	err := pgx.BeginFunc(t.Context(), o.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', $1, true), set_config('role', $2, true)", a.claims, a.role); err != nil {
			return err
		}
		return errors.Join(do(tx), errUndo)
	})
	if err.Error() == errUndo.Error() {
		return nil
	}
	return err
}

// locked are the tables of which somebody has locked a row.
func (o *lockWatch) locked(t *testing.T) []string {
	t.Helper()
	return one[[]string](t, o.looking, o.lookAtAll)
}

// lookAtAll is one statement that asks all tables of ours for the names of those of which
// somebody has locked a row.
func lookAtAll(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return one[string](t, conn, `SELECT 'SELECT array_agg(name) FROM (' || string_agg(format(
		'SELECT %L AS name WHERE (WITH free AS (SELECT 1 FROM %s FOR NO KEY UPDATE SKIP LOCKED) SELECT count(*) FROM free) < (SELECT count(*) FROM %s)',
		oid::regclass, oid::regclass, oid::regclass), ' UNION ALL ' ORDER BY relname) || ') locked'
		FROM pg_class WHERE relnamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND relkind = 'r'`)
}

// ofOneRun are tables whose rows belong to a run or its workspace, and are locked under
// the provision's or the claim's lock, machines also under the workspace's, which reports of
// them hold: two functions that want the same row meet there first.
var ofOneRun = []string{"provision_progress", "provision_stages", "log_heads", "log_ends", "resources", "machines"}

// circle is a way from a table back to it, nil where there is none.
func (o *lockWatch) circle() []string {
	next := map[string][]string{}
	for edge := range o.edges {
		if slices.Contains(ofOneRun, edge[0]) && slices.Contains(ofOneRun, edge[1]) {
			continue
		}
		next[edge[0]] = append(next[edge[0]], edge[1])
	}
	done := map[string]bool{}
	var path []string
	var visit func(string) []string
	visit = func(table string) []string {
		if at := slices.Index(path, table); at >= 0 {
			var told []string
			for i, from := range path[at:] {
				to := table
				if at+i+1 < len(path) {
					to = path[at+i+1]
				}
				told = append(told, fmt.Sprintf("%s before %s (%s)", from, to, strings.Join(o.edges[[2]string{from, to}], ", ")))
			}
			return told
		}
		if done[table] {
			return nil
		}
		path = append(path, table)
		for _, to := range slices.Sorted(slices.Values(next[table])) {
			if found := visit(to); found != nil {
				return found
			}
		}
		path = path[:len(path)-1]
		done[table] = true
		return nil
	}
	for _, table := range slices.Sorted(maps.Keys(next)) {
		if found := visit(table); found != nil {
			return found
		}
	}
	return nil
}
