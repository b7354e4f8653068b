package sql_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tendril-run/tendril/internal/provision"
)

// What is too large is refused, with the limit and the size.
func TestSizes(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	deploy := func(snapshot string) error {
		_, err := w.tryDeploy(t, w.operator, snapshot)
		return err
	}
	with := func(value string) string {
		return strings.Replace(snapshot("b"), `"project_name": "acme"`, `"x": `+value, 1)
	}
	chunks := func(n, size int) error {
		_, err := agent.lines(t, claim, 1, strings.Split(strings.TrimSuffix(strings.Repeat(strings.Repeat("x", size)+" ", n), " "), " ")...)
		return err
	}
	create := func(labels, key any) error {
		return w.does(t, w.adminID, "SELECT public.create_cluster('large', p_labels => $1, p_age_public_key => $2)", labels, key)
	}
	claims := make([]uuid.UUID, 1001)
	_, beaten := agent.heartbeat(t, claims...)
	var any any
	for name, test := range map[string]struct {
		err    error
		state  string
		limits []string
	}{
		"snapshot":             {deploy(with(`"` + strings.Repeat("x", 300_000) + `"`)), "PT422", []string{"262144", "300"}},
		"a vast number":        {deploy(with("1e131071")), "PT422", []string{"1e400"}},
		"a vast fraction":      {deploy(with("[{\"y\": 1e-16000}]")), "PT422", []string{"400"}},
		"many zeros":           {deploy(with("0e-16000")), "PT422", []string{"400"}},
		"priority":             {w.does(t, w.operator, "INSERT INTO public.provisions (cluster_id, config_snapshot, priority) VALUES ($1, $2, 101)", w.cluster, snapshot("b")), "PT422", []string{"100", "101"}},
		"chunks of a call":     {chunks(129, 1), "PT413", []string{"128", "129"}},
		"a chunk":              {chunks(1, 65_537), "PT413", []string{"65536", "65537"}},
		"bytes of a call":      {chunks(20, 60_000), "PT413", []string{"1048576", "1200000"}},
		"detail":               {agent.report(t, claim, "PROCESSING", `{"error_message": "`+strings.Repeat("x", 1<<20)+`"}`), "PT413", []string{"1048576", "10485"}},
		"a number in a detail": {agent.report(t, claim, "PROCESSING", `{"outputs": {"x": {"value": [1e131071]}}}`), "PT422", []string{"1e400"}},
		"claims of a beat":     {beaten, "PT413", []string{"1000", "1001"}},
		"claims of a sweep":    {agent.call(t, &any, "SELECT public.fail_orphaned_provisions($1, $2, $3, $4)", w.tokenHash, agent.instance, agent.boot, claims), "PT413", []string{"1000", "1001"}},
		"labels":               {create(`{"x": "`+strings.Repeat("x", 8192)+`"}`, nil), "PT422", []string{"8192"}},
		"a number in labels":   {create(`{"x": 1e131071}`, nil), "PT422", []string{"8192"}},
		"key":                  {create("{}", strings.Repeat("x", 201)), "PT422", []string{"p_age_public_key"}},
		"name":                 {w.does(t, w.adminID, "SELECT public.create_cluster($1)", strings.Repeat("x", 64)), "PT422", []string{"63"}},
		"reason of a lock":     {w.does(t, w.operator, "SELECT public.lock_workspace(id, $1) FROM public.workspaces", strings.Repeat("x", 1001)), "PT422", []string{"1000", "1001"}},
		"reason of a release":  {w.does(t, w.adminID, "SELECT public.release_workspace(id, $1) FROM public.workspaces", strings.Repeat("x", 1001)), "PT422", []string{"1000", "1001"}},
	} {
		got := wantRefusal(t, test.err, test.state, "")
		for _, limit := range test.limits {
			if !strings.Contains(got, limit) {
				t.Errorf("%s: error = %.300q, want %s in it", name, got, limit)
			}
		}
	}
	// What a computer can reckon with is fine.
	if err := deploy(with("[1e308, -1.7976931348623157e308, 5e-324, 123456789012345678901234567890.5]")); err != nil {
		t.Errorf("a deploy with usual numbers: %v", err)
	}
	// An agent's largest are.
	if err := chunks(provision.MaxBatchChunks, provision.MaxBatch/provision.MaxBatchChunks); err != nil {
		t.Errorf("a call of the size that agents send: %v", err)
	}
	if nested := deploy(with(strings.Repeat("[", 6000) + strings.Repeat("]", 6000))); nested != nil {
		wantRefusal(t, nested, "PT422", "bad_snapshot")
	}
}

