package sql_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// beside is an agent of another cluster of the same organisation.
func (w *world) beside(t *testing.T) *agent {
	t.Helper()
	other := *w
	w.as(t, "authenticated", w.adminID, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SELECT cluster_id, token FROM public.create_cluster('beside')").Scan(&other.cluster, &other.token)
	})
	other.tokenHash = hashOf(other.token)
	return other.newAgent(t, "beside")
}

// countAnew has what clusters use counted at the next call.
func (w *world) countAnew(t *testing.T) {
	t.Helper()
	mustExec(t, w.conn, "UPDATE tendril.cluster_usage SET measured_at = '-infinity'")
	mustExec(t, w.conn, "UPDATE tendril.expiry SET began_at = '-infinity' WHERE name = 'log_usage'")
}

// wantBound fails the test unless a refusal says which setting it is about and what
// to do.
func wantBound(t *testing.T, err error, reason, setting string) {
	t.Helper()
	if got := wantRefusal(t, err, "PT429", reason); !strings.Contains(got, "tendril.settings."+setting) || !strings.ContainsAny(got, "0123456789") {
		t.Errorf("refusal = %q, want tendril.settings.%s and the number in it", got, setting)
	}
}

// With a leaked token agents can be registered up to a bound, and no other cluster
// is concerned.
func TestAgentsOfAClusterAreBounded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "UPDATE tendril.settings SET agent_limit = 3 WHERE only_row")
	first := w.newAgent(t, "one")
	for n := range 2 {
		w.newAgent(t, fmt.Sprint("made up ", n))
	}
	fourth := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "four", host: "four.example"}
	wantBound(t, fourth.register(t), "too_many_agents", "agent_limit")
	first.boot = uuid.New()
	if err := first.register(t); err != nil {
		t.Errorf("an agent that was there registers again: %v", err)
	}
	w.beside(t)
	w.foreignAgent(t)
	// One that is gone makes room, unless a state is on it.
	mustExec(t, w.conn, "UPDATE public.agents SET last_heartbeat_at = now() - interval '25 hours' WHERE name LIKE 'made up%'")
	w.deploy(t, w.operator, snapshot("a"))
	mustExec(t, w.conn, "UPDATE public.workspaces SET home_instance = (SELECT instance_id FROM public.agents WHERE name = 'made up 0')")
	if err := fourth.register(t); err != nil {
		t.Errorf("a new agent, where one was not heard of for a day: %v", err)
	}
	fifth := &agent{w: w, instance: uuid.New(), boot: uuid.New(), name: "five", host: "five.example"}
	wantBound(t, fifth.register(t), "too_many_agents", "agent_limit")
}

// stuffing stores states of a MiB in new workspaces until that is refused, and says
// how many there are.
func (w *world) stuffing(t *testing.T, a *agent, most int) (stored int, err error) {
	t.Helper()
	data := bytes.Repeat([]byte("x"), 1<<20)
	for n := range most {
		mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, $2)", a.w.cluster, snapshot(fmt.Sprint("stuffed-", n, "-", stored)))
		claim, _ := a.mustClaim(t)
		w.countAnew(t)
		if err := a.put(t, claim, "state", 1, data, 2); err != nil {
			return stored, err
		}
		a.mustReport(t, claim, "SUCCESS", `{}`)
		stored++
	}
	return stored, nil
}

// With a leaked token blobs can be stored up to the cluster's bound, and others go on.
func TestBlobsOfAClusterAreBounded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "UPDATE tendril.settings SET cluster_blob_limit = 5 * 1048576 WHERE only_row")
	a := w.newAgent(t, "one")
	stored, err := w.stuffing(t, a, 10)
	wantBound(t, err, "cluster_blobs_full", "cluster_blob_limit")
	if stored != 5 {
		t.Errorf("%d MiB were stored, want 5", stored)
	}
	_, err = person[uuid.UUID](t, w, w.adminID, "SELECT public.upload_blob($1, 1, 1, $2)", w.cluster, aResult)
	wantBound(t, err, "cluster_blobs_full", "cluster_blob_limit")
	for _, other := range []*agent{w.beside(t), w.foreignAgent(t)} {
		if stored, err := w.stuffing(t, other, 2); stored != 2 || err != nil {
			t.Errorf("%s stores %d, %v, want 2: it is another cluster", other.name, stored, err)
		}
	}
	// What was refused is stored as soon as there is room.
	claim := one[uuid.UUID](t, w.conn, "SELECT id FROM tendril.claims WHERE state = 'running' AND cluster_id = $1", w.cluster)
	mustExec(t, w.conn, "UPDATE tendril.settings SET cluster_blob_limit = 7 * 1048576 WHERE only_row")
	if err := a.put(t, claim, "state", 1, bytes.Repeat([]byte("x"), 1<<20), 2); err != nil {
		t.Errorf("the state that was refused, with room: %v", err)
	}
}

// What an organisation's clusters store together is bounded, and what one of them
// stores takes nothing from the share of another.
func TestBlobsOfAnOrganisationAreBounded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	mustExec(t, w.conn, "UPDATE tendril.settings SET org_blob_limit = 6 * 1048576 WHERE only_row")
	leaked, beside := w.newAgent(t, "one"), w.beside(t)
	stored, err := w.stuffing(t, leaked, 10)
	wantBound(t, err, "org_blobs_full", "org_blob_limit")
	if stored != 6 {
		t.Errorf("%d MiB were stored, want 6", stored)
	}
	stored, err = w.stuffing(t, beside, 10)
	wantBound(t, err, "org_blobs_full", "org_blob_limit")
	if stored != 3 {
		t.Errorf("the other cluster stores %d MiB, want its share, 3", stored)
	}
	if stored, err := w.stuffing(t, w.foreignAgent(t), 2); stored != 2 || err != nil {
		t.Errorf("another organisation stores %d, %v, want 2", stored, err)
	}
}

// States that are begun and not ended do not pile up, however they are numbered.
func TestStatesOfAClaimAreFew(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	w.deploy(t, w.operator, snapshot("a"))
	claim, _ := a.mustClaim(t)
	data := []byte("two parts")
	for n := range int64(50) {
		if err := a.putPart(t, claim, "state", n+2, data, 1, 2); err != nil {
			t.Fatal(err)
		}
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM tendril.blobs"); got != 1 {
		t.Errorf("%d states are begun, want the newest", got)
	}
	if got, want := one[int](t, w.conn, "SELECT bytes FROM tendril.blobs"), (len(data)+1)/2; got != want {
		t.Errorf("bytes of what is there = %d, want %d", got, want)
	}
	if err := a.putPart(t, claim, "state", 51, data, 2, 2); err != nil {
		t.Fatal(err)
	}
	a.wantBlob(t, claim, "state", 51, "two p", 51)
}

// Reports leave a bounded number of rows, whatever they say.
func TestReportsOfAClaimAreBounded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	mustExec(t, w.conn, "UPDATE tendril.settings SET event_limit = 10240, log_limit = 10240, resource_limit = 5 WHERE only_row")
	mustExec(t, w.conn, "UPDATE tendril.log_heads SET bytes = 0")
	provision := w.deploy(t, w.operator, snapshot("a"))
	claim, _ := a.mustClaim(t)
	for n := range 200 {
		a.mustReport(t, claim, "PROCESSING", fmt.Sprintf(`{"stage": %q}`, []string{"plan", "init"}[n%2]))
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.provision_events"); got > 60 {
		t.Errorf("200 changes of stage have left %d events, want those of 10 kB", got)
	}
	// A note of 1000 characters is stored for as long as there is room for the log and 2 MiB.
	mustExec(t, w.conn, "SELECT tendril.take_seq($1, 1, 10240 + 2097152 - 5000)", provision)
	for n := range 20 {
		a.mustReport(t, claim, "PROCESSING", fmt.Sprintf(`{"set_aside": "%d %s"}`, n, strings.Repeat("x", 2000)))
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.provision_logs WHERE log_chunk LIKE '%xxx%'"); got == 0 || got > 6 {
		t.Errorf("%d of 20 notes are in the log, want the first few", got)
	}
	mustExec(t, w.conn, "UPDATE tendril.log_heads SET bytes = 0")
	var resources []map[string]string
	for n := range 20 {
		resources = append(resources, map[string]string{"address": fmt.Sprint("a.", n), "type": "a"})
	}
	detail, err := json.Marshal(map[string]any{"resources": resources})
	if err != nil {
		t.Fatal(err)
	}
	a.mustReport(t, claim, "PROCESSING", string(detail))
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.resources"); got != 5 {
		t.Errorf("%d of 20 resources are listed, want 5", got)
	}
	if got := w.logText(t, provision); !strings.Contains(got, "20 resources") || !strings.Contains(got, "tendril.settings.resource_limit") || !strings.Contains(got, "tendril.settings.event_limit") {
		t.Errorf("log = %.2000q, want it to say what is left out, and which settings say so", got)
	}
	a.mustReport(t, claim, "SUCCESS", `{}`)
}