// What is wrong is said in a few lines, however much of it there is: each answer
// goes into the server's log as well.
func TestAnswersAreShort(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := agent.mustClaim(t)
	vast := strings.Repeat("x", 200_000)
	many := one[string](t, w.conn, "SELECT jsonb_object_agg('k' || n, 0)::text FROM generate_series(1, 20000) n")
	_, deployed := w.tryDeploy(t, w.operator, many)
	var next int64
	for what, err := range map[string]error{
		"a deploy": deployed,
		"a status": agent.report(t, claim, vast, `{}`),
		"a detail": agent.report(t, claim, "PROCESSING", `{"n": "`+vast+`"}`),
		"a line":   agent.call(t, &next, "SELECT public.insert_provision_log($1, $2, 1, $3)", w.tokenHash, claim, `[{"stream": "STDOUT", "text": "x", "at": "`+vast+`"}]`),
	} {
		if got := wantRefusal(t, err, "PT422", ""); len(got) > 5000 {
			t.Errorf("%s: an answer of %d bytes, which begins %.200q, want a short one", what, len(got), got)
		}
	}
	if !strings.Contains(deployed.Error(), "more)") {
		t.Errorf("a deploy: error = %v, want the number of further problems in it", deployed)
	}
}

// To look through numbers takes their number's time, not its square: that was a
// minute and more.
func TestManyNumbersAreLookedThroughSoon(t *testing.T) {
	t.Parallel()
	conn := newContract(t).conn
	mustExec(t, conn, "SET statement_timeout = '20s'")
	for _, number := range []string{"0", "1", "-2.5"} {
		const look = "SELECT tendril.has_vast_number(jsonb_build_object('x', array_fill($1::text::numeric, ARRAY[1048576 / length($1::text) / 2])))"
		if one[bool](t, conn, look, number) {
			t.Errorf("%s is a vast number, want not", number)
		}
	}
	for _, number := range []string{"1e400", "-1e400", "1e-401", "0e-401", "-1e-16000"} {
		if !one[bool](t, conn, `SELECT tendril.has_vast_number(('{"x": [1, {"y": ' || $1 || '}]}')::jsonb)`, number) {
			t.Errorf("%s is no vast number, want it to be", number)
		}
	}
}

// A loop that deploys is stopped; what the control plane itself queues is not.
func TestQueueLimit(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	mustExec(t, w.conn, "UPDATE tendril.settings SET queue_limit = 3")
	for range 3 {
		w.deploy(t, w.operator, snapshot("a"))
	}
	_, err := w.tryDeploy(t, w.operator, snapshot("a"))
	if got := wantRefusal(t, err, "PT429", "queue_full"); !strings.Contains(got, `workspace "a" has 3 queued`) {
		t.Errorf("error = %q, want the limit and the workspace", got)
	}
	w.deploy(t, w.operator, snapshot("b"))
	mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", w.cluster, snapshot("a"))
	// In one statement as well.
	err = w.does(t, w.operator, "INSERT INTO public.provisions (cluster_id, config_snapshot) SELECT $1, $2 FROM generate_series(1, 4)", w.cluster, snapshot("c"))
	wantRefusal(t, err, "PT429", "queue_full")
	claim, _ := agent.mustClaim(t)
	agent.mustReport(t, claim, "SUCCESS", `{}`)
	_, err = w.tryDeploy(t, w.operator, snapshot("a"))
	wantRefusal(t, err, "PT429", "queue_full") // three are left
	agent.mustClaim(t)
	agent.mustClaim(t)
	w.deploy(t, w.operator, snapshot("a"))
	// Whether there is such a workspace, and how busy, is not told to strangers.
	_, err = w.tryDeploy(t, w.stranger, snapshot("a"))
	wantRefusal(t, err, "PT404", "cluster_not_found")
}

// To see whether a queue is full costs nothing, however much has run there, by a
// plan that was made when nothing had.
func TestQueueLimitReadsLittle(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "SET plan_cache_mode = force_generic_plan")
	w.deploy(t, w.operator, snapshot("a"))
	mustExec(t, w.conn, "SET session_replication_role = replica")
	mustExec(t, w.conn, `INSERT INTO public.provisions (org_id, cluster_id, workspace_id, config_snapshot, status)
		SELECT org_id, cluster_id, id, '{}', 'SUCCESS' FROM public.workspaces, generate_series(1, 3000)`)
	mustExec(t, w.conn, "SET session_replication_role = origin")
	read, _ := w.reading(t, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SELECT set_config('request.jwt.claims', $1, true), set_config('role', 'authenticated', true)", fmt.Sprintf(`{"sub": %q}`, w.operator))
		if err == nil {
			_, err = tx.Exec(t.Context(), "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", w.cluster, snapshot("a"))
		}
		return err
	})
	if read > 20 {
		t.Errorf("a deploy read %d rows, want a handful of 3,000", read)
	}
}

// send stores chunks of a stream and says what the database expects next.
func (a *agent) send(t *testing.T, claim uuid.UUID, first int64, stream string, texts ...string) int64 {
	t.Helper()
	var chunks []map[string]any
	for _, text := range texts {
		chunks = append(chunks, map[string]any{"stream": stream, "text": text, "at": time.Now()})
	}
	encoded, err := json.Marshal(chunks)
	if err != nil {
		t.Fatal(err)
	}
	var next int64
	if err := a.call(t, &next, "SELECT public.insert_provision_log($1, $2, $3, $4)", a.w.tokenHash, claim, first, encoded); err != nil {
		t.Fatalf("insert_provision_log of %s at the limit: %v", stream, err)
	}
	return next
}

// A log that has reached the limit takes no more text, says so once, and lets
// the agent go on: its chunks count as stored, its own words and its result are.
func TestLogLimit(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	mustExec(t, w.conn, "UPDATE tendril.settings SET log_limit = 1000")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	if next := agent.send(t, claim, 1, "STDOUT", strings.Repeat("a", 599)+"\n", strings.Repeat("b", 300)+"\n"); next != 3 {
		t.Fatalf("expected next = %d, want 3", next)
	}
	for range 2 { // the second is a repeat after a lost reply
		if next := agent.send(t, claim, 3, "STDOUT", strings.Repeat("c", 50)+"\n", "too much: "+strings.Repeat("x", 50)+"\n", "d\n"); next != 6 {
			t.Fatalf("expected next = %d, want 6: an agent that is told less asks again, for ever", next)
		}
	}
	if next := agent.send(t, claim, 6, "STDERR", "e\n"); next != 7 {
		t.Fatalf("expected next = %d, want 7", next)
	}
	if next := agent.send(t, claim, 7, "SYSTEM", "The engine has ended.\n"); next != 8 {
		t.Fatalf("expected next = %d, want 8", next)
	}
	agent.mustReport(t, claim, "SUCCESS", `{"percent": 100}`)
	if next := agent.send(t, claim, 8, "STDOUT", "late\n"); next != 9 {
		t.Fatalf("expected next = %d, want 9", next)
	}
	log := w.log(t, id)
	lines := strings.Split(strings.TrimSuffix(log, "\n"), "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[2], "3 STDOUT ccc") || !strings.Contains(lines[3], "4 SYSTEM This log has reached 1000 bytes") || lines[4] != "5 SYSTEM The engine has ended." {
		t.Errorf("log = %q, want what fits, one line that says what is missing, and the agent's words", log)
	}
	if got := w.status(t, id); got != "SUCCESS" {
		t.Errorf("status = %s, want SUCCESS", got)
	}
}