// logText is all of a log.
func (w *world) logText(t *testing.T, provision uuid.UUID) string {
	t.Helper()
	return one[string](t, w.conn, "SELECT string_agg(left(log_chunk, 300), '' ORDER BY seq) FROM public.provision_logs WHERE provision_id = $1", provision)
}

// Pins and inspections are bounded; what is there goes on to be used.
func TestPinsAndInspectionsAreBounded(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	mustExec(t, w.conn, "UPDATE tendril.settings SET pin_limit = 2, inspection_limit = 3 WHERE only_row")
	use := func(a *agent, version string) error {
		mustExec(t, w.conn, "INSERT INTO public.provisions (cluster_id, config_snapshot) VALUES ($1, jsonb_set($2, '{template_source,version}', to_jsonb($3::text)))", a.w.cluster, snapshot("a"), version)
		claim, _ := a.mustClaim(t)
		w.countAnew(t)
		err := a.report(t, claim, "PROCESSING", `{"stage": "plan", "commit": "`+strings.Repeat("a", 40)+`", "variables": []}`)
		a.mustReport(t, claim, "FAILED", `{"error_code": "plan_failed"}`)
		return err
	}
	for _, version := range []string{"v1", "v2", "v1"} {
		if err := use(a, version); err != nil {
			t.Fatal(err)
		}
	}
	wantBound(t, use(a, "v3"), "too_many_pins", "pin_limit")
	if err := use(a, "v2"); err != nil {
		t.Errorf("a tag that is pinned already: %v", err)
	}
	beside := w.beside(t)
	for _, version := range []string{"v3", "v4"} {
		if err := use(beside, version); err != nil {
			t.Errorf("%s in another cluster: %v", version, err)
		}
	}
	if got := one[int](t, w.conn, "SELECT count(*) FROM public.template_inspections"); got != 3 {
		t.Errorf("the variables of %d versions are known, want 3", got)
	}
	wantBound(t, w.does(t, w.operator, "SELECT public.inspect_template($1, 'https://git.example/a/b', 'v1')", w.org), "inspections_full", "inspection_limit")
	if err := w.does(t, w.operator, "SELECT public.inspect_template($1, 'https://git.example/acme/envtempl', 'v1')", w.org); err != nil {
		t.Errorf("one that is known already: %v", err)
	}
}

// Metrics tell how much of each bound is used, of the clusters that use most of
// theirs first.
func TestUsageIsTold(t *testing.T) {
	t.Parallel()
	w := newContract(t)
	a := w.newAgent(t, "one")
	w.beside(t)
	mustExec(t, w.conn, "UPDATE tendril.settings SET cluster_blob_limit = 4 * 1048576, org_blob_limit = 8 * 1048576, agent_limit = 10, pin_limit = 10, inspection_limit = 10 WHERE only_row")
	if _, err := w.stuffing(t, a, 4); err != nil {
		t.Fatal(err)
	}
	w.countAnew(t)
	if got := one[int](t, w.conn, "SELECT tendril.measure_usage()"); got != 2 {
		t.Errorf("measure_usage() = %d clusters, want 2", got)
	}
	if got := one[int](t, w.conn, "SELECT tendril.measure_usage()"); got != 0 {
		t.Errorf("measure_usage() at once again = %d, want 0", got)
	}
	s := w.statistics(t, 1)
	if len(s.Clusters) != 1 || s.Clusters[0].ID != w.cluster {
		t.Fatalf("clusters = %+v, want the one that is full", s.Clusters)
	}
	got := one[string](t, w.conn, "SELECT (tendril.statistics() -> 'clusters' -> 0 -> 'usage')::text")
	if want := `{"logs": 0.0000, "pins": 0.0000, "blobs": 1.0000, "agents": 0.1000, "org_logs": 0.0000, "org_blobs": 0.5000, "inspections": 0.0000}`; got != want {
		t.Errorf("usage = %s, want %s", got, want)
	}
}