// Nobody gets past the limit as SYSTEM, nor by lines so short that rows are most
// of what they take.
func TestLogLimitHolds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		stream string
		size   int
		most   int64 // bytes of text
	}{{"SYSTEM", 60_000, 1 << 20}, {"STDOUT", 60_000, 1000}, {"STDERR", 0, 1000}, {"STDOUT", 1, 1000}} {
		w := newContract(t)
		agent := w.newAgent(t, "one")
		mustExec(t, w.conn, "UPDATE tendril.settings SET log_limit = 1000")
		w.deploy(t, w.operator, snapshot("a"))
		claim, id := agent.mustClaim(t)
		texts := make([]string, 17)
		for i := range texts {
			texts[i] = strings.Repeat("x", test.size)
		}
		next := int64(1)
		for range 10 {
			next = agent.send(t, claim, next, test.stream, texts...)
		}
		if next != 171 {
			t.Errorf("%+v: expected next = %d, want 171", test, next)
		}
		const stored = "SELECT coalesce(sum(length(log_chunk)) FILTER (WHERE log_chunk ~ '^x'), 0) FROM public.provision_logs WHERE provision_id = $1"
		rows := one[int](t, w.conn, "SELECT count(*) FROM public.provision_logs WHERE provision_id = $1", id)
		if got := one[int64](t, w.conn, stored, id); got > test.most+1000 || rows > 64 {
			t.Errorf("%+v: %d bytes stored in %d rows, want no more than the limit", test, got, rows)
		}
		if got := strings.Count(w.log(t, id), "This log has reached"); got != 1 {
			t.Errorf("%+v: the log says %d times that it is cut, want once", test, got)
		}
		agent.mustReport(t, claim, "FAILED", `{"error_code": "apply_failed"}`)
	}
}

// Of a run's events no more are kept than the limit, the log says so once, and
// the run goes on to its end.
func TestEventLimit(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	agent := w.newAgent(t, "one")
	mustExec(t, w.conn, "UPDATE tendril.settings SET event_limit = 500")
	w.deploy(t, w.operator, snapshot("a"))
	claim, id := agent.mustClaim(t)
	for n := range 10 {
		for range 2 { // the second is a repeat after a lost reply
			agent.mustReport(t, claim, "PROCESSING", fmt.Sprintf(`{"n": %d, "events": [{"kind": "resource_started", "address": %q, "at": "2026-01-01T00:00:00Z"}]}`, n+1, strings.Repeat("x", 40)))
		}
	}
	agent.mustReport(t, claim, "SUCCESS", `{"n": 11, "commit": "`+strings.Repeat("a", 40)+`", "events": [{"kind": "resource_finished", "at": "2026-01-01T00:00:00Z"}]}`)
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.provision_events WHERE provision_id = $1 AND kind LIKE 'resource%'", id); got != 4 {
		t.Errorf("events stored = %d, want the 4 that fit into 500 bytes", got)
	}
	if got := strings.Count(w.log(t, id), "This run has reported 500 bytes of events"); got != 1 {
		t.Errorf("the log says %d times that events are left out, want once", got)
	}
	if got := one[string](t, w.conn, "SELECT status || length(resolved_commit) FROM public.provisions WHERE id = $1", id); got != "SUCCESS40" {
		t.Errorf("status and commit = %s, want SUCCESS and all else that was reported", got)
	}
}

// What an agent sends by itself, both runs of an approved provision, is far from
// the limit, however its text is cut.
func TestLogLimitLeavesRoomForHonestAgents(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	const agents = 64 << 20 // run.log_limit, as it comes
	limit := one[int64](t, w.conn, "SELECT log_limit FROM tendril.settings")
	// A record of the spool counts by a quarter of its bytes, of which an empty
	// line's has 60 at the least; here it counts 16.
	if shortest := int64(60 / 4); limit < 2*agents*16/shortest {
		t.Errorf("log_limit = %d, want room for two logs of %d", limit, agents)
	}
}

// Each function in public has one name, one meaning, and is closed to whoever
// sets a search path.
func TestFunctionsAreWellMade(t *testing.T) {
	t.Parallel()
	conn := newContract(t).conn
	for what, query := range map[string]string{
		"in public, without SECURITY DEFINER": `pronamespace = 'public'::regnamespace AND NOT prosecdef`,
		"without a search path":               `prosrc <> '' AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)`,
		"overloaded":                          `EXISTS (SELECT FROM pg_proc o WHERE o.proname = p.proname AND o.pronamespace = p.pronamespace AND o.oid <> p.oid)`,
	} {
		got := one[string](t, conn, fmt.Sprintf(`SELECT coalesce(string_agg(oid::regprocedure::text, ', '), '') FROM pg_proc p
			WHERE pronamespace IN ('public'::regnamespace, 'tendril'::regnamespace) AND %s`, query))
		if got != "" {
			t.Errorf("functions %s: %s, want none", what, got)
		}
	}
	if got := one[string](t, conn, "SELECT array_to_string(setconfig, ',') FROM pg_db_role_setting WHERE setrole = 'tendril_agent'::regrole"); got != "statement_timeout=15s" {
		t.Errorf("settings of tendril_agent = %q, want statement_timeout=15s", got)
	}
}
